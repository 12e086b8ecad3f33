"""All replicas as one ingress last saw them: levels, sums, rates and details: `FleetOverview`.

Replicas tell their levels by themselves (`State`). Their details (which request holds which slot)
are told when asked (`ReplicaDetail`), and nobody asks while no page is open. The event loop of the
fleet changes it; any thread reads.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace

from jitney.core.backend import Traits
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import Detail, Snapshot
from jitney.engine.clock import Clock
from jitney.engine.replica_view import ReplicaView
from jitney.engine.stats import Statistics
from jitney_cluster.levels import Levels
from jitney_cluster.replica_messages import ReplicaDetail, State

LOOK_S_MAX = 0.5
"""A look does not wait longer for replicas that are in a long pass. It has their last details."""

RATE_S = 5.0
"""Rates are those of so many last seconds."""


LOST_S = 60.0
"""Ray misses a replica within a minute, and then nobody sends anything to it."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """The sums of a replica at one moment."""

    at: float
    completion_tokens: float
    prefill_tokens: float


@dataclass(frozen=True, slots=True)
class _Seen:
    """A replica that is there."""

    state: State
    marks: tuple[_Mark, ...]
    """Of the last RATE_S and one before, oldest first."""
    progress_at: float
    """When it last made progress, or had nothing to do."""
    detail: Detail | None = None

    def rates(self) -> tuple[float, float]:
        """Tokens made and prefilled in a second."""
        first, last = self.marks[0], self.marks[-1]
        if last.at <= first.at:
            return 0.0, 0.0
        seconds = last.at - first.at
        made = last.completion_tokens - first.completion_tokens
        return made / seconds, (last.prefill_tokens - first.prefill_tokens) / seconds


class FleetOverview:
    """The replicas that are there, and what those that were there have done.

    `ask` asks all replicas for their details, with this many last characters of each text, and
    returns whom it asked.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        traits: Traits,
        ask: Callable[[int], list[str]],
        clock: Clock,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._levels = Levels(settings, traits)
        # Replaced, never changed, so that any thread can read it.
        self._seen: dict[str, _Seen] = {}
        self._lost_at: dict[str, float] = {}
        self._looking: list[Future[Detail]] = []
        self._missing: set[str] = set()
        """Replicas that were asked and have not answered."""
        self._timer: asyncio.TimerHandle | None = None
        self.statistics = Statistics(clock.now(), self._levels.snapshot())
        """What the fleet itself counted: requests."""

    @property
    def names(self) -> list[str]:
        """The replicas that are there. Any thread."""
        return list(self._seen)

    @property
    def is_ready(self) -> bool:
        """Whether a replica is there whose backend lives. Any thread."""
        return any(each.state.is_ready for each in self._seen.values())

    def lost(self) -> tuple[str, ...]:
        """Replicas that were lost lately and have not come back.

        A replica that was only silent comes back when it is sent a request, so it is named for a
        while only.
        """
        since = self._clock.now() - LOST_S
        self._lost_at = {name: at for name, at in self._lost_at.items() if at > since}
        return tuple(self._lost_at)

    def take(self, name: str, message: State | ReplicaDetail) -> None:
        """A replica told how it stands."""
        now = self._clock.now()
        if isinstance(message, ReplicaDetail):
            self._show(name, message, now)
            return
        self._levels.take(name, message)
        self._lost_at.pop(name, None)
        self._seen = {**self._seen, name: _next(self._seen.get(name), message, now)}
        self.statistics.note(self._levels.snapshot(), now)

    def lose(self, name: str) -> None:
        """A replica is gone."""
        self._levels.lose(name)
        self._lost_at[name] = self._clock.now()
        self._seen = {each: seen for each, seen in self._seen.items() if each != name}
        self._answered(name)

    def look(self, characters_max: int) -> Future[Detail]:
        """Ask for the details. They are in `views` when this is answered. Any thread."""
        answer: Future[Detail] = Future()
        self._loop.call_soon_threadsafe(self._look, answer, characters_max)
        return answer

    def views(self) -> tuple[ReplicaView, ...]:
        """The replicas that are there, by name. Any thread."""
        return tuple(_view(name, seen) for name, seen in sorted(self._seen.items()))

    def snapshot(self) -> Snapshot:
        """The levels of all replicas together. Any thread."""
        return self._levels.snapshot()

    def totals(self) -> Statistics:
        """The sums of all replicas that ever were. Any thread."""
        return self._levels.totals(self.statistics)

    def stalled_s(self) -> float:
        """How long none of the replicas that have work has made progress. Any thread."""
        due = [each for each in self._seen.values() if each.state.snapshot.is_work_due]
        last_at = max((each.progress_at for each in due), default=None)
        return 0.0 if last_at is None else max(0.0, self._clock.now() - last_at)

    def _look(self, answer: Future[Detail], characters_max: int) -> None:
        self._looking.append(answer)
        if len(self._looking) == 1:
            self._missing = set(self._ask(characters_max))
            self._timer = self._loop.call_later(LOOK_S_MAX, self._answer)
        if not self._missing:
            self._answer()

    def _show(self, name: str, shown: ReplicaDetail, now: float) -> None:
        seen = self._seen.get(name)
        if seen is not None:
            # With the levels of the same moment, so that a pane does not contradict itself.
            state = State(shown.snapshot, seen.state.sums, seen.state.is_ready)
            seen = replace(seen, state=state, detail=_as_of(shown.detail, now))
            self._seen = {**self._seen, name: seen}
        self._answered(name)

    def _answered(self, name: str) -> None:
        self._missing.discard(name)
        if not self._missing:
            self._answer()

    def _answer(self) -> None:
        """Tell those who look: all have answered, or it has taken too long."""
        self._missing.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        looking, self._looking = self._looking, []
        details = (each.detail for each in self._seen.values())
        oldest_at = min((each.at for each in details if each), default=self._clock.now())
        for answer in looking:
            if answer.set_running_or_notify_cancel():
                answer.set_result(Detail(oldest_at, (), (), ()))


def _next(seen: _Seen | None, state: State, now: float) -> _Seen:
    """A replica after it has told its state."""
    sums = state.sums
    mark = _Mark(now, sums.get("completion_tokens", 0.0), sums.get("prefill_tokens", 0.0))
    if seen is None:
        return _Seen(state, (mark,), now)
    kept = [each for each in seen.marks if each.at > now - RATE_S]
    # One older mark is kept, so that the window is whole.
    older = seen.marks[: len(seen.marks) - len(kept)][-1:]
    moved = sums.get("batches") != seen.state.sums.get("batches")
    is_idle = not seen.state.snapshot.is_work_due
    progress_at = now if moved or is_idle else seen.progress_at
    return _Seen(state, (*older, *kept, mark), progress_at, seen.detail)


def _view(name: str, seen: _Seen) -> ReplicaView:
    made, prefilled = seen.rates()
    sums = seen.state.sums
    return ReplicaView(
        name=name,
        snapshot=seen.state.snapshot,
        prompt_tokens=int(sums.get("started_prompt_tokens", 0)),
        cached_tokens=int(sums.get("cached_tokens", 0)),
        completion_tokens=int(sums.get("completion_tokens", 0)),
        tokens_per_s=made,
        prefill_tokens_per_s=prefilled,
        detail=seen.detail,
    )


def _as_of(detail: Detail, now: float) -> Detail:
    """A detail that has just come, on this clock: clocks of two machines differ."""
    later_s = now - detail.at
    waiting = (replace(each, accepted_at=each.accepted_at + later_s) for each in detail.waiting)
    return replace(detail, at=now, waiting=tuple(waiting))
