"""The scheduler with every call reported: what goes in, what comes out, and when.

It has the methods of `jitney.core.scheduler.Scheduler` and stands in its place, so that checkers
see batches and events before the engine does.
"""

from jitney.core.batch import Batch, Outcome
from jitney.core.counters import Counters
from jitney.core.events import Event, FinishReason
from jitney.core.request import Priority, Request, RequestId
from jitney.core.rules.pauses import PauseOutcome
from jitney.core.scheduler import PlannedBatch, Scheduler
from jitney.core.sequence import Sequence
from jitney.core.snapshot import Detail, Snapshot
from jitney.errors import JitneyError
from tests.simulation.seen import Detailed, Happened, Planned, Submitted, Tell


class Watch:
    """Passes everything on and reports it."""

    def __init__(self, scheduler: Scheduler, tell: Tell, *, hastes: bool) -> None:
        self._scheduler = scheduler
        self._tell = tell
        self._hastes = hastes
        self._is_in_haste = False
        self._planned_at = 0.0

    @property
    def counters(self) -> Counters:
        """The scheduler's own."""
        return self._scheduler.counters

    @property
    def has_work(self) -> bool:
        """As the scheduler says."""
        return self._scheduler.has_work

    @property
    def holds_answers(self) -> bool:
        """As the scheduler says."""
        return self._scheduler.holds_answers

    @property
    def is_steady(self) -> bool:
        """As the scheduler says; or always, where batches are to be planned ahead though somebody
        waits or memory is short: the scheduler must be right there too."""
        is_steady = self._scheduler.is_steady
        self._is_in_haste = self._hastes and not is_steady
        return self._hastes or is_steady

    def wake_at(self, now: float) -> float | None:
        """As the scheduler says."""
        return self._scheduler.wake_at(now)

    def snapshot(self) -> Snapshot:
        """As the scheduler says."""
        return self._scheduler.snapshot()

    def detail(self, now: float) -> Detail:
        """As the scheduler draws it; nothing may change by being looked at."""
        detail = self._scheduler.detail(now)
        self._tell(Detailed(detail, self._scheduler.snapshot()))
        return detail

    def check(self) -> None:
        """As the scheduler does."""
        self._scheduler.check()

    def drain(self, now: float) -> None:
        """As the scheduler does."""
        self._scheduler.drain(now)

    def pause(self, request_id: RequestId, now: float) -> PauseOutcome:
        """As the scheduler does."""
        return self._scheduler.pause(request_id, now)

    def resume(self, request_id: RequestId, now: float) -> None:
        """As the scheduler does."""
        self._scheduler.resume(request_id, now)

    def reprioritise(self, request_id: RequestId, priority: Priority) -> None:
        """As the scheduler does."""
        self._scheduler.reprioritise(request_id, priority)

    @property
    def complaints(self) -> list[str]:
        """The scheduler's own."""
        return self._scheduler.complaints

    def submit(self, request: Request, now: float) -> None:
        """Tell what became of the request."""
        before = self._scheduler.snapshot()
        count, tokens = before.waiting_count, before.waiting_tokens
        if not request.is_background:
            count, tokens = count - before.background_waiting, tokens - before.background_tokens
        try:
            self._scheduler.submit(request, now)
        except JitneyError as error:
            self._tell(Submitted(now, request, count, tokens, error))
            raise
        self._tell(Submitted(now, request, count, tokens))

    def plan(self, now: float) -> PlannedBatch | None:
        """Tell the batch and how things stand after it was planned."""
        planned = self._scheduler.plan(now)
        self._planned_at = now
        batch = None if planned is None else planned.batch
        owners = {
            each.slot: (each.request.id, each.index)
            for each in self._scheduler.running
            if each.slot is not None
        }
        self._tell(Planned(now, batch, owners, self._scheduler.snapshot(), self._is_in_haste))
        self._is_in_haste = False
        return planned

    def take_events(self) -> list[Event]:
        """Tell the events."""
        return self._told(self._planned_at, "plan", self._scheduler.take_events())

    def apply(self, planned: PlannedBatch, outcome: Outcome, now: float) -> list[Event]:
        """Tell the events."""
        events = self._scheduler.apply(planned, outcome, now)
        return self._told(now, "apply", events, planned.batch)

    def fail(self, message: str, now: float, failed: tuple[Sequence, ...] = ()) -> list[Event]:
        """Tell the events."""
        return self._told(now, "fail", self._scheduler.fail(message, now, failed))

    def cancel(self, request_id: RequestId, now: float) -> list[Event]:
        """Tell the events."""
        return self._told(now, "cancel", self._scheduler.cancel(request_id, now))

    def expire(self, now: float) -> list[Event]:
        """Tell the events."""
        return self._told(now, "expire", self._scheduler.expire(now))

    def finish(
        self, request_id: RequestId, index: int, reason: FinishReason, now: float
    ) -> list[Event]:
        """Tell the events."""
        events = self._scheduler.finish(request_id, index, reason, now)
        return self._told(now, "finish", events)

    def _told(
        self, now: float, method: str, events: list[Event], batch: Batch | None = None
    ) -> list[Event]:
        self._tell(Happened(now, method, tuple(events), batch))
        return events
