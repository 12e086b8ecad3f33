"""Two ways to drive the core: the engine's own tick, and by hand with two batches in flight.

Both take requests with a mailbox and give turns. `AheadDriver` plans again before the outcome of
the last batch is known, which the engine's tick does not do yet and the core must be ready for.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol, cast

from jitney.core.batch import Batch, Outcome
from jitney.core.events import Event, FinishReason
from jitney.core.request import Request, RequestId
from jitney.core.scheduler import Scheduler
from jitney.engine.collector import Collector, Verdict
from jitney.engine.mailbox import Mailbox
from jitney.engine.observe import Observers
from jitney.engine.recovery import Recovery
from jitney.engine.tick import Tick
from jitney.errors import JitneyError
from tests.simulation.faults import FaultyBackend, VirtualClock
from tests.simulation.watch import Watch

FLIGHTS_MAX = 2


class Driver(Protocol):
    """Whatever turns the core."""

    @property
    def has_work(self) -> bool:
        """Whether any request lives."""
        ...

    @property
    def stopped(self) -> JitneyError | None:
        """Why there will be no further turn, once that is so."""
        ...

    def submit(self, request: Request, mailbox: Mailbox) -> None:
        """Take a request, or raise its refusal."""
        ...

    def cancel(self, request_id: RequestId) -> None:
        """End a request."""
        ...

    def drain(self) -> None:
        """Take no new requests."""
        ...

    def turn(self, intake: Callable[[], None]) -> bool:
        """One turn; whether a batch ran."""
        ...

    def wake_at(self, now: float) -> float | None:
        """When a turn may do something though nothing new came in."""
        ...

    def check(self) -> None:
        """Recount everything."""
        ...


class TickDriver:
    """The engine's production tick."""

    def __init__(self, watch: Watch, backend: FaultyBackend, clock: VirtualClock) -> None:
        # A watch has every method of the scheduler that the tick calls.
        self._tick = Tick(cast(Scheduler, watch), backend, clock, Observers(), names_members=True)

    @property
    def has_work(self) -> bool:
        """Whether any request lives."""
        return self._tick.has_work

    @property
    def stopped(self) -> JitneyError | None:
        """Why there will be no further turn, once that is so."""
        return self._tick.stopped

    def submit(self, request: Request, mailbox: Mailbox) -> None:
        """Take a request, or raise its refusal."""
        self._tick.submit(request, mailbox)

    def cancel(self, request_id: RequestId) -> None:
        """End a request."""
        self._tick.cancel(request_id)

    def drain(self) -> None:
        """Take no new requests."""
        self._tick.drain()

    def turn(self, intake: Callable[[], None]) -> bool:
        """One turn; whether a batch ran. An idle backend is looked after, as the loop does."""
        has_run = self._tick.run(intake)
        if not self._tick.has_work and self._tick.stopped is None:
            self._tick.look_after_backend()
        return has_run

    def wake_at(self, now: float) -> float | None:
        """When a turn may do something though nothing new came in."""
        return self._tick.wake_at(now)

    def check(self) -> None:
        """Recount everything."""
        self._tick.check()


class AheadDriver:
    """The scheduler, the backend and collectors, with up to two batches in flight."""

    def __init__(
        self, watch: Watch, backend: FaultyBackend, clock: VirtualClock, random: Random
    ) -> None:
        self._watch = watch
        self._backend = backend
        self._clock = clock
        self._random = random
        self._recovery = Recovery(backend)
        self._collectors: dict[RequestId, Collector] = {}
        self._flights: deque[tuple[Batch, Outcome | None]] = deque()
        self.stopped: JitneyError | None = None

    @property
    def has_work(self) -> bool:
        """Whether any request lives."""
        return bool(self._collectors)

    def submit(self, request: Request, mailbox: Mailbox) -> None:
        """Take a request, or raise its refusal."""
        now = self._clock.now()
        self._watch.submit(request, now)
        self._collectors[request.id] = Collector(request, self._backend.vocabulary, mailbox, now)
        mailbox.accept()

    def cancel(self, request_id: RequestId) -> None:
        """End a request."""
        self._collect(self._watch.cancel(request_id, self._clock.now()))

    def drain(self) -> None:
        """Take no new requests."""
        self._watch.drain()

    def turn(self, intake: Callable[[], None]) -> bool:
        """Plan until enough is in flight, then take in the oldest outcome."""
        self._collect(self._watch.expire(self._clock.now()))
        wanted = self._random.randint(1, FLIGHTS_MAX)
        while len(self._flights) < wanted:
            batch = self._watch.plan(self._clock.now())
            if batch is None:
                break
            self._flights.append((batch, self._execute(batch)))
        if not self._flights:
            return False
        intake()
        batch, outcome = self._flights.popleft()
        if outcome is None:
            self._lose()
        else:
            self._collect(self._watch.apply(batch, outcome, self._clock.now()))
        return True

    def wake_at(self, now: float) -> float | None:
        """When a turn may do something though nothing new came in."""
        return self._watch.wake_at(now)

    def check(self) -> None:
        """Recount everything."""
        self._watch.check()

    def _execute(self, batch: Batch) -> Outcome | None:
        # What was sent after a batch that will turn out to be lost is lost with it.
        if any(outcome is None for _, outcome in self._flights):
            return None
        try:
            outcome = self._backend.execute(batch)
        except JitneyError:
            return None
        return outcome if len(outcome.samples) == len(batch.entries) else None

    def _lose(self) -> None:
        self._flights.clear()
        self._collect(self._watch.fail("the backend failed.", self._clock.now()))
        self._recovery.lose(self._clock.now())
        while self._recovery.attempt(self._clock.now()) is not None:
            assert self._recovery.retry_at is not None, "a failed attempt sets the next one"
            self._clock.advance(self._recovery.retry_at - self._clock.now())

    def _collect(self, events: list[Event]) -> None:
        now = self._clock.now()
        verdicts: list[Verdict] = []
        for event in events:
            collector = self._collectors[event.request_id]
            verdict = collector.push(event)
            if verdict is not None:
                verdicts.append(verdict)
            if collector.is_done:
                del self._collectors[event.request_id]
                collector.end(collector.ending(now))
        for verdict in verdicts:
            reason = FinishReason.STOP
            self._collect(self._watch.finish(verdict.request_id, verdict.index, reason, now))
