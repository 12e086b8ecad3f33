"""Routes of the page and of what it asks for, and of the recorder's trace.

Event loop, but for the trace, which is made on a thread.

The page itself holds nothing of anyone and is open to everyone, so that it can ask for a key;
whatever it shows comes from routes that stand behind the keys, and each key sees its own. No inline
script or style, and a policy that forbids them: text of strangers can never become markup that
runs.

Tests: tests/e2e/page/test_routes.py.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from importlib import resources

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from jitney.core.request import RequestId
from jitney.server import limits
from jitney.server.call import Call
from jitney.server.error_object import Refusal, retry_headers
from jitney.server.observe.chrome_trace import trace_slices
from jitney.server.observe.monitor import Monitor
from jitney.server.observe.recorder import EVERYONE, Viewer
from jitney.server.page import FILES
from jitney.server.page.state import PageState
from jitney.server.service import Service

_log = logging.getLogger("jitney.server")

OPEN_PATHS = frozenset(FILES)
"""Paths that need no key: files of the package, the same for everyone."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PROTECTION = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
LIVE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
"""Headers of what is so only now."""


def make_router(service: Service, monitor: Monitor, state: PageState) -> APIRouter:
    """The page, what it asks for, and the recorder's trace."""
    router = APIRouter(include_in_schema=False)
    # Until it is sent: another one would take as long, and as much memory. One for each key, so
    # that who does not read keeps nobody else from theirs.
    tracing: set[Viewer] = set()
    for path, (name, kind) in FILES.items():
        router.add_api_route(path, _file_route(name, kind), methods=["GET", "HEAD"])

    @router.get("/page/state")
    async def page_state(
        request: Request,
        after: int = Query(0, ge=0, le=2**53),
        requests: bool = False,
    ) -> Response:
        viewer = viewer_of(service, request)
        content = await state.state(viewer, after, wants_requests=requests)
        return Response(content, media_type="application/json", headers=LIVE)

    @router.get("/page/requests/{request_id}")
    async def page_request(request: Request, request_id: str) -> Response:
        fields = state.request(viewer_of(service, request), RequestId(request_id))
        if fields is None:
            raise Refusal(
                "request_not_found", "The request is not known here, or no longer.", headers=LIVE
            )
        return JSONResponse(fields, headers=LIVE)

    @router.get("/debug/trace")
    async def debug_trace(request: Request, whole: bool = False) -> Response:
        viewer, now = viewer_of(service, request), monitor.clock.now()
        if viewer in tracing:
            raise Refusal(
                "trace_under_way",
                "A trace is being made already; try again in a moment.",
                headers=retry_headers(1.0),
            )
        slices = trace_slices(monitor.recorder, now, viewer, is_whole=whole)
        tracing.add(viewer)
        return _Trace(slices, partial(tracing.discard, viewer))

    return router


class _Trace(StreamingResponse):
    """A trace on its way, each slice made when the one before is sent; calls `ended` in the end.

    A subclass, because that is what the framework takes for a response. Slices are made by the
    framework's own threads, one at a time.
    """

    def __init__(self, slices: Iterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(slices, media_type="application/json", headers=LIVE)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, within TRACE_S_MAX."""
        try:
            async with asyncio.timeout(limits.TRACE_S_MAX):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            _log.info("a trace was not read within %g s; it is cut", limits.TRACE_S_MAX)
        finally:
            self._ended()


def viewer_of(service: Service, request: Request) -> Viewer:
    """Without keys everyone sees everything; with keys, what is one's own key's."""
    if service.keys.is_open:
        return EVERYONE
    return Viewer(Call.of(request.scope).caller.name)


def _file_route(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    content = resources.files("jitney.server.page").joinpath(name).read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'

    async def send(request: Request) -> Response:
        headers = {**_PROTECTION, "etag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return send
