"""From an exception to an HTTP status and OpenAI's error object. Any thread.

`CODES` has every code that a caller may get; `TABLE` has every class of `jitney.errors`. Messages
about a request go to its caller, for whom they are written. Messages about our own side may name
files: they go to the log, and the caller gets a fixed sentence.
"""

import logging
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from jitney import errors
from jitney.core import limits

_log = logging.getLogger("jitney.server")

INVALID = "invalid_request_error"
AUTHENTICATION = "authentication_error"
RATE = "rate_limit_error"
UNAVAILABLE = "unavailable_error"
TIMEOUT = "timeout_error"
SERVER = "server_error"

_CODES: Mapping[tuple[int, str], str] = {
    (400, INVALID): (
        "batch_ended batch_not_ended context_length_exceeded file_in_use http_error "
        "idempotency_key_reused invalid_http invalid_json invalid_type invalid_value "
        "missing_required_parameter "
        "too_many_chunks unknown_parameter unsupported_by_model unsupported_parameter"
    ),
    (401, AUTHENTICATION): "invalid_api_key missing_api_key",
    (403, INVALID): "origin_not_allowed",
    (404, INVALID): (
        "batch_not_found file_not_found model_not_found not_found request_not_found "
        "response_not_found"
    ),
    (405, INVALID): "method_not_allowed",
    (408, INVALID): "request_timeout",
    (408, TIMEOUT): "deadline_exceeded",
    (413, INVALID): "request_too_large",
    (414, INVALID): "uri_too_long",
    (415, INVALID): "unsupported_media_type",
    (421, INVALID): "unknown_host",
    (429, RATE): (
        "rate_limit_exceeded storage_limit too_many_batches too_many_files too_many_paused "
        "too_many_responses too_many_uploads trace_under_way"
    ),
    (431, INVALID): "headers_too_large",
    (499, SERVER): "cancelled",
    (500, SERVER): (
        "backend_failed engine_error input_crashed internal_error response_damaged setup_error"
    ),
    (503, UNAVAILABLE): (
        "backend_crashed engine_stopped jobs_unavailable no_answer no_room no_slot shutting_down "
        "too_many_bodies too_many_bytes too_many_connections unavailable"
    ),
    (507, UNAVAILABLE): "disk_full",
}
CODES = {code: kind for kind, codes in _CODES.items() for code in codes.split()}
"""The status and OpenAI's type of each code."""

NO_RETRY = {"x-should-retry": "false"}
"""OpenAI's clients send a request again after a status of 408, 429 or 5xx, unless this is there."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """The reply to one class of errors. `sentence`, if given, replaces the message.

    `opening` comes before the message, for programs that look for OpenAI's words.
    """

    code: str
    sentence: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    opening: str = ""


_SOON = {"retry-after": "5"}
_SETUP = ErrorReply("setup_error", "The server is not set up for this; tell its operator.")

TABLE: Mapping[type[errors.JitneyError], ErrorReply] = {
    errors.JitneyError: ErrorReply(
        "internal_error", "Something went wrong on our side; try again."
    ),
    errors.RequestError: ErrorReply("invalid_value"),
    errors.InvalidRequest: ErrorReply("invalid_value"),
    errors.ContextLengthExceeded: ErrorReply(
        "context_length_exceeded",
        opening="This model's maximum context length is exceeded: ",
    ),
    errors.UnsupportedField: ErrorReply("unsupported_parameter"),
    errors.CapacityError: ErrorReply("unavailable"),
    errors.QueueFull: ErrorReply("rate_limit_exceeded"),
    errors.Draining: ErrorReply(
        "shutting_down",
        "The server is shutting down and takes no new requests.",
        {"connection": "close"},
    ),
    errors.DeadlineExceeded: ErrorReply("deadline_exceeded", headers=NO_RETRY),
    errors.SetupError: _SETUP,
    errors.ConfigError: _SETUP,
    errors.ModelError: ErrorReply(
        "unsupported_by_model",
        "This model cannot do that: its chat template is missing, or fails on these messages.",
    ),
    errors.NoRoom: ErrorReply(
        "no_room", "The server has no room for this at the moment; try again later.", _SOON
    ),
    errors.MissingDependency: ErrorReply(
        "setup_error", "The server lacks a package for this; tell its operator."
    ),
    errors.EngineError: ErrorReply(
        "engine_error", "The engine failed while it ran this request; try again."
    ),
    errors.BackendFailed: ErrorReply(
        "backend_failed", "The model failed while it ran this request; try again."
    ),
    errors.BackendCrashed: ErrorReply(
        "backend_crashed", "The model is being started again; try again in a moment.", _SOON
    ),
    errors.InputCrashed: ErrorReply(
        "input_crashed",
        "The model's process ended while it read this request, which may be the cause; change the "
        "request, or tell the operator.",
        NO_RETRY,
    ),
    errors.EngineStopped: ErrorReply(
        "engine_stopped", "The engine has stopped and takes no requests."
    ),
}


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """What went wrong, in OpenAI's shape."""

    error: ErrorDetail


