"""What the layers of the server know of one HTTP request: `Call`. Event loop.

Made by the outermost layer, and handed on in the scope: each layer adds what it finds out.

Tests: tests/e2e/server/test_deadlines.py and test_log.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import Scope

from jitney.engine.answer import Usage
from jitney.errors import DeadlineExceeded
from jitney.server.admission.admission import Place
from jitney.server.admission.keys import Caller


@dataclass(slots=True, eq=False)
class Call:
    """One HTTP request. Times are seconds on the service's clock."""

    http_id: str
    arrived_at: float
    caller: Caller = field(init=False)
    """Not there before its key was checked, nor on paths that need none."""
    place: Place = field(init=False)
    """Its place among the calls that bring work."""
    due_at: float | None = None
    """When it must be done."""
    is_large: bool = False
    """Whether what it wants made may take long."""
    is_wanted: bool = True
    """Whether somebody waits for what is being made. Read by worker threads."""
    refused: str | None = None
    """Why it was refused, for the metrics."""
    user: str | None = None
    """The caller's own word for its user, for the log."""
    reply_id: str | None = None
    usages: Callable[[], list[Usage]] = list
    """What was counted so far, for the log."""

    @staticmethod
    def of(scope: Scope) -> "Call":
        """The call of this scope."""
        call: Call = scope["state"]["call"]
        return call

    def still_wanted(self) -> bool:
        """Whether somebody waits for what is being made. Any thread."""
        return self.is_wanted

    def left_s(self, now: float) -> float | None:
        """Seconds until it must be done. Raises DeadlineExceeded."""
        left_s = None if self.due_at is None else self.due_at - now
        if left_s is not None and left_s <= 0:
            raise late()
        return left_s


def late() -> DeadlineExceeded:
    """For a call whose time is over while its requests are being made."""
    return DeadlineExceeded(
        "the time limit passed before the request reached the engine; raise deadline_ms."
    )
