"""Invariant 1: every accepted request ends exactly once, and its caller is told.

What happens to a sequence is told in the turn in which it happens.
"""

from jitney.core.events import FinishEvent, FinishReason, PromptEvent
from jitney.core.request import RequestId
from jitney.engine.answer import Ending
from jitney.errors import EngineStopped
from tests.simulation.seen import (
    Fetched,
    Happened,
    Name,
    Rested,
    Seen,
    Stopped,
    Submitted,
    Ticked,
    Violation,
)

NAME = "ending"
_ERRORS = (FinishReason.FAILED, FinishReason.DEADLINE)


class EndingChecker:
    """Follows each sequence to its one finish event, and each request to its one ending."""

    def __init__(self) -> None:
        self._live: set[Name] = set()
        self._reasons: dict[Name, FinishReason] = {}
        self._untold: set[RequestId] = set()
        self._stopped = False

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Submitted(error=None):
                self._untold.add(seen.request.id)
                self._live |= seen.names
            case Happened():
                self._take(seen)
            case Fetched(item=Ending() as ending):
                self._told(seen.request.id, seen.request.params.n, ending)
            case Ticked(snapshot=snapshot):
                live_count = snapshot.unfinished_count
                if live_count != len(self._live):
                    raise Violation(
                        NAME, f"{live_count} sequences live, {len(self._live)} were not told an end"
                    )
            case Stopped():
                self._stopped = True
            case Rested():
                self._rest()

    def _take(self, seen: Happened) -> None:
        for event in seen.events:
            name = (event.request_id, event.index)
            if name not in self._live:
                raise Violation(
                    NAME, f"{seen.method} told {event} of a sequence that does not live"
                )
            if not isinstance(event, PromptEvent) and event.at < seen.at:
                raise Violation(NAME, f"{name} was told late, by {seen.method}: {event}")
            if isinstance(event, FinishEvent):
                self._live.remove(name)
                self._reasons[name] = event.reason

    def _told(self, request_id: RequestId, count: int, ending: Ending) -> None:
        if request_id not in self._untold:
            raise Violation(NAME, f"{request_id} was told twice that it is over")
        self._untold.remove(request_id)
        if ending.answer is None:
            if not self._stopped or not isinstance(ending.error, EngineStopped):
                raise Violation(NAME, f"{request_id} got no answer but {ending.error!r}")
            self._live -= {(request_id, index) for index in range(count)}
            return
        reasons = [self._reasons.get((request_id, index)) for index in range(count)]
        if None in reasons:
            raise Violation(NAME, f"{request_id} was told that it is over while it lives")
        failed = any(reason in _ERRORS for reason in reasons)
        if failed != (ending.error is not None):
            raise Violation(NAME, f"{request_id} ended by {reasons} and was told {ending.error!r}")
        if len(ending.answer.completions) != count:
            raise Violation(NAME, f"{request_id} wanted {count} completions and got others")

    def _rest(self) -> None:
        if self._live:
            raise Violation(NAME, f"{sorted(self._live)} never ended")
        if self._untold:
            raise Violation(NAME, f"{sorted(self._untold)} were never told that they ended")
