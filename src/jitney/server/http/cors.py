"""Calls from pages of other origins: Starlette's middleware with our own preflights: `Cors`.

An allowed origin may send any header, because clients send many of their own. Starlette refuses
with plain text; here a refused preflight gets an error in OpenAI's form.

Tests: tests/e2e/server/test_rows_http.py (row 39).
"""

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from jitney.server.error_object import Refusal
from jitney.server.http.error_response import ErrorResponse

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
"""Headers of responses that a page may read."""


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
            message = (
                "Pages of this origin may not call this server; its operator can allow them with "
                "--cors-origin."
            )
            return ErrorResponse(Refusal("origin_not_allowed", message, headers=headers))
        if request_headers["access-control-request-method"] not in METHODS:
            message = f"Pages of other origins may call with {' and '.join(METHODS)} only."
            return ErrorResponse(Refusal("method_not_allowed", message, headers=headers))
        return Response(status_code=204, headers=headers)
