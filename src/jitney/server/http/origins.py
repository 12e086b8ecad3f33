"""Answers what browsers ask before a page of another origin may call: `Preflight`.

Plain ASGI, outside of what marks the other answers. An origin that was allowed may send any
header, because clients send many of their own; who is refused gets an error like all others.
"""

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from jitney.server.http.middleware import answer, header
from jitney.server.openai.error_object import Refusal

METHODS = ("GET", "POST")

EXPOSED = (
    "x-request-id",
    "x-jitney-queue-position",
    "x-jitney-queue-ms",
    "x-jitney-first-token-ms",
    "x-jitney-total-ms",
    "x-should-retry",
    "retry-after",
    "retry-after-ms",
)
"""Headers of answers that a page may read."""

MAX_AGE_S = 600
"""How long a browser may remember the answer."""


class Preflight:
    """Answers preflights itself, and passes everything else on."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "OPTIONS":
            await self._app(scope, receive, send)
            return
        origin = header(scope, b"origin")
        method = header(scope, b"access-control-request-method")
        if origin is None or method is None:
            await self._app(scope, receive, send)
            return
        try:
            headers = self._allowed(origin.decode("latin-1"), method.decode("latin-1"))
        except Refusal as refusal:
            await answer(refusal, scope, receive, send)
            return
        wanted = header(scope, b"access-control-request-headers")
        if wanted is not None:
            headers["access-control-allow-headers"] = wanted.decode("latin-1")
        if header(scope, b"access-control-request-private-network") is not None:
            headers["access-control-allow-private-network"] = "true"
        await Response(status_code=204, headers=headers)(scope, receive, send)

    def _allowed(self, origin: str, method: str) -> dict[str, str]:
        is_any = "*" in self._origins
        varies = {"vary": "origin, access-control-request-method, access-control-request-headers"}
        if not is_any and origin not in self._origins:
            raise Refusal(
                "origin_not_allowed",
                "Pages of this origin may not call this server; its operator can allow them with "
                "--cors-origin.",
                headers=varies,
            )
        if method not in METHODS:
            raise Refusal(
                "method_not_allowed",
                f"Pages of other origins may call with {' and '.join(METHODS)} only.",
                headers={"access-control-allow-origin": "*" if is_any else origin, **varies},
            )
        return {
            "access-control-allow-origin": "*" if is_any else origin,
            "access-control-allow-methods": ", ".join(METHODS),
            "access-control-max-age": str(MAX_AGE_S),
            **varies,
        }
