"""What surrounds every request: ids, keys, hosts, drain, and the last line of defence.

Plain ASGI, because anything that wraps responses would hide that a client has left. Decisions are
made on `scope["path"]`, never on an address put together from headers a caller controls.
"""

import logging
import re
import uuid
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jitney.engine.answer import Usage
from jitney.errors import JitneyError, NoRoom
from jitney.server import limits
from jitney.server.openai.error_object import (
    ClientLeft,
    Refusal,
    refusal_of,
)
from jitney.server.service import Service

_log = logging.getLogger("jitney.server")

WORK_PATHS = frozenset({"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"})
"""Where work comes in: counted, limited by a key's rate, and refused while draining."""

_SANE_ID = re.compile(rb"[\x21-\x7e]{1,%d}" % limits.REQUEST_ID_CHARACTERS_MAX)


class Front:
    """Outermost: an id for every answer, one line in the log, and no exception gets past it."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at = self._service.clock.now()
        http_id = _http_id(header(scope, b"x-request-id"))
        scope.setdefault("state", {}).update(http_id=http_id, arrived_at=started_at)
        status: int | None = None
        # The connection knows whether it can be kept; where there is none, it is nobody's concern.
        must_end = scope.get("extensions", {}).get("jitney.must_end", bool)

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(b"x-request-id", http_id.encode())]
                if self._service.is_draining or must_end():
                    extra.append((b"connection", b"close"))
                names = {name for name, _ in extra}
                kept = [each for each in message["headers"] if each[0] not in names]
                message = {**message, "headers": [*kept, *extra]}
            await send(message)

        try:
            _check_head(scope)
            await self._app(scope, receive, send_marked)
        except ClientLeft:
            status = 499
        except Exception as error:
            refusal = told(error, http_id)
            if status is None:
                await answer(refusal, scope, receive, send_marked)
            else:
                raise
        finally:
            self._note(scope, http_id, status, started_at)

    def _note(self, scope: Scope, http_id: str, status: int | None, started_at: float) -> None:
        # The pattern that matched, never the path itself: a label must not be a caller's to choose.
        route = getattr(scope.get("route"), "path", "other")
        for listener in self._service.answer_listeners:
            listener(route, 499 if status is None else status, scope["state"].get("refused"))
        _log.info(
            "%s %s %s %s %.0f ms%s",
            http_id,
            scope["method"][: limits.METHOD_CHARACTERS_MAX],
            # Escaped: a path may hold anything that can be written in percent signs.
            ascii(scope["path"][: limits.NAME_CHARACTERS_MAX])[1:-1],
            status,
            (self._service.clock.now() - started_at) * 1e3,
            _known(scope["state"]),
        )


class Guard:
    """Lets in who may: the host, the key, its rate, and whether there is room.

    `open_paths` are answered without a key.
    """

    def __init__(self, app: ASGIApp, service: Service, open_paths: frozenset[str]) -> None:
        self._app = app
        self._service = service
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        service = self._service
        try:
            _check_host(header(scope, b"host"), service.settings.allowed_host)
            if scope["path"] not in self._open_paths:
                caller = service.keys.caller(header(scope, b"authorization"))
                scope["state"]["caller"] = caller
            if scope["path"] not in WORK_PATHS or scope["method"] != "POST":
                await self._app(scope, receive, send)
                return
            with service.working(caller) as begin, service.holding() as hold:
                caller.enter()
                scope["state"].update(intake=service.intake, hold=hold, begin=begin)
                await self._app(scope, receive, send)
        except (Refusal, JitneyError) as error:
            await answer(refusal_of(error), scope, receive, send)


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of this name."""
    found: bytes | None = next((value for key, value in scope["headers"] if key == name), None)
    return found


def told(error: Exception, http_id: str) -> Refusal:
    """What the caller is told; what it is not told is logged, once."""
    if isinstance(error, Refusal):
        return error
    if _is_out_of_memory(error):
        error = NoRoom("the system gave no memory for it")
    if isinstance(error, JitneyError):
        refusal = refusal_of(error)
        if refusal.untold is not None:
            _log.warning("%s: %s", http_id, refusal.untold)
        return refusal
    reference = uuid.uuid4().hex[:12]
    _log.error("%s: unexpected, reference %s", http_id, reference, exc_info=error)
    message = f"Something unexpected happened on our side; its reference is {reference}."
    return Refusal("internal_error", message)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether the system refused memory: for a value, or for the stack of a thread."""
    is_thread = isinstance(error, RuntimeError) and str(error) == "can't start new thread"
    return isinstance(error, MemoryError) or is_thread


async def answer(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an error."""
    scope.setdefault("state", {})["refused"] = refusal.reason
    response = JSONResponse(refusal.body, refusal.status, headers=refusal.headers)
    await response(scope, receive, send)


def _known(state: Mapping[str, Any]) -> str:  # Any: whatever was noted on the way
    """Who asked, the id that its name on the page begins with, and its tokens, for the log.

    Escaped, because callers choose some of these words.
    """
    caller, usages = state.get("caller"), state.get("usages")
    counted: list[Usage] = [] if usages is None else usages()
    words = {
        "key": caller.name if caller is not None and caller.name else None,
        "user": state.get("user"),
        "id": state.get("reply_id"),
    }
    said = "".join(f" {name}={word!a}" for name, word in words.items() if word is not None)
    if counted:
        prompt_count = sum(each.prompt_count for each in counted)
        said += f" tokens={prompt_count}+{sum(each.completion_count for each in counted)}"
    return said


def _http_id(given: bytes | None) -> str:
    """The caller's own id when it is sane, else one of ours."""
    if given is not None and _SANE_ID.fullmatch(given):
        return given.decode("ascii")
    return f"req-{uuid.uuid4().hex}"


def _check_head(scope: Scope) -> None:
    """What the protocol lets pass."""
    code = ""
    if len(scope["raw_path"]) + len(scope["query_string"]) > limits.ADDRESS_BYTES_MAX:
        code, message = "uri_too_long", "The address is too long."
    elif not scope["path"].isprintable():
        # What matches paths takes no notice of a newline at their end.
        code, message = "invalid_http", "The address holds a control character."
    elif header(scope, b"content-length") and header(scope, b"transfer-encoding"):
        # Two readers could disagree on where this request ends.
        code = "invalid_http"
        message = "The request has both Content-Length and Transfer-Encoding."
    if code:
        raise Refusal(code, message, headers={"connection": "close"})


def _check_host(host: bytes | None, allowed: tuple[str, ...]) -> None:
    if not allowed or "*" in allowed:
        return
    name = (host or b"").decode("latin-1").lower()
    bare = name.rsplit(":", 1)[0] if not name.endswith("]") else name
    if name not in allowed and bare not in allowed:
        raise Refusal(
            "unknown_host",
            "This server is not called by the name in the Host header; whoever runs it can allow "
            "the name with --allowed-host.",
        )


def error_headers(headers: Mapping[str, Any] | None) -> dict[str, str]:
    """Those of the framework's own refusals that matter to a caller."""
    return {name: str(value) for name, value in (headers or {}).items()}