class Refusal(Exception):
    """An HTTP response that is an error. Its code decides its status and its type."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.type = CODES[code]
        self.code = code
        self.message = message
        self.param = param
        self.headers = dict(headers or {})
        self.reason = code
        """Its label in the metrics: its code, or the name of the engine's error."""
        self.log_message: str | None = None
        """The message for the log, when the caller gets another one."""

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


def refusal_of(error: Refusal | errors.JitneyError) -> Refusal:
    """The refusal that a caller gets for this error."""
    if isinstance(error, Refusal):
        return error
    reply = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    refusal = Refusal(
        reply.code,
        reply.sentence or sentence(reply.opening + str(error)),
        param=error.parameter if isinstance(error, errors.RequestError) else None,
        headers=reply.headers,
    )
    if isinstance(error, errors.QueueFull):
        refusal.headers.update(retry_headers(error.retry_after_s))
    refusal.reason = type(error).__name__
    refusal.log_message = None if reply.sentence is None else str(error)
    return refusal


def refusal_for(error: Exception, http_id: str) -> Refusal:
    """The refusal for any exception. A message that the caller does not get is logged, once."""
    if isinstance(error, Refusal):
        return error
    if _is_out_of_memory(error):
        error = errors.NoRoom("The system gave no memory for it.")
    if isinstance(error, errors.JitneyError):
        refusal = refusal_of(error)
        if refusal.log_message is not None:
            _log.warning("%s: %s", http_id, refusal.log_message)
        return refusal
    reference = uuid.uuid4().hex[:12]
    _log.error("%s: unexpected, reference %s", http_id, reference, exc_info=error)
    message = f"Something unexpected happened on our side; its reference is {reference}."
    return Refusal("internal_error", message)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether the system refused memory: for a value, or for the stack of a thread.

    Python has no class for the second error, so its text is compared.
    """
    is_thread = isinstance(error, RuntimeError) and str(error) == "can't start new thread"
    return isinstance(error, MemoryError) or is_thread


def retry_headers(seconds: float) -> dict[str, str]:
    """When to try again: the header of HTTP, and the one that OpenAI's clients read."""
    bounded = min(max(seconds, 0.05), float(limits.RETRY_AFTER_S_MAX))
    return {
        "retry-after": str(max(1, math.ceil(bounded))),
        "retry-after-ms": str(math.ceil(bounded * 1e3)),
    }


def sentence(text: str) -> str:
    """The message with a capital first letter, unless it begins with a name."""
    is_plain = text.split(" ", 1)[0] in ("a", "an", "the", "each", "no", "it")
    return text[0].upper() + text[1:] if is_plain else text


class ClientLeft(Exception):
    """The client closed the connection: nobody reads a response."""
