"""The scheduler with its calls reported: what goes in, what comes out, and when.

So checkers see batches and events before the engine does.
"""

from jitney.core.backend import Traits
from jitney.core.batch import Batch, Outcome
from jitney.core.events import Event, FinishReason
from jitney.core.request import Request, RequestId
from jitney.core.scheduler import PlannedBatch, Scheduler
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.sequence import Sequence
from jitney.core.snapshot import Detail
from jitney.errors import JitneyError
from tests.simulation.seen import Detailed, Happened, Planned, Submitted, Tell, one_by_one


class Watch(Scheduler):
    """Does what the scheduler does, and reports it."""

    def __init__(
        self,
        settings: SchedulerSettings,
        traits: Traits,
        eos_tokens: tuple[int, ...],
        tell: Tell,
        *,
        hastes: bool,
    ) -> None:
        super().__init__(settings, traits, eos_tokens)
        self._tell = tell
        self._hastes = hastes
        self._is_in_haste = False
        self._planned_at = 0.0

    @property
    def is_steady(self) -> bool:
        """As the scheduler says; or always, where batches are to be planned ahead though somebody
        waits or memory is short: the scheduler must be right there too."""
        is_steady = super().is_steady
        self._is_in_haste = self._hastes and not is_steady
        return self._hastes or is_steady

    def detail(self, now: float) -> Detail:
        """As the scheduler draws it; nothing may change by being looked at."""
        detail = super().detail(now)
        self._tell(Detailed(detail, self.snapshot()))
        return detail

    def submit(self, request: Request, now: float) -> None:
        """Tell what became of the request."""
        before = self.snapshot()
        count, tokens = before.waiting_count, before.waiting_tokens
        if not request.is_background:
            count, tokens = count - before.background_waiting, tokens - before.background_tokens
        try:
            super().submit(request, now)
        except JitneyError as error:
            self._tell(Submitted(now, request, count, tokens, error))
            raise
        self._tell(Submitted(now, request, count, tokens))

    def plan(self, now: float) -> PlannedBatch | None:
        """Tell the batch and how things stand after it was planned."""
        planned = super().plan(now)
        self._planned_at = now
        batch = None if planned is None else planned.batch
        owners = {
            each.slot: (each.request.id, each.index)
            for each in self._registry.running
            if each.slot is not None
        }
        self._tell(Planned(now, batch, owners, self.snapshot(), self._is_in_haste))
        self._is_in_haste = False
        return planned

    def take_events(self) -> list[Event]:
        """Tell the events."""
        return self._report(self._planned_at, "plan", super().take_events())

    def apply(self, planned: PlannedBatch, outcome: Outcome, now: float) -> list[Event]:
        """Tell the events."""
        return self._report(now, "apply", super().apply(planned, outcome, now), planned.batch)

    def fail(self, message: str, now: float, failed: tuple[Sequence, ...] = ()) -> list[Event]:
        """Tell the events."""
        return self._report(now, "fail", super().fail(message, now, failed))

    def cancel(self, request_id: RequestId, now: float) -> list[Event]:
        """Tell the events."""
        return self._report(now, "cancel", super().cancel(request_id, now))

    def expire(self, now: float) -> list[Event]:
        """Tell the events."""
        return self._report(now, "expire", super().expire(now))

    def finish(
        self, request_id: RequestId, index: int, reason: FinishReason, now: float
    ) -> list[Event]:
        """Tell the events."""
        return self._report(now, "finish", super().finish(request_id, index, reason, now))

    def _report(
        self, now: float, method: str, events: list[Event], batch: Batch | None = None
    ) -> list[Event]:
        self._tell(Happened(now, method, tuple(one_by_one(events)), batch))
        return events
