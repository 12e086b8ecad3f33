"""All replicas as one ingress last saw them: levels, sums, rates and details: `FleetOverview`.

Replicas send their state by themselves. With its details (which request holds which slot) they send
it when asked, and nobody asks while no page is open. Levels are those of the replicas that are
there. Sums only grow: those of a lost replica stay. The event loop of the fleet changes it; any
thread reads.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace

from jitney.core.backend import Traits
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import Detail, Snapshot
from jitney.engine.clock import Clock
from jitney.engine.served_engine import ReplicaView
from jitney.engine.stats import Statistics, rate
from jitney_cluster.replica_messages import ReplicaState

Sums = dict[str, float]

LOOK_S_MAX = 0.5
"""A look does not wait longer for replicas that are in a long pass. It has their last details."""

RATE_S = 5.0
"""Rates are those of so many last seconds."""

LOST_S = 60.0
"""Ray misses a replica within a minute, and then nobody sends anything to it."""

LOST_NAMES_MAX = 64
"""So many lost replicas are known by name, because they may come back with the sums of their whole
life. Of older ones only the sum of their sums stays."""

_FORGOTTEN = ""
"""The name of what these have done together."""

_LEVELS = tuple(each.name for each in fields(Snapshot) if each.type in ("int", int))
"""Fields of a snapshot that are added up."""

_ENGINE_SUMS = (
    *("completion_tokens", "prefill_tokens", "decode_tokens", "evicted", "backend_losses"),
    *("batches", "entries", "prefill_s", "decode_s"),
)
"""Sums that only the engines know. Requests are counted by the fleet: each once."""

_SENT_SUMS = (*_ENGINE_SUMS, "started_prompt_tokens", "cached_tokens")
_EVENT, _PREEMPTED = "event ", "preempted "
"""Before the names of a scheduler's own counters, and of reasons to preempt."""


def sums_of(totals: Statistics) -> Sums:
    """The sums of one engine, as they are sent."""
    sums = {name: float(getattr(totals, name)) for name in _SENT_SUMS}
    return sums | {_PREEMPTED + name: float(count) for name, count in totals.preempted.items()}


