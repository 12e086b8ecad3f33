"""Adds up what replicas report of themselves: `Levels`; and the limits of one and of all.

Levels are those of the replicas that are there. Sums only grow: those of a lost replica stay. The
event loop of the ingress changes them; any thread reads.
"""

from collections import Counter
from dataclasses import astuple, dataclass, fields, replace
from typing import TypeVar

from jitney.core.backend import Traits
from jitney.core.request import Share
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import Snapshot
from jitney.engine.stats import Statistics
from jitney_cluster.replica_messages import State

Kept = TypeVar("Kept")
Sums = dict[str, float]

_ADDED = (
    "running_count",
    "prefilling_count",
    "waiting_count",
    "paused_count",
    "waiting_tokens",
    "background_running",
    "background_waiting",
    "background_tokens",
    "prefill_left",
    "deferred_count",
    "cached_count",
    "kv_tokens",
    "kv_used",
    "kv_cached",
    "slot_count",
)
"""Levels of a snapshot that are added up."""

_COUNTED = (
    "completion_tokens",
    "prefill_tokens",
    "decode_tokens",
    "evicted",
    "backend_losses",
    "batches",
    "entries",
)
"""Sums that only the engines know. Requests are counted by the fleet: each once."""

LOST_KEPT_MAX = 64
"""So many lost replicas are known by name, because they may come back with the sums of their whole
life. Of older ones only the sum of their sums is kept."""


def settings_of_all(settings: SchedulerSettings, replica_count: int) -> SchedulerSettings:
    """The limits of all replicas together, from those of one."""
    return replace(
        settings,
        max_num_seqs=settings.max_num_seqs * replica_count,
        max_num_batched_tokens=settings.max_num_batched_tokens * replica_count,
        max_num_queued_reqs=settings.max_num_queued_reqs * replica_count,
        max_num_queued_tokens=settings.max_num_queued_tokens * replica_count,
    )


def share_of_one(share: Share | None, replica_count: int) -> Share | None:
    """The part of a key's share that it has on one replica."""
    if share is None:
        return None
    return Share(*(max(1, round(each / replica_count)) for each in astuple(share)))


def sums_of(totals: Statistics) -> Sums:
    """The sums of one engine, as they travel."""
    sums = {name: float(getattr(totals, name)) for name in _SUMS}
    return sums | {_PREEMPTED + name: float(count) for name, count in totals.preempted.items()}


_SUMS = tuple(
    each.name
    for each in fields(Statistics)
    if each.type in ("int", "float", int, float) and each.name not in ("started_at", "progress_at")
)
_EVENT, _PREEMPTED = "event ", "preempted "
"""Before the names of a scheduler's own counters, and of reasons to preempt."""


@dataclass(frozen=True, slots=True)
class _Reported:
    """All that was reported. Replaced as a whole, so that any thread sees every sum once."""

    there: dict[str, State]
    lost: dict[str, Sums]
    """The last sums of replicas that are gone, oldest first."""
    forgotten: Sums


class Levels:
    """The last state of every replica."""

    def __init__(self, settings: SchedulerSettings, traits: Traits) -> None:
        self._empty = Snapshot(
            **{name: 0 for name in _ADDED if name not in ("slot_count", "kv_tokens")},
            slot_count=settings.max_num_seqs,
            kv_tokens=traits.kv_tokens,
            fit=None,
            counters={},
        )
        self._reported = _Reported({}, {}, {})

    @property
    def replicas(self) -> dict[str, State]:
        """The replicas that are there."""
        return self._reported.there

    def take(self, name: str, state: State) -> None:
        """A replica has told its state."""
        was = self._reported
        # If it was only silent, its sums are in its state again.
        self._reported = replace(
            was, there={**was.there, name: state}, lost=_without(was.lost, name)
        )

    def lose(self, name: str) -> None:
        """A replica is gone."""
        was = self._reported
        state = was.there.get(name)
        if state is None and name in was.lost:
            return
        lost = {**was.lost, name: {} if state is None else _sums(state)}
        forgotten = was.forgotten
        if len(lost) > LOST_KEPT_MAX:
            forgotten = _added(forgotten, lost.pop(next(iter(lost))))
        self._reported = _Reported(_without(was.there, name), lost, forgotten)

    def snapshot(self) -> Snapshot:
        """The levels of all replicas together."""
        snapshots = [state.snapshot for state in self.replicas.values()]
        if not snapshots:
            return self._empty
        counters: Counter[str] = Counter()
        for each in snapshots:
            counters.update(each.counters)
        levels = {name: sum(getattr(each, name) for each in snapshots) for name in _ADDED}
        return replace(snapshots[0], **levels, counters=dict(counters))

    def totals(self, counted: Statistics) -> Statistics:
        """The sums of requests, as counted, with those of all engines."""
        was = self._reported
        sums = was.forgotten
        for each in (*was.lost.values(), *map(_sums, was.there.values())):
            sums = _added(sums, each)
        totals = counted.copied()
        # A scheduler's own counters are sums, unlike the rest of a snapshot.
        totals.snapshot = replace(self.snapshot(), counters=_named(sums, _EVENT))
        totals.preempted |= _named(sums, _PREEMPTED)
        for name in _COUNTED:
            setattr(totals, name, int(sums.get(name, 0)))  # all travel as floats
        totals.prefill_s = sums.get("prefill_s", 0.0)
        totals.decode_s = sums.get("decode_s", 0.0)
        return totals


def _sums(state: State) -> Sums:
    """The sums of a replica, with its scheduler's own counters."""
    return {**state.sums, **{_EVENT + name: n for name, n in state.snapshot.counters.items()}}


def _named(sums: Sums, kind: str) -> dict[str, int]:
    """The sums of one kind, without its word."""
    return {
        name.removeprefix(kind): int(each) for name, each in sums.items() if name.startswith(kind)
    }


def _without(named: dict[str, Kept], name: str) -> dict[str, Kept]:
    return {other: each for other, each in named.items() if other != name}


def _added(sums: Sums, others: Sums) -> Sums:
    return {**sums, **{name: sums.get(name, 0.0) + each for name, each in others.items()}}
