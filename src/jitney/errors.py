"""The tree of errors: every failure that a caller may get, and who can act on it.

    JitneyError
    |- RequestError            the caller can correct the request
    |  |- InvalidRequest         a value is out of range, or two values contradict each other
    |  |- ContextLengthExceeded  the prompt does not fit the model
    |  `- UnsupportedField       this build or backend does not support the field
    |- CapacityError           the request is fine; the caller may try later
    |  |- QueueFull              the queue is full; carries a computed retry time
    |  |- Draining               the engine accepts no new requests
    |  `- DeadlineExceeded       the request's own time limit passed
    |- SetupError              the operator can correct the set-up
    |  |- ConfigError            a setting is unknown, unreadable or impossible
    |  |- ModelError             the model file is missing, damaged or not usable here
    |  |  `- NoRoom                 not enough memory, disk or time at the moment
    |  `- MissingDependency      an optional package is not installed
    `- EngineError             our side failed
       |- BackendFailed          a forward pass failed in a way that leaves the backend usable
       |- BackendCrashed         the backend is gone; a new one can be started
       |  `- InputCrashed           it ended while it read the request, which may be the cause
       `- EngineStopped          the engine ended before the request did

Messages are one or two sentences for people: what, why, what to do. They hold no memory addresses.

Tests: tests/unit/server/test_error_object.py.
"""


class JitneyError(Exception):
    """The root of all errors that jitney raises on purpose."""


class RequestError(JitneyError, ValueError):
    """The request is wrong. `parameter` names the field, if it is one field.

    The field may have another name in another interface, and `parameter` may be changed to it. With
    `is_predicate` the text begins with that name, and the message is what follows it.
    """

    def __init__(
        self, message: str, parameter: str | None = None, *, is_predicate: bool = False
    ) -> None:
        super().__init__(message)
        self.parameter = parameter
        self._is_predicate = is_predicate

    def __str__(self) -> str:
        message = super().__str__()
        return f"{self.parameter} {message}" if self._is_predicate else message


class InvalidRequest(RequestError):
    """A value is out of range, or two values contradict each other."""


class ContextLengthExceeded(RequestError):
    """The prompt leaves no room for a completion token."""


class UnsupportedField(RequestError):
    """The field is known, but this build or backend does not support it."""


class CapacityError(JitneyError):
    """The engine has no room now; the same request may succeed later."""


class QueueFull(CapacityError):
    """The queue is full. `retry_after_s` is computed from the measured rate."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Draining(CapacityError):
    """The engine finishes its requests and accepts no new ones."""


class DeadlineExceeded(CapacityError, TimeoutError):
    """The request's own time limit passed, while waiting or while running."""


class SetupError(JitneyError):
    """The operator must change something in this installation or configuration."""


class ConfigError(SetupError):
    """A setting is unknown, cannot be read, or cannot be combined with another."""


class ModelError(SetupError):
    """The model file is missing, damaged, or cannot be run here."""


class NoRoom(ModelError):
    """There was not enough memory, disk or time. At another moment it may work."""


class MissingDependency(SetupError):
    """An optional package is not installed. The message says which extra brings it."""


class EngineError(JitneyError):
    """Our side failed; the request was fine."""


class BackendFailed(EngineError):
    """A forward pass failed, and the backend still runs. Reset its memory before the next pass."""


class BackendCrashed(EngineError):
    """The backend is gone (a process died, or stopped answering); a new one must be started.

    `signal` is the number of the signal that ended the process, if one did. `was_reached` is false
    if the backend was gone before the batch came: then nothing in the batch is the cause.
    `is_wanted` is true if we closed the backend ourselves: then there is nothing to report.
    """

    def __init__(
        self,
        message: str,
        signal: int | None = None,
        *,
        was_reached: bool = True,
        is_wanted: bool = False,
    ) -> None:
        super().__init__(message)
        self.signal = signal
        self.was_reached = was_reached
        self.is_wanted = is_wanted


class InputCrashed(BackendCrashed):
    """The backend ended while it tokenised the request's text or compiled its constraint.

    That may be the cause, so the request is not to be sent again as it is. `deaths` is how many
    backends have ended so.
    """

    def __init__(self, message: str, signal: int | None = None, *, deaths: int = 1) -> None:
        super().__init__(message, signal)
        self.deaths = deaths


class EngineStopped(EngineError):
    """The engine ended, or was closed, before the request did."""
