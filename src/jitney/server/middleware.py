"""Runs around every request: `RequestContext` outside, then `Cors` and `AccessCheck`; and
`AnswerRoutes` within them. Event loop.

Plain ASGI, because a wrapper around responses would hide that a client has left. Every scope is
HTTP: the server runs without ASGI's lifespan and without websockets. Decisions use
`scope["path"]`, never an address made from headers that a caller controls.

A browser sends a form of any page, and asks nobody: so calls that may change something are checked
here as well. An allowed origin may send any header, because clients send many of their own.
Starlette refuses with plain text; here a refused preflight gets an error in OpenAI's form.

Tests: tests/e2e/server/test_rows_http.py, test_origins.py and test_log.py.
"""

import logging
import re
from collections.abc import Sequence

from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jitney.errors import JitneyError
from jitney.server import limits
from jitney.server.admission.calls import Call
from jitney.server.anthropic import message_errors as anthropic
from jitney.server.error_object import ClientLeft, Refusal, refusal_for, refusal_of
from jitney.server.service import Service

_log = logging.getLogger("jitney.server")

ANSWER_PATHS = frozenset(
    {"/v1/completions", "/v1/chat/completions", "/v1/responses", anthropic.PATH}
)

WORK_PATHS = ANSWER_PATHS | {"/tokenize", "/detokenize", f"{anthropic.PATH}/count_tokens"}
"""Paths that bring work: counted, limited by a key's rate, and refused during a drain."""

_VALID_ID = re.compile(rf"[\x21-\x7e]{{1,{limits.REQUEST_ID_CHARACTERS_MAX}}}")

METHODS = ("GET", "POST", "DELETE")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
"""They change nothing."""

EXPOSED = (
    "x-request-id",
    "request-id",
    "x-jitney-ignored",
    "x-jitney-queue-position",
    "x-jitney-queue-ms",
    "x-jitney-first-token-ms",
    "x-jitney-total-ms",
    "x-should-retry",
    "retry-after",
    "retry-after-ms",
)
"""Headers of responses that a page may read."""

_NOT_ALLOWED = (
    "Pages of this origin may not call this server; its operator can allow them with --cors-origin."
)


class ErrorResponse(JSONResponse):
    """A refusal as a response, in the form of the interface that was called. It writes its reason
    into the call."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.body, refusal.status, headers=refusal.headers)
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        call, refusal = Call.of(scope), self._refusal
        call.refused = refusal.reason
        if not anthropic.is_asked(scope["path"], scope["headers"]):
            await super().__call__(scope, receive, send)
            return
        body, status = anthropic.error_body(refusal, call.id), anthropic.status_of(refusal)
        await JSONResponse(body, status, headers=refusal.headers)(scope, receive, send)


class RequestContext:
    """Outermost: gives every response an id and one log line, and catches every exception."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = Headers(scope=scope)
        own_id = headers.get("x-request-id", "")
        http_id = own_id if _VALID_ID.fullmatch(own_id) else f"req-{self._service.fresh_ids.take()}"
        call = Call(http_id, self._service.clock.now())
        scope.setdefault("state", {})["call"] = call
        status: int | None = None
        # The connection knows whether it stays open; tests may have no connection.
        must_end = scope.get("extensions", {}).get("jitney.must_end", bool)

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # OpenAI's clients read the one, Anthropic's the other.
                extra = [(name, call.id.encode()) for name in (b"x-request-id", b"request-id")]
                if call.ignored:
                    # Names of our own tables, never text of the caller.
                    extra.append((b"x-jitney-ignored", ", ".join(call.ignored).encode()))
                if self._service.admission.is_draining or must_end():
                    extra.append((b"connection", b"close"))
                names = {name for name, _ in extra}
                others = [each for each in message["headers"] if each[0] not in names]
                message = {**message, "headers": [*others, *extra]}
            await send(message)

        try:
            _check_head(scope, headers)
            await self._app(scope, receive, send_marked)
        except ClientLeft:
            status = 499
        except Exception as error:
            refusal = refusal_for(error, call.id)
            if status is None:
                await ErrorResponse(refusal)(scope, receive, send_marked)
            else:
                raise
        finally:
            self._note(scope, call, status)

    def _note(self, scope: Scope, call: Call, status: int | None) -> None:
        # The pattern that matched, never the path: a caller must not choose a label of the metrics.
        route = getattr(scope.get("route"), "path", "other")
        for listener in self._service.response_listeners:
            listener(route, 499 if status is None else status, call.refused)
        _log.info(
            "%s %s %s %s %.0f ms%s",
            call.id,
            scope["method"][: limits.METHOD_CHARACTERS_MAX],
            # Escaped, because a path may contain any character.
            ascii(scope["path"][: limits.NAME_CHARACTERS_MAX])[1:-1],
            status,
            (self._service.clock.now() - call.arrived_at) * 1e3,
            _log_fields(call),
        )


