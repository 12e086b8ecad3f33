"""Who makes room: running sequences that wait again, for memory, for a class, or for a pause.

The rules of who is chosen are in `core/rules/victim.py`. A sequence in flight is never preempted:
its batch must return first. Called by the parts of the scheduler only.

Tests: tests/simulation and tests/unit/core/test_scheduler.py.
"""

from jitney.core.counters import Counters
from jitney.core.events import PreemptEvent, PreemptReason
from jitney.core.registry import Registry
from jitney.core.rules.background import background_of
from jitney.core.rules.victim import choose_for_class, choose_for_memory
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.sequence import Sequence


class Preemption:
    """Lets running sequences wait again in favour of others."""

    def __init__(self, registry: Registry, settings: SchedulerSettings, counters: Counters) -> None:
        self._registry = registry
        self._counters = counters
        self._overtake_s = settings.overtake_s
        self.displaces = registry.by_class and settings.enable_preemption
        """Whether a higher class takes the place of a lower one."""

    def stop_paused(self, now: float) -> None:
        """Preempt running sequences that were paused, if their batch has returned."""
        paused = self._registry.paused
        if not paused:
            return
        for sequence in [each for each in self._registry.running if each in paused]:
            if not sequence.is_in_flight:
                self.preempt(sequence, PreemptReason.PAUSED, now, sequence, keeps_memory=True)

    def obtain(self, sequence: Sequence, span: int, now: float) -> bool:
        """Get memory for the sequence's span, if needed from others; false if it has to wait.

        Cached prefixes go first. Then running sequences do, as `_victim_for` says. The most senior
        sequence always gets its memory, so something ends, and then the next one does.
        """
        assert span >= 1, span
        length = sequence.planned + span
        while not self._registry.memory.grow(sequence, length):
            self._counters["kv_full"] += 1
            victim = self._victim_for(sequence)
            if victim is None:
                return False
            self._free_memory_of(victim, now, sequence)
        return True

    def make_room(self, newcomer: Sequence, now: float, *, needs_memory: bool) -> bool:
        """Preempt a running sequence for one that waits; false if there is none.

        A background one first. If only a slot is needed, the memory stays as a cached prefix.
        """
        if newcomer.is_background:
            return False
        running = self._registry.running
        assert newcomer not in running, "it has a place already"
        victim = choose_for_memory(background_of(running), by_class=False)
        if victim is None and needs_memory and self._take_from_share(newcomer, now):
            return True
        if victim is None and self.displaces:
            victim = choose_for_class(running, newcomer, now, self._overtake_s)
        if victim is None:
            return False
        if needs_memory:
            self._registry.memory.save(victim)
        self.preempt(victim, PreemptReason.DISPLACED, now, newcomer, keeps_memory=not needs_memory)
        return True

    def preempt(
        self,
        sequence: Sequence,
        reason: PreemptReason,
        now: float,
        by: Sequence,
        *,
        keeps_memory: bool,
    ) -> None:
        """Let a running sequence wait again, in favour of `by`. It keeps its age."""
        assert not sequence.is_in_flight, "its batch must return first"
        registry = self._registry
        registry.memory.leave(sequence, keeps_memory=keeps_memory)
        registry.wait_again(sequence)
        sequence.history.preempted_count += reason is not PreemptReason.PAUSED
        assert sequence.slot is None, "its slot is free or a cached prefix"
        if reason.is_of_memory:
            self._counters[f"preempted_{reason}"] += 1
        elif reason is PreemptReason.DISPLACED:
            self._counters["displaced"] += 1
        registry.events.append(
            PreemptEvent(sequence.request.id, sequence.index, now, reason, by.request.id)
        )

    def _victim_for(self, sequence: Sequence) -> Sequence | None:
        """The sequence to preempt when there is no memory for this one; None if there is none.

        First a background one, then one of a tenant above its share, otherwise a junior of this
        sequence. If its own tenant is above its share, only juniors of that tenant.
        """
        running, by_class = self._registry.running, self._registry.by_class
        juniors = running[running.index(sequence) + 1 :]
        behind = choose_for_memory(background_of(juniors), by_class=False)
        if behind is not None or sequence.is_background:
            return behind
        over_share = self._registry.memory_shares.over_share(running)
        tenant = sequence.request.limited_tenant
        if tenant in over_share:
            own = [each for each in juniors if each.request.limited_tenant == tenant]
            return choose_for_memory(own, by_class=by_class)
        victim = choose_for_memory(_all_but_first(over_share), by_class=by_class)
        return victim or choose_for_memory(juniors, by_class=by_class)

    def _take_from_share(self, newcomer: Sequence, now: float) -> bool:
        """Preempt a sequence of a tenant above its share; false if there is none."""
        if newcomer.request.limited_tenant is None:
            return False
        assert newcomer.slot is None, "only a waiting sequence takes from a share"
        above = _all_but_first(self._registry.memory_shares.over_share(self._registry.running))
        victim = choose_for_memory(
            [each for each in above if each.has_progressed], by_class=self._registry.by_class
        )
        if victim is None:
            return False
        self._free_memory_of(victim, now, newcomer)
        return True

    def _free_memory_of(self, victim: Sequence, now: float, by: Sequence) -> None:
        """Preempt a sequence and free its memory. It is saved if possible."""
        assert victim is not by, "nobody makes room for itself"
        saved = self._registry.memory.save(victim)
        reason = PreemptReason.SAVED if saved else PreemptReason.RECOMPUTED
        self.preempt(victim, reason, now, by, keeps_memory=False)


def _all_but_first(by_tenant: dict[str, list[Sequence]]) -> list[Sequence]:
    """All but the most senior of each tenant. That one goes on, so every tenant makes progress."""
    return [sequence for own in by_tenant.values() for sequence in own[1:]]
