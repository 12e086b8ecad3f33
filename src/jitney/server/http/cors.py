"""Calls from pages of other origins: `check_origin`, and `Cors` for preflights. Event loop.

A browser sends a form of any page, and asks nobody: so calls that may change something are checked
here as well. An allowed origin may send any header, because clients send many of their own.
Starlette refuses with plain text; here a refused preflight gets an error in OpenAI's form.

Tests: tests/e2e/server/test_origins.py and test_rows_http.py (row 39).
"""

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from jitney.server.error_object import Refusal
from jitney.server.http.error_response import ErrorResponse

METHODS = ("GET", "POST", "DELETE")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
"""They change nothing."""

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

_NOT_ALLOWED = (
    "Pages of this origin may not call this server; its operator can allow them with --cors-origin."
)


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
