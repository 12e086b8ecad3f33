"""A request of a fleet, and what its caller and the observers are told of it: `Accounts`.

Each request is accepted once and ends once, however many engines run it (invariants 1 and 7). The
event loop of the fleet.

Tests: tests/unit/cluster/test_fleet.py.
"""

import asyncio
from dataclasses import dataclass, field, replace

from jitney.cluster.progress import Progress
from jitney.cluster.replica_messages import Ended, Started
from jitney.cluster.routing import Head
from jitney.core.request import Request
from jitney.engine.answer import Answer, Ending
from jitney.engine.clock import Clock
from jitney.engine.collector import READ_TOO_SLOWLY
from jitney.engine.mailbox import Mailbox
from jitney.engine.make_records import record_accepted, record_done
from jitney.engine.observe import Observers
from jitney.engine.stats import Statistics
from jitney.errors import JitneyError, QueueFull
from jitney.records import Record, RequestFailed, RequestRefused, RequestStarted


@dataclass(slots=True, eq=False)
class MovingRequest:
    """A request of this ingress. Times are seconds on the fleet's clock."""

    request: Request
    mailbox: Mailbox
    progress: Progress
    head: Head
    arrived_at: float
    sent_at: float
    attempt: int = 0
    replica: str | None = None
    """Where it was accepted; None on its way."""
    over: "asyncio.Future[Ended | None]" = field(init=False)
    """The end of this attempt: what the replica told last, or None if it is lost."""
    task: "asyncio.Task[None]" = field(init=False)
    is_accepted: bool = False
    is_started: bool = False
    full: dict[str, QueueFull] = field(default_factory=dict)
    """Replicas that had no room for it, since it last ran."""
    was_read_too_slowly: bool = False


class Accounts:
    """Tells callers and observers, and counts."""

    def __init__(self, statistics: Statistics, observers: Observers, clock: Clock) -> None:
        self._statistics = statistics
        self._observers = observers
        self._clock = clock

    def accept(self, live: MovingRequest) -> None:
        """A replica has taken it."""
        live.full.clear()
        if not live.is_accepted:
            live.is_accepted = True
            now = self._clock.now()
            self._record(record_accepted(live.request, live.arrived_at, live.sent_at, now))
            live.mailbox.accept()

    def start(self, live: MovingRequest, message: Started) -> None:
        """It runs on a replica."""
        live.progress.start(self._clock.now() - live.arrived_at)
        if not live.is_started:
            live.is_started = True
            now = self._clock.now()
            self._record(
                RequestStarted(
                    at=now,
                    request_id=live.request.id,
                    prompt_tokens=len(live.request.prompt),
                    prefix_cache_tokens=message.cached_count,
                    waited_ms=(now - live.sent_at) * 1e3,
                )
            )

    def end(self, live: MovingRequest, answer: Answer) -> None:
        """It was answered."""
        self._record(record_done(answer, self._clock.now()))
        live.mailbox.end(Ending(answer))

    def end_cancelled(self, live: MovingRequest) -> None:
        """Its caller left, or reads too slowly."""
        if live.mailbox.ending is not None:
            return
        answer = live.progress.answer(self._clock.now() - live.arrived_at)
        if live.was_read_too_slowly:
            completions = tuple(
                replace(each, message=READ_TOO_SLOWLY) for each in answer.completions
            )
            answer = replace(answer, completions=completions)
        if live.is_accepted:
            self.end(live, answer)
        else:
            live.mailbox.end(Ending(answer))

    def fail(self, live: MovingRequest, error: JitneyError) -> None:
        """It ends with an error."""
        if live.mailbox.ending is not None:
            return
        now = self._clock.now()
        if live.is_accepted:
            self._record(
                RequestFailed(
                    at=now,
                    request_id=live.request.id,
                    error=error,
                    generated_tokens=live.progress.token_count,
                    duration_ms=(now - live.arrived_at) * 1e3,
                )
            )
        else:
            self._record(RequestRefused(at=now, request_id=live.request.id, error=error))
        answer = live.progress.answer(now - live.arrived_at) if live.is_accepted else None
        live.mailbox.end(Ending(answer, error))

    def _record(self, record: Record) -> None:
        self._statistics.take(record)
        self._observers.tell(record)
