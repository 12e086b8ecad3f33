"""Adds up what replicas report of themselves: `Levels`. Event loop of the ingress.

Levels are those of the replicas that are there. Sums only grow: those of a lost replica stay.
"""

from collections import Counter
from dataclasses import replace

from jitney.cluster.replica_messages import State
from jitney.core.backend import Traits
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import Snapshot
from jitney.engine.stats import Statistics

_ADDED = (
    "running_count",
    "prefilling_count",
    "waiting_count",
    "paused_count",
    "waiting_tokens",
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
        self.replicas: dict[str, State] = {}
        self._lost: dict[str, dict[str, float]] = {}

    def take(self, name: str, state: State) -> None:
        """A replica has told its state."""
        self.replicas[name] = state
        # It was only silent: its sums are in its state again.
        self._lost.pop(name, None)

    def lose(self, name: str) -> None:
        """A replica is gone."""
        state = self.replicas.pop(name, None)
        if state is not None:
            self._lost[name] = state.sums

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
        sums: dict[str, float] = {}
        for each in (*self._lost.values(), *(state.sums for state in self.replicas.values())):
            sums = _added(sums, each)
        sums = dict.fromkeys((*_COUNTED, "prefill_s", "decode_s"), 0.0) | sums
        totals = counted.copied()
        totals.snapshot = self.snapshot()
        for name in _COUNTED:
            setattr(totals, name, int(sums[name]))  # all travel as floats
        totals.prefill_s, totals.decode_s = sums["prefill_s"], sums["decode_s"]
        return totals


def _added(sums: dict[str, float], others: dict[str, float]) -> dict[str, float]:
    return {**sums, **{name: sums.get(name, 0.0) + each for name, each in others.items()}}
