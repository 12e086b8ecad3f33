"""Who makes room: running sequences that wait again, for memory, for a class, or for a pause.

The rules of who is chosen are in `core/rules/victim.py`. Nobody is preempted in vain: first all who
have to leave are chosen, and they are preempted only if that gives room enough. A sequence in
flight is never preempted: its batch must return first. Called by the parts of the scheduler only.

Tests: tests/simulation and tests/unit/core/test_scheduler.py.
"""

from collections.abc import Callable

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
                self._preempt(sequence, PreemptReason.PAUSED, now, sequence, keeps_memory=True)

    def obtain(self, sequence: Sequence, span: int, now: float) -> bool:
        """Get memory for the sequence's span, if needed from others; false if it has to wait.

        Cached prefixes go first. Then running sequences do, as `_victim_for` says. The most senior
        sequence always gets its memory, so something ends, and then the next one does.
        """
        assert span >= 1, span
        memory, length = self._registry.memory, sequence.planned + span
        if memory.grow(sequence, length):
            return True
        self._counters["kv_full"] += 1
        staying, leaving = list(self._registry.running), list[Sequence]()
        while not memory.could_grow(sequence, length, staying):
            victim = self._victim_for(sequence, staying)
            if victim is None:
                return False
            staying.remove(victim)
            leaving.append(victim)
        for victim in leaving:
            self._free_memory_of(victim, now, sequence)
        return memory.grow(sequence, length)

    def make_room(
        self,
        newcomer: Sequence,
        now: float,
        has_memory: Callable[[list[Sequence]], bool],
        *,
        needs_memory: bool,
    ) -> bool:
        """Preempt running sequences for one that waits; false, and none, if it has to wait.

        `has_memory` tells whether there is memory for it if only these stay. As long as a slot is
        all that is needed, the memory of who leaves stays as a cached prefix.
        """
        staying, leaving = list(self._registry.running), list[tuple[Sequence, bool, bool]]()
        assert newcomer not in staying, "it has a place already"
        while not leaving or not has_memory(staying):
            victim, is_displaced = self._victim_for_newcomer(newcomer, staying, now, needs_memory)
            if victim is None:
                return False
            staying.remove(victim)
            leaving.append((victim, is_displaced, needs_memory))
            needs_memory = True
        for victim, is_displaced, frees_memory in leaving:
            if is_displaced and not frees_memory:
                self.displace(victim, now, newcomer)
            else:
                self._free_memory_of(victim, now, newcomer, is_displaced=is_displaced)
        return True

    def displace(self, sequence: Sequence, now: float, by: Sequence) -> None:
        """Take only the slot of a running sequence. Its memory stays as a cached prefix."""
        self._preempt(sequence, PreemptReason.DISPLACED, now, by, keeps_memory=True)

    def _preempt(
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

    def _victim_for(self, sequence: Sequence, running: list[Sequence]) -> Sequence | None:
        """Which of these to preempt when there is no memory for one of them; None if there is none.

        First a background one, then one of a tenant above its share, otherwise a junior of this
        sequence. If its own tenant is above its share, only juniors of that tenant.
        """
        by_class = self._registry.by_class
        juniors = running[running.index(sequence) + 1 :]
        victim = choose_for_memory(background_of(juniors), by_class=False)
        if victim is not None or sequence.is_background:
            return victim
        over_share = self._registry.memory_shares.over_share(running)
        tenant = sequence.request.limited_tenant
        if tenant in over_share:
            own = [each for each in juniors if each.request.limited_tenant == tenant]
            return choose_for_memory(own, by_class=by_class)
        victim = choose_for_memory(_all_but_first(over_share), by_class=by_class)
        return victim or choose_for_memory(juniors, by_class=by_class)

    def _victim_for_newcomer(
        self, newcomer: Sequence, running: list[Sequence], now: float, needs_memory: bool
    ) -> tuple[Sequence | None, bool]:
        """Which of these makes room for one that waits, if any, and whether as one displaced.

        A background one first. Then, if memory is needed, one of a tenant above its share.
        """
        if newcomer.is_background:
            return None, False
        victim = choose_for_memory(background_of(running), by_class=False)
        if victim is None and needs_memory and newcomer.request.limited_tenant is not None:
            above = _all_but_first(self._registry.memory_shares.over_share(running))
            progressed = [each for each in above if each.has_progressed]
            of_share = choose_for_memory(progressed, by_class=self._registry.by_class)
            if of_share is not None:
                return of_share, False
        if victim is None and self.displaces:
            victim = choose_for_class(running, newcomer, now, self._overtake_s)
        return victim, True

    def _free_memory_of(
        self, victim: Sequence, now: float, by: Sequence, *, is_displaced: bool = False
    ) -> None:
        """Preempt a sequence and free its memory. It is saved if possible."""
        assert victim is not by, "nobody makes room for itself"
        saved = self._registry.memory.save(victim)
        reason = PreemptReason.SAVED if saved else PreemptReason.RECOMPUTED
        if is_displaced:
            reason = PreemptReason.DISPLACED
        self._preempt(victim, reason, now, by, keeps_memory=False)


def _all_but_first(by_tenant: dict[str, list[Sequence]]) -> list[Sequence]:
    """All but the most senior of each tenant. That one goes on, so every tenant makes progress."""
    return [sequence for own in by_tenant.values() for sequence in own[1:]]
