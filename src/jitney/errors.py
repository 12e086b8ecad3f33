"""The tree of errors: every failure that a person or a caller may meet, and who can act on it.

    JitneyError
    |- RequestError            the caller can mend the request
    |  |- InvalidRequest         a value is out of range, or two values do not go together
    |  |- ContextLengthExceeded  the prompt does not fit the model
    |  `- UnsupportedField       asked for something this build or backend does not do
    |- CapacityError           nothing is wrong with the request; the caller may try later
    |  |- QueueFull              the waiting line is at its bound; carries a computed retry time
    |  |- Draining               the engine takes no new work
    |  `- DeadlineExceeded       the request's own time limit passed
    |- SetupError              the operator can mend the set-up
    |  |- ConfigError            a setting is unknown, unreadable or impossible
    |  |- ModelError             the model file is missing, damaged or not usable here
    |  |  `- NoRoom                 memory, disk or time did not suffice just now
    |  `- MissingDependency      an optional package is not installed
    `- EngineError             our side failed
       |- BackendFailed          a forward pass failed in a way that leaves the backend usable
       |- BackendCrashed         the backend is gone; a new one can be started
       `- EngineStopped          the engine ended before the request did

Messages are one sentence or two for people: what, why, what to do. They carry no addresses.

Tests: tests/unit/server/test_error_object.py.
"""


class JitneyError(Exception):
    """The root: catch this to catch everything that jitney raises on purpose."""


class RequestError(JitneyError, ValueError):
    """The request itself is at fault; `parameter` names the field when one is to blame."""

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class InvalidRequest(RequestError):
    """A value is out of range, or two values do not go together."""


class ContextLengthExceeded(RequestError):
    """The prompt does not leave room for a single token of completion."""


class UnsupportedField(RequestError):
    """The field is known, but this build or backend does not support it."""


class CapacityError(JitneyError):
    """The engine has no room now; the same request may succeed later."""


class QueueFull(CapacityError):
    """The waiting line is at its bound. `retry_after_s` is computed from the measured rate."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Draining(CapacityError):
    """The engine is finishing what it has and takes nothing new."""


class DeadlineExceeded(CapacityError, TimeoutError):
    """The request's own time limit passed, while waiting or while running."""


class SetupError(JitneyError):
    """Something about this installation or configuration must be changed by its operator."""


class ConfigError(SetupError):
    """A setting is unknown, cannot be read, or cannot be combined with another."""


class ModelError(SetupError):
    """The model file is missing, damaged, or cannot be run here."""


class NoRoom(ModelError):
    """Memory, disk or time did not suffice just now; at another moment it may work."""


class MissingDependency(SetupError):
    """An optional package is needed and not installed; the message says which extra brings it."""


class EngineError(JitneyError):
    """Our side failed; the request was fine."""


class BackendFailed(EngineError):
    """A forward pass failed and the backend lives: its memory is to be reset before it goes on."""


class BackendCrashed(EngineError):
    """The backend is gone (a process died, or stopped answering); a new one must be started.

    `signal` is the number of the signal that ended the process, when one did. `was_reached` is
    false when it was gone before the batch came: then nothing in the batch is to blame.
    `is_wanted` is true when it was closed by us, so that there is nothing to report.
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


class EngineStopped(EngineError):
    """The engine ended, or was closed, before the request did."""
