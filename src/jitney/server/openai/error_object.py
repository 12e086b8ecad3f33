"""From an exception to an HTTP status and OpenAI's error object. Pure; any thread.

One table holds every class of `jitney.errors`. Messages about a request are passed on, because
they are written for its author; those about our own side are not, because they may name files:
they are logged, and the caller gets a fixed sentence.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jitney import errors
from jitney.server.limits import RETRY_AFTER_S_MAX

INVALID = "invalid_request_error"
AUTHENTICATION = "authentication_error"
RATE = "rate_limit_error"
UNAVAILABLE = "unavailable_error"
TIMEOUT = "timeout_error"
SERVER = "server_error"

NO_RETRY = {"x-should-retry": "false"}
"""OpenAI's clients send a request again after a status of 408, 429 or 5xx unless told not to."""


@dataclass(frozen=True, slots=True)
class Told:
    """How one class of errors is told; `sentence` replaces the message where it is given.

    `opening` comes before a message, for programs that know an error by OpenAI's words for it.
    """

    status: int
    type: str
    code: str
    sentence: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    opening: str = ""


TABLE: Mapping[type[errors.JitneyError], Told] = {
    errors.JitneyError: Told(
        500, SERVER, "internal_error", "Something went wrong on our side; try again."
    ),
    errors.RequestError: Told(400, INVALID, "invalid_value"),
    errors.InvalidRequest: Told(400, INVALID, "invalid_value"),
    errors.ContextLengthExceeded: Told(
        400,
        INVALID,
        "context_length_exceeded",
        opening="This model's maximum context length is exceeded: ",
    ),
    errors.UnsupportedField: Told(400, INVALID, "unsupported_parameter"),
    errors.CapacityError: Told(503, UNAVAILABLE, "unavailable"),
    errors.QueueFull: Told(429, RATE, "rate_limit_exceeded"),
    errors.Draining: Told(
        503,
        UNAVAILABLE,
        "shutting_down",
        "The server is shutting down and takes no new requests.",
        {"connection": "close"},
    ),
    errors.DeadlineExceeded: Told(408, TIMEOUT, "deadline_exceeded", headers=NO_RETRY),
    errors.SetupError: Told(
        500, SERVER, "setup_error", "The server is not set up for this; tell its operator.",
    ),
    errors.ConfigError: Told(
        500, SERVER, "setup_error", "The server is not set up for this; tell its operator.",
    ),
    errors.ModelError: Told(
        400,
        INVALID,
        "unsupported_by_model",
        "This model cannot do that: its chat template is missing, or fails on these messages.",
    ),
    errors.NoRoom: Told(
        503,
        UNAVAILABLE,
        "no_room",
        "The server has no room for this at the moment; try again later.",
        {"retry-after": "5"},
    ),
    errors.MissingDependency: Told(
        500, SERVER, "setup_error", "The server lacks a package for this; tell its operator.",
    ),
    errors.EngineError: Told(
        500, SERVER, "engine_error", "The engine failed while it ran this request; try again."
    ),
    errors.BackendFailed: Told(
        500, SERVER, "backend_failed", "The model failed while it ran this request; try again."
    ),
    errors.BackendCrashed: Told(
        503,
        UNAVAILABLE,
        "backend_crashed",
        "The model is being started again; try again in a moment.",
        {"retry-after": "5"},
    ),
    errors.EngineStopped: Told(
        503, UNAVAILABLE, "engine_stopped", "The engine has stopped and takes no requests."
    ),
}  # fmt: skip


class Refusal(Exception):
    """An HTTP answer that is an error, decided before the engine was asked."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        type: str = INVALID,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.type = type
        self.headers = dict(headers or {})
        self.reason = code or type
        """What metrics count it under: the name of the engine's error where it comes from one."""

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


def refusal_of(error: errors.JitneyError) -> Refusal:
    """The answer to a caller whose request met this error."""
    told = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    headers = dict(told.headers)
    if isinstance(error, errors.QueueFull):
        headers.update(retry_headers(error.retry_after_s))
    param = error.parameter if isinstance(error, errors.RequestError) else None
    refusal = Refusal(
        told.status,
        told.sentence or sentence(told.opening + str(error)),
        code=told.code,
        param=param,
        type=told.type,
        headers=headers,
    )
    refusal.reason = type(error).__name__
    return refusal


def hides_message(error: errors.JitneyError) -> bool:
    """Whether the caller is not told the message, so that it must be logged."""
    told = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    return told.sentence is not None


def unexpected(reference: str) -> Refusal:
    """The answer to an error that nobody foresaw; the log has the rest under the reference."""
    return Refusal(
        500,
        f"Something unexpected happened on our side; its reference is {reference}.",
        code="internal_error",
        type=SERVER,
    )


def retry_headers(seconds: float) -> dict[str, str]:
    """When to come back, in the header of HTTP and in that of OpenAI's clients."""
    bounded = min(max(seconds, 0.05), float(RETRY_AFTER_S_MAX))
    return {
        "retry-after": str(max(1, math.ceil(bounded))),
        "retry-after-ms": str(math.ceil(bounded * 1e3)),
    }


def sentence(text: str) -> str:
    """A message that begins with a capital where it begins with an article, not with a name."""
    is_plain = text.split(" ", 1)[0] in ("a", "an", "the", "each", "no", "it")
    return text[0].upper() + text[1:] if is_plain else text


class ClientLeft(Exception):
    """The client closed the connection: there is nobody to answer."""
