"""Who makes room: running sequences that wait again, for memory, for a class, or for a pause.

The rules of who is chosen are in `core/rules/victim.py`. Nobody is preempted in vain: first all who
have to leave are chosen, and they are preempted only if that gives room enough. A sequence in
flight is never preempted: its batch must return first. Called by the parts of the scheduler only.

Tests: tests/simulation and tests/unit/core/test_preemption.py.
"""

from collections.abc import Callable, Iterable, Iterator

from jitney.core.counters import Counters
from jitney.core.events import PreemptEvent, PreemptReason
from jitney.core.registry import Registry
from jitney.core.rules.background import background_of
from jitney.core.rules.victim import choose_for_class, order_for_memory
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.sequence import Sequence
from jitney.core.staying import Staying


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

        Cached prefixes go first. Then running sequences do, as `_victims_for` says. Where all of
        that is not enough, nothing is evicted and nobody leaves. A shorter span is not tried: it
        would take the room into which its seniors grow, and they would soon preempt it for that.
        The most senior sequence always gets its memory, so something ends, and then the next does.
        """
        assert span >= 1, span
        memory, length = self._registry.memory, sequence.planned + span
        staying, leaving = memory.staying(self._registry.running), list[Sequence]()
        victims = self._victims_for(sequence)
        is_full = not memory.could_grow(sequence, length, staying)
        self._counters["kv_full"] += is_full
        while is_full and not memory.could_grow(sequence, length, staying):
            victim = next(victims, None)
            if victim is None:
                return False
            staying.leave(victim)
            leaving.append(victim)
        for victim in leaving:
            self._free_memory_of(victim, now, sequence)
        return memory.grow(sequence, length)

    def make_room(
        self,
        newcomer: Sequence,
        now: float,
        has_memory: Callable[[Staying], bool],
        *,
        needs_memory: bool,
    ) -> bool:
        """Preempt running sequences for one that waits; false, and none, if it has to wait.

        `has_memory` tells whether there is memory for it if only these stay. As long as a slot is
        all that is needed, the memory of who leaves stays as a cached prefix.
        """
        registry, leaving = self._registry, list[tuple[Sequence, bool, bool]]()
        assert newcomer not in registry.running, "it has a place already"
        staying = registry.memory.staying(registry.running)
        victims = self._victims_for_newcomer(newcomer, now, needs_memory)
        while not leaving or not has_memory(staying):
            victim, is_displaced = next(victims, (None, False))
            if victim is None:
                return False
            staying.leave(victim)
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

    def _victims_for(self, sequence: Sequence) -> Iterator[Sequence]:
        """Whom to preempt when there is no memory for a running one, each before the next.

        First background ones. Then, if its own tenant is above its share, juniors of that tenant,
        and nobody else while it stays above it. Then those of other tenants above their share, and
        last its juniors.
        """
        by_class, shares = self._registry.by_class, self._registry.memory_shares
        running = list(self._registry.running)
        background = background_of(_after(sequence, running))
        yield from _taken_from(running, order_for_memory(background, by_class=False))
        if sequence.is_background:
            return
        tenant, over = sequence.request.limited_tenant, shares.over_share(running)
        if tenant is not None and tenant in over:
            ordered = order_for_memory(_after(sequence, over[tenant]), by_class=by_class)
            yield from _taken_from(running, shares.surplus({tenant: over[tenant]}, ordered))
            over = shares.over_share(running)
            if tenant in over:
                return
        ordered = order_for_memory(_all_but_first(over), by_class=by_class)
        yield from _taken_from(running, shares.surplus(over, ordered))
        yield from order_for_memory(_after(sequence, running), by_class=by_class)

    def _victims_for_newcomer(
        self, newcomer: Sequence, now: float, needs_memory: bool
    ) -> Iterator[tuple[Sequence, bool]]:
        """Who makes room for one that waits, each before the next, and whether as one displaced.

        Background ones first; of these the suspect if the newcomer is one, as two do not run at a
        time. Then, if memory is needed, those of tenants above their share.
        """
        if newcomer.is_background:
            return
        running, shares = list(self._registry.running), self._registry.memory_shares
        background = order_for_memory(background_of(running), by_class=False)
        if newcomer.is_suspect:
            background.sort(key=lambda each: not each.is_suspect)
        for victim in _taken_from(running, background):
            yield victim, True
        if not background and not needs_memory:
            # A slot is all that is needed yet. When one has left, memory may be.
            first = next(self._lower(running, newcomer, now), None)
            if first is None:
                return
            running.remove(first)
            yield first, True
        if newcomer.request.limited_tenant is not None:
            over = shares.over_share(running)
            progressed = [each for each in _all_but_first(over) if each.has_progressed]
            ordered = order_for_memory(progressed, by_class=self._registry.by_class)
            for victim in _taken_from(running, shares.surplus(over, ordered)):
                yield victim, False
        for victim in self._lower(running, newcomer, now):
            yield victim, True

    def _lower(self, running: list[Sequence], newcomer: Sequence, now: float) -> Iterator[Sequence]:
        """Those of these that the class of one that waits displaces, if a class does."""
        if self.displaces:
            yield from choose_for_class(running, newcomer, now, self._overtake_s)

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


def _after(sequence: Sequence, running: list[Sequence]) -> list[Sequence]:
    """The juniors of a sequence among these."""
    return running[running.index(sequence) + 1 :]


def _taken_from(running: list[Sequence], victims: Iterable[Sequence]) -> Iterator[Sequence]:
    """These victims. Each is taken out of the list first."""
    for victim in victims:
        running.remove(victim)
        yield victim