@dataclass(frozen=True, slots=True)
class _ReplicaLevels:
    """A replica that is connected, as it was last seen."""

    view: ReplicaView
    is_ready: bool
    marks: tuple[tuple[float, int, float], ...]
    """Moments of the last RATE_S and one before, oldest first: when, and its completion tokens and
    prefill tokens then."""
    progress_at: float
    """When it last made progress, or had nothing to do."""


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
        nothing = dict.fromkeys(_LEVELS, 0)
        levels = nothing | {"slot_count": settings.max_num_seqs, "kv_tokens": traits.kv_tokens}
        self._empty = Snapshot(**levels, fit=None, counters={})
        self._connected: dict[str, _ReplicaLevels] = {}
        self._sums: dict[str, Sums] = {}
        """The last sums of each replica, with its scheduler's own counters, also of those that are
        gone: oldest first. This and the levels are replaced as a whole, so that any thread sees
        every sum once."""
        self._lost_at: dict[str, float] = {}
        self._missing: set[str] = set()
        """Replicas that were asked and have not answered."""
        self._has_all = asyncio.Event()
        """Set when none is missing any more."""
        self.statistics = Statistics(clock.now(), self._empty)
        """What the fleet itself counted: requests."""

    @property
    def is_ready(self) -> bool:
        """Whether a replica is there whose backend lives. Any thread."""
        return any(each.is_ready for each in self._connected.values())

    def lost(self) -> tuple[str, ...]:
        """Replicas that were lost lately and have not come back.

        A replica that was only silent comes back when it is sent a request, so it is named for a
        while only.
        """
        since = self._clock.now() - LOST_S
        self._lost_at = {name: at for name, at in self._lost_at.items() if at > since}
        return tuple(self._lost_at)

    def take(self, name: str, state: ReplicaState) -> None:
        """A replica has sent its state."""
        now = self._clock.now()
        self._connected = {**self._connected, name: self._next_levels(name, state, now)}
        # If it was only silent, its sums are in its state again.
        self._sums = {**self._sums, name: _sums_in(state)}
        self._lost_at.pop(name, None)
        self.statistics.note(self.snapshot(), now)
        if state.detail is not None:
            self._note_answer(name)

    def lose(self, name: str) -> None:
        """A replica is gone."""
        self._lost_at[name] = self._clock.now()
        if name in self._connected:
            connected, sums = dict(self._connected), dict(self._sums)
            del connected[name]
            # It is the last of those that were lost.
            sums[name] = sums.pop(name)
            lost = [each for each in sums if each not in connected and each != _FORGOTTEN]
            if len(lost) > LOST_NAMES_MAX:
                oldest = sums.pop(lost[0])
                sums[_FORGOTTEN] = _added([sums.get(_FORGOTTEN, {}), oldest])
            self._connected, self._sums = connected, sums
        self._note_answer(name)

    def look(self, characters_max: int) -> Future[Detail]:
        """Ask for the details. They are in `views` when this is answered. Any thread."""
        return asyncio.run_coroutine_threadsafe(self._look(characters_max), self._loop)

    def views(self) -> tuple[ReplicaView, ...]:
        """The replicas that are there, by name. Any thread."""
        return tuple(each.view for _, each in sorted(self._connected.items()))

    def snapshot(self) -> Snapshot:
        """The levels of all replicas together. Any thread."""
        snapshots = [each.view.snapshot for each in self._connected.values()]
        if not snapshots:
            return self._empty
        counters: Counter[str] = Counter()
        for each in snapshots:
            counters.update(each.counters)
        levels = {name: sum(getattr(each, name) for each in snapshots) for name in _LEVELS}
        return replace(snapshots[0], **levels, counters=dict(counters))

    def totals(self) -> Statistics:
        """The sums of requests, as counted here, with those of all engines. Any thread."""
        sums = _added(self._sums.values())
        totals = self.statistics.copied()
        # A scheduler's own counters are sums, unlike the rest of a snapshot.
        totals.snapshot = replace(self.snapshot(), counters=_named(sums, _EVENT))
        totals.preempted |= _named(sums, _PREEMPTED)
        for name in _ENGINE_SUMS:
            number = type(getattr(totals, name))  # all are sent as floats
            setattr(totals, name, number(sums.get(name, 0)))
        return totals

    def stalled_s(self) -> float:
        """How long none of the replicas that have work has made progress. Any thread."""
        due = [each for each in self._connected.values() if each.view.snapshot.is_work_due]
        last_at = max((each.progress_at for each in due), default=None)
        return 0.0 if last_at is None else max(0.0, self._clock.now() - last_at)

    async def _look(self, characters_max: int) -> Detail:
        if not self._missing:
            self._missing = set(self._ask(characters_max))
            self._has_all = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S_MAX):
                if self._missing:
                    await self._has_all.wait()
        # Those who look together do not wait longer than the first of them.
        self._missing.clear()
        self._has_all.set()
        details = (each.detail for each in self.views())
        oldest_at = min((each.at for each in details if each), default=self._clock.now())
        return Detail(oldest_at, (), (), ())

    def _note_answer(self, name: str) -> None:
        self._missing.discard(name)
        if not self._missing:
            self._has_all.set()

    def _next_levels(self, name: str, state: ReplicaState, now: float) -> _ReplicaLevels:
        """A replica after it has sent its state."""
        before, sums = self._connected.get(name), state.sums
        completion_tokens = int(sums.get("completion_tokens", 0))
        mark = now, completion_tokens, sums.get("prefill_tokens", 0.0)
        marks = (mark,) if before is None else (*before.marks, mark)
        # One older mark stays, so that the window is whole.
        while len(marks) > 1 and marks[1][0] <= now - RATE_S:
            marks = marks[1:]
        first_at, first_completion_tokens, first_prefill_tokens = marks[0]
        detail = None if before is None else before.view.detail
        view = ReplicaView(
            name=name,
            snapshot=state.snapshot,
            prompt_tokens=int(sums.get("started_prompt_tokens", 0)),
            cached_tokens=int(sums.get("cached_tokens", 0)),
            completion_tokens=completion_tokens,
            tokens_per_s=rate(mark[1] - first_completion_tokens, now - first_at),
            prefill_tokens_per_s=rate(mark[2] - first_prefill_tokens, now - first_at),
            detail=detail if state.detail is None else _as_of(state.detail, now),
        )
        progress_at = now
        if before is not None and before.view.snapshot.is_work_due:
            has_moved = sums.get("batches") != self._sums[name].get("batches")
            progress_at = now if has_moved else before.progress_at
        return _ReplicaLevels(view, state.is_ready, marks, progress_at)


def _sums_in(state: ReplicaState) -> Sums:
    """The sums of a replica, with its scheduler's own counters."""
    return state.sums | {_EVENT + name: float(n) for name, n in state.snapshot.counters.items()}


def _as_of(detail: Detail, now: float) -> Detail:
    """A detail that has just come, on this clock: clocks of two machines differ."""
    later_s = now - detail.at
    waiting = (replace(each, accepted_at=each.accepted_at + later_s) for each in detail.waiting)
    return replace(detail, at=now, waiting=tuple(waiting))


def _named(sums: Sums, kind: str) -> dict[str, int]:
    """The sums of one kind, without its word."""
    return {
        name.removeprefix(kind): int(each) for name, each in sums.items() if name.startswith(kind)
    }


def _added(parts: Iterable[Sums]) -> Sums:
    total: Sums = {}
    for sums in parts:
        total |= {name: total.get(name, 0.0) + each for name, each in sums.items()}
    return total