class AccessCheck:
    """Checks the host, the origin, the key, its rate, and whether there is room.

    `open_paths` are answered without a key.
    """

    def __init__(self, app: ASGIApp, service: Service, open_paths: frozenset[str]) -> None:
        self._app = app
        self._service = service
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        service, call, headers = self._service, Call.of(scope), Headers(scope=scope)
        try:
            _check_host(headers, service.settings.allowed_host)
            if service.keys.is_open:
                # Else a right key is needed, which no foreign page can know.
                check_origin(scope["method"], headers, service.settings.cors_origin)
            if scope["path"] not in self._open_paths:
                names = ("authorization", "x-api-key")
                authorization, key = (headers.get(name, "").encode("latin-1") for name in names)
                call.caller = service.keys.caller(authorization, key)
            if scope["path"] not in WORK_PATHS or scope["method"] != "POST":
                await self._app(scope, receive, send)
                return
            with service.admission.place(call.caller) as call.place:
                call.caller.enter()
                await self._app(scope, receive, send)
        except (Refusal, JitneyError) as error:
            await ErrorResponse(refusal_of(error))(scope, receive, send)


class AnswerRoutes:
    """Calls the endpoints that make tokens."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._routes = {
            each.path: each
            for each in routes
            if isinstance(each, APIRoute) and each.path in ANSWER_PATHS
        }
        assert self._routes.keys() == ANSWER_PATHS, "all endpoints exist"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        route = scope["route"] = self._routes[scope["path"]]
        response: Response
        try:
            response = await route.endpoint(Request(scope, receive, send))
        except (Refusal, JitneyError) as error:
            # Here, as the framework does: within the call's place, and with a line of log.
            response = ErrorResponse(refusal_for(error, Call.of(scope).id))
        await response(scope, receive, send)


def around(app: ASGIApp, service: Service, open_paths: frozenset[str]) -> ASGIApp:
    """The application with all layers around it."""
    app = AccessCheck(app, service, open_paths)
    if service.settings.cors_origin:
        app = Cors(app, service.settings.cors_origin)
    return RequestContext(app, service)


def check_origin(method: str, headers: Headers, allowed: tuple[str, ...]) -> None:
    """Raise Refusal if a page of another origin makes a call that may change something.

    Programs send neither of the two headers. Browsers send both, and let no page set them; to
    addresses without TLS, other than this machine's, they send `Origin` alone.
    """
    origin, site = headers.get("origin", ""), headers.get("sec-fetch-site", "")
    if method in _SAFE_METHODS or "*" in allowed or origin in allowed:
        return
    # A proxy may have ended TLS, so the scheme is not compared.
    own, host = headers.get("host", "").lower(), origin.lower().partition("://")[2]
    is_foreign = bool(origin) and (not own or host != own)
    if site:
        is_foreign = site not in ("same-origin", "none")
    if is_foreign:
        raise Refusal("origin_not_allowed", _NOT_ALLOWED)


class Cors(CORSMiddleware):
    """Answers preflights itself. A subclass, because Starlette has no other way to change them."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=METHODS,
            allow_headers=("*",),
            allow_private_network=True,
            expose_headers=EXPOSED,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """The response to the request that a browser sends before a call."""
        found = super().preflight_response(request_headers).headers
        headers = {name: value for name, value in found.items() if not name.startswith("content-")}
        if not self.is_allowed_origin(request_headers["origin"]):
            return ErrorResponse(Refusal("origin_not_allowed", _NOT_ALLOWED, headers=headers))
        if request_headers["access-control-request-method"] not in METHODS:
            message = f"Pages of other origins may call with {', '.join(METHODS)} only."
            return ErrorResponse(Refusal("method_not_allowed", message, headers=headers))
        return Response(status_code=204, headers=headers)


def _log_fields(call: Call) -> str:
    """The key, the user, the id of the reply and the tokens, for the log.

    Escaped, because callers choose some of these words.
    """
    # There is no caller on a path that needs no key.
    caller = getattr(call, "caller", None)
    words = {
        "key": None if caller is None else caller.name or None,
        "user": call.user,
        "id": call.reply_id,
    }
    fields = "".join(f" {name}={word!a}" for name, word in words.items() if word is not None)
    counted = call.usages()
    if counted:
        prompt_count = sum(each.prompt_count for each in counted)
        fields += f" tokens={prompt_count}+{sum(each.completion_count for each in counted)}"
    return fields


def _check_head(scope: Scope, headers: Headers) -> None:
    """Check what the protocol does not check."""
    code = ""
    if len(scope["raw_path"]) + len(scope["query_string"]) > limits.ADDRESS_BYTES_MAX:
        code, message = "uri_too_long", "The address is too long."
    elif not scope["path"].isprintable():
        # The router ignores a newline at the end of a path.
        code, message = "invalid_http", "The address holds a control character."
    elif headers.get("content-length") and headers.get("transfer-encoding"):
        # Two readers could disagree on where this request ends.
        code = "invalid_http"
        message = "The request has both Content-Length and Transfer-Encoding."
    if code:
        raise Refusal(code, message, headers={"connection": "close"})


def _check_host(headers: Headers, allowed: tuple[str, ...]) -> None:
    if not allowed or "*" in allowed:
        return
    name = headers.get("host", "").lower()
    bare = name.rsplit(":", 1)[0] if not name.endswith("]") else name
    if name not in allowed and bare not in allowed:
        raise Refusal(
            "unknown_host",
            "This server is not called by the name in the Host header; whoever runs it can allow "
            "the name with --allowed-host.",
        )
