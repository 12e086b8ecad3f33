"""Routes of the page and its data, of the recorder's trace, and for monitoring programs.

Event loop, but a thread makes the trace.

The page itself holds no data and needs no key, so that it can ask for one. The routes of its data
need a key, and each key sees its own requests. The page has no inline script or style, and a policy
forbids them, so that no text of a stranger can run as markup. Metrics and statistics are of the
whole server.

Tests: tests/e2e/page/test_routes.py and tests/e2e/server/test_inspection.py.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from importlib import resources

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from jitney.core.request import RequestId
from jitney.server import limits
from jitney.server.admission.calls import Call
from jitney.server.error_object import Refusal, retry_headers
from jitney.server.http.shared_value import SharedValue
from jitney.server.observe.chrome_trace import trace_slices
from jitney.server.observe.metrics import CONTENT_TYPE
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
"""Headers of data that is true only now."""


def make_page_router(service: Service, monitor: Monitor, state: PageState) -> APIRouter:
    """The page, its data, and the recorder's trace."""
    router = APIRouter(include_in_schema=False)
    # Who gets a trace now: one trace at a time, because each takes time and memory. One for each
    # key, so that a slow reader blocks nobody else.
    tracing: set[Viewer] = set()
    for path, (name, kind) in FILES.items():
        router.add_api_route(path, _file_route(name, kind), methods=["GET", "HEAD"])

    @router.get("/page/state")
    async def page_state(
        request: Request, after: int = Query(0, ge=0, le=2**53), requests: bool = False
    ) -> Response:
        viewer = _viewer_of(service, request)
        return _json(await state.state(viewer, after, wants_requests=requests))

    @router.get("/page/requests/{request_id}")
    async def page_request(request: Request, request_id: str) -> Response:
        content = state.request(_viewer_of(service, request), RequestId(request_id))
        if content is None:
            message = "The request is not known here, or not any more."
            raise Refusal("request_not_found", message, headers=LIVE)
        return _json(content)

    @router.get("/debug/trace")
    async def debug_trace(request: Request, whole: bool = False) -> Response:
        viewer, now = _viewer_of(service, request), monitor.clock.now()
        if viewer in tracing:
            message = "A trace is already being made; try again in a moment."
            raise Refusal("trace_under_way", message, headers=retry_headers(1.0))
        slices = trace_slices(monitor.recorder, now, viewer, is_whole=whole)
        tracing.add(viewer)
        return _Trace(slices, partial(tracing.discard, viewer))

    return router


def make_monitoring_router(service: Service, monitor: Monitor, state: PageState) -> APIRouter:
    """`/metrics` unless it is switched off, `/stats` and `/slots`."""
    router = APIRouter()
    rendered = SharedValue(monitor.metrics.render)

    async def metrics() -> Response:
        """All metrics, in Prometheus' format."""
        return Response(await rendered.get(), media_type=CONTENT_TYPE)

    if service.settings.enable_metrics:
        router.add_api_route("/metrics", metrics, response_class=Response)

    @router.get("/stats")
    async def stats() -> Response:
        """Counters and averages since the start, and the state of the engine."""
        return _json(msgspec.json.encode(service.engine.stats()))

    @router.get("/slots")
    async def slots(request: Request, fail_on_no_slot: bool = False) -> Response:
        """Which request runs in which slot, in llama-server's form."""
        snapshot = service.engine.snapshot()
        # Background requests give their slots to live ones.
        taken_count = snapshot.running_count - snapshot.background_running
        if fail_on_no_slot and taken_count >= snapshot.slot_count:
            raise Refusal("no_slot", "Every slot is taken.", headers=LIVE)
        detail = await state.look()
        if detail is None:
            raise Refusal(
                "no_answer",
                "The engine has not reported its slots yet; it may be stuck in a forward pass: "
                "see /health, and try again later.",
                headers=LIVE,
            )
        content = await state.slots(detail, _viewer_of(service, request))
        seen_ms = (monitor.clock.now() - detail.at) * 1e3
        return _json(content, {**LIVE, "x-jitney-seen-ms": f"{seen_ms:.0f}"})

    return router


class _Trace(StreamingResponse):
    """Sends a trace; each slice is made after the one before was sent. Calls `ended` at the end.

    A subclass, because the framework needs one for a response. The framework's threads make the
    slices, one at a time.
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
            _log.info("A trace was not read within %g s; it is cut", limits.TRACE_S_MAX)
        finally:
            self._ended()


def _json(content: bytes, headers: Mapping[str, str] = LIVE) -> Response:
    return Response(content, media_type="application/json", headers=headers)


def _viewer_of(service: Service, request: Request) -> Viewer:
    """Without keys everyone sees everything; with keys, only the requests of their own key."""
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
