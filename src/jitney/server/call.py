"""What the layers of the server know of one HTTP request: `Call`. Event loop.

The outermost layer makes it and puts it into the scope. Each layer adds what it learns.

Tests: tests/e2e/server/test_deadlines.py and test_log.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import Scope

from jitney.engine.answer import Usage
from jitney.errors import DeadlineExceeded
from jitney.server.admission.call_places import Place
from jitney.server.admission.keys import Caller


@dataclass(slots=True, eq=False)
class Call:
    """One HTTP request. Times are seconds on the service's clock."""

    http_id: str
    arrived_at: float
    caller: Caller = field(init=False)
    """Missing before the key was checked, and on paths that need no key."""
    place: Place = field(init=False)
    """Its place among the calls that bring work."""
    due_at: float | None = None
    """When it must be done."""
    is_large: bool = False
    """Whether its work in a worker thread may take long."""
    is_wanted: bool = True
    """Whether somebody still waits for the result. Worker threads read it."""
    refused: str | None = None
    """Why it was refused, for the metrics."""
    user: str | None = None
    """The field `user` of the body, for the log."""
    reply_id: str | None = None
    usages: Callable[[], list[Usage]] = list
    """Returns the tokens counted so far, for the log."""

    @staticmethod
    def of(scope: Scope) -> "Call":
        """The call of this scope."""
        call: Call = scope["state"]["call"]
        return call

    def still_wanted(self) -> bool:
        """Whether somebody still waits for the result. Any thread."""
        return self.is_wanted

    def left_s(self, now: float) -> float | None:
        """Seconds until it must be done. Raises DeadlineExceeded."""
        left_s = None if self.due_at is None else self.due_at - now
        if left_s is not None and left_s <= 0:
            raise deadline_passed()
        return left_s


def deadline_passed() -> DeadlineExceeded:
    """The error of a call whose time ends before its requests reach the engine."""
    return DeadlineExceeded(
        "The time limit passed before the request reached the engine; raise deadline_ms."
    )
