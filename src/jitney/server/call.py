"""What the layers of the server know of one call: `Call`. Event loop.

A call is an HTTP request or a line of a batch. Of a request, the outermost layer makes it and puts
it into the scope; each layer adds what it learns.

Tests: tests/e2e/server/test_deadlines.py and test_log.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jitney.engine.answer import Usage
from jitney.errors import DeadlineExceeded
from jitney.server.admission.call_places import Place
from jitney.server.admission.keys import Caller


@dataclass(slots=True, eq=False)
class Call:
    """One call. Times are seconds on the service's clock."""

    id: str
    """Its name in the log: of a request, `X-Request-ID`."""
    arrived_at: float
    caller: Caller = field(init=False)
    """Missing before the key was checked, and on paths that need no key."""
    place: Place = field(init=False)
    """Its place among the HTTP requests that bring work."""
    due_at: float | None = None
    """When it must be done."""
    window_s: float | None = None
    """For a line of a batch: how long it may wait and run, instead of the server's limits."""
    is_background: bool = False
    """Whether it runs behind all others."""
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
    def of(scope: Mapping[str, Any]) -> "Call":  # Any: what ASGI has in a scope
        """The call of this scope."""
        call: Call = scope["state"]["call"]
        return call

    @property
    def turn(self) -> tuple[str, bool]:
        """Whose turn its work in a worker thread waits for. Lines are a caller of their own."""
        name = self.caller.name
        return name if self.window_s is None else f"batches of {name}", self.is_large

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
