"""An error on its way to another process: `SentError`. Any thread may call.

Tests: tests/unit/backends/process/test_messages.py, tests/unit/cluster/test_replica_messages.py.
"""

from collections.abc import Mapping
from typing import Self

import msgspec

from jitney import errors

SENT: Mapping[str, type[errors.JitneyError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and kind is not errors.BackendCrashed
}
"""Errors that keep their class in the other process, whose own backend did not crash."""


class SentError(msgspec.Struct, frozen=True):
    """An error: the name of its class, its text, and the fields of some classes."""

    kind: str
    text: str
    parameter: str | None = None
    retry_after_s: float = 0.0
    deaths: int = 0

    @classmethod
    def of(cls, error: BaseException, by: str) -> Self:
        """The message for an error of this part. One that is not in the table is BackendFailed."""
        kind = type(error).__name__
        # The name of a file may contain bytes that are no character.
        text = str(error).encode(errors="replace").decode()
        if SENT.get(kind) is not type(error):
            text = f"The {by} failed unexpectedly ({kind}: {text})."
            return cls(errors.BackendFailed.__name__, text)
        parameter, deaths = getattr(error, "parameter", None), getattr(error, "deaths", 0)
        return cls(kind, text, parameter, getattr(error, "retry_after_s", 0.0), deaths)

    def error(self) -> errors.JitneyError:
        """The error to raise. One of a later version, which has no name here, is BackendFailed."""
        kind = SENT.get(self.kind, errors.BackendFailed)
        if issubclass(kind, errors.RequestError):
            return kind(self.text, self.parameter)
        if issubclass(kind, errors.QueueFull):
            return kind(self.text, self.retry_after_s)
        if issubclass(kind, errors.InputCrashed):
            return kind(self.text, deaths=self.deaths)
        return kind(self.text)
