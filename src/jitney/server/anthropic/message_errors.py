"""Errors in Anthropic's form, made from the refusals of `jitney.server.error_object`. Pure.

Every code has one of Anthropic's types. Most keep their status; what their clients know under
another one gets that: a server that has no room is 529, a deadline is 504.
"""

import re
from collections.abc import Iterable, Mapping

from jitney.server.error_object import TIMEOUT, UNAVAILABLE, Refusal
from jitney.server.openai.replies import Json

PATH = "/v1/messages"
MODELS_PATH = "/v1/models"

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_TOO_LONG = re.compile(r"has (\d+) tokens, the context holds (\d+)")


def is_asked(path: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a call wants Anthropic's form, by its path; and for models, which both interfaces
    have, by the header `anthropic-version`."""
    if path == PATH or path.startswith(f"{PATH}/"):
        return True
    if path != MODELS_PATH and not path.startswith(f"{MODELS_PATH}/"):
        return False
    return any(name == b"anthropic-version" for name, _ in headers)


def status_of(refusal: Refusal) -> int:
    """The status that Anthropic's clients know."""
    if refusal.type == UNAVAILABLE and refusal.status == 503:
        return 529
    return 504 if refusal.type == TIMEOUT else refusal.status


def error_body(refusal: Refusal, http_id: str) -> Json:
    """The error object."""
    status = status_of(refusal)
    usual = "invalid_request_error" if status < 499 else "api_error"
    return {
        "type": "error",
        "error": {"type": _TYPES.get(status, usual), "message": _message(refusal)},
        "request_id": http_id,
    }


def _message(refusal: Refusal) -> str:
    """The message, with the field in it: there is no other place. Where a prompt is too long, it is
    as agents look for it before they shorten it."""
    if refusal.code != "context_length_exceeded":
        is_named = refusal.param is None or refusal.param in refusal.message
        return refusal.message if is_named else f"{refusal.param}: {refusal.message}"
    found = _TOO_LONG.search(refusal.message)
    if found is None:
        return f"prompt is too long: {refusal.message}"
    return f"prompt is too long: {found[1]} tokens > {found[2]} maximum"
