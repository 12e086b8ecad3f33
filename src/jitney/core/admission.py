"""Who of the waiting may run now: one by one, as strategy, policy, shares and memory allow.

The queue says whose turn it is, the gate whether newcomers may join, and the memory whether there
is room. Nothing passes a sequence that only lacks room, or a large one would wait for ever. One
that waits for a prefix, another suspect or its tenant's share is passed. Called by the parts of the
scheduler only.

Tests: tests/simulation and tests/unit/core/test_scheduler.py.
"""

from collections.abc import Iterable, Iterator, Set
from functools import partial

from jitney.core import limits
from jitney.core.counters import Counters
from jitney.core.preemption import Preemption
from jitney.core.prefix import NO_MATCH, Match
from jitney.core.registry import Registry
from jitney.core.rules.background import awaits_first_token
from jitney.core.rules.gate import Newcomers
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.sequence import Sequence
from jitney.core.staying import Staying

LOOKAHEAD = 64
"""Waiting sequences to look at before one is admitted. One that waits for a prefix lets others
pass."""

NOBODY = Newcomers(0, None, 0, 0)


class Admission:
    """Lets waiting sequences run."""

    def __init__(
        self,
        registry: Registry,
        preemption: Preemption,
        settings: SchedulerSettings,
        counters: Counters,
    ) -> None:
        self.registry = registry
        self._preemption = preemption
        self._settings = settings
        self._counters = counters
        self.deferred_count = 0
        """Sequences skipped at the last admission: they do not wait for room."""
        self._memory_full: set[str] = set()
        """Tenants whose share of the memory is used up, as found in this admission."""
        self._gathered_order = 0

    def admit(self, now: float, *, starts_now: bool) -> None:
        """Let waiting sequences run, as far as strategy, policy, limits and memory allow."""
        queue, gate = self.registry.queue, self.registry.gate
        self._memory_full.clear()
        if not queue.count:
            self.deferred_count = 0
            gate.open(now, NOBODY, starts_now=starts_now)
            gate.close()
            return
        held_back = self.held_back
        newcomers = self.newcomers(held_back or frozenset())
        oldest = newcomers.oldest
        is_gathered = oldest is not None and oldest.order <= self._gathered_order
        gate.open(now, newcomers, starts_now=starts_now or is_gathered)
        copied_max = self._counters["copied_tokens"] + limits.COPIED_TOKENS_MAX
        while queue.count and self._admit_one(now, held_back):
            # Nothing of anybody else is in the batch that opens a suspect.
            is_alone = self.registry.opened[-1].is_suspect
            if is_alone or self._counters["copied_tokens"] >= copied_max:
                break
            held_back = self.held_back
        # Sequences that a share holds back cannot join this group later, nor who came later.
        first = queue.live.oldest_newcomer(queue.shares.full | self._memory_full)
        if first is None or not gate.may_join(first):
            gate.close()

    def stop_gathering(self) -> None:
        """Sequences that wait now need not wait for others to join them."""
        assert self._gathered_order <= self.registry.last_order, self._gathered_order
        self._gathered_order = self.registry.last_order

    def newcomers(self, without: Set[str]) -> Newcomers:
        """The newcomers without those of these tenants, and how many sequences more may run."""
        lane = self.registry.queue.live
        count, oldest = lane.newcomer_count(without), lane.oldest_newcomer(without)
        running_count = len(self.registry.running) - self.registry.background_count
        assert running_count <= self._settings.max_num_seqs, running_count
        room = self._settings.max_num_seqs - running_count
        return Newcomers(count, oldest, room, self.registry.last_order)

    @property
    def held_back(self) -> Set[str] | None:
        """Tenants of which nothing is admitted now; None: nothing is admitted at all.

        These are tenants that run their full share. When running sequences fill a tick, it is
        better to choose the next one later. Then tenants that already prefill are held back too;
        other tenants still get their part of the tick. Background sequences do not fill it.
        """
        full = self.registry.queue.shares.full
        if not self.registry.queue.count:
            return full  # nobody waits: what the running ones want need not be counted
        live = [sequence for sequence in self.registry.running if not sequence.is_background]
        if not self._fill_tick(live):
            return full
        prefilling = {s.request.limited_tenant for s in live if self.registry.wanted(s) > 1}
        named = {tenant for tenant in prefilling if tenant is not None}
        return full | named if named == prefilling else None

    @property
    def is_live_awaited(self) -> bool:
        """Whether a live sequence waits for its turn, prefills, or waits for its first token.

        Those that their caller, the gate or a share holds back do not count.
        """
        queue, paused = self.registry.queue, self.registry.paused
        without = queue.shares.full | self._memory_full
        if queue.live_count(without, newcomers=self.registry.gate.is_open):
            return True
        return any(
            awaits_first_token(sequence)
            for sequence in self.registry.running
            if not sequence.is_background and sequence not in paused
        )

    @property
    def is_tick_full(self) -> bool:
        """Whether the running sequences, also background ones, want all tokens of a tick."""
        return self._fill_tick(self.registry.running)

    @property
    def is_room_wanted(self) -> bool:
        """Whether a waiting sequence may want what a running one gives back, at once.

        While a live one runs, background ones do not: a tick later is soon enough for them.
        """
        queue, running = self.registry.queue, self.registry.running
        waiting_count = queue.live_count(frozenset(), newcomers=self.registry.gate.is_open)
        if waiting_count and not self._has_room_for_all():
            return True
        is_live_running = running and not running[0].is_background
        return not is_live_running and queue.background.count > 0

    def has_memory(self, sequence: Sequence, match: Match) -> bool:
        """Whether there is room for its known tokens, beside the running sequences."""
        memory, running = self.registry.memory, self.registry.running
        if self._is_ample(memory.blocks_wanted(sequence, match)):
            return True
        room = memory.blocks_obtainable(running, match) - memory.blocks_promised(running)
        return self._is_enough(room, len(running), sequence, match)

    def _is_ample(self, wanted: int) -> bool:
        """Whether so many blocks are free beside what running sequences may need for their known
        tokens. Who does not prefill needs one at most, so nobody looks at each of them."""
        registry = self.registry
        promised = registry.memory.blocks_promised(list(registry.prefilling))
        running_count = len(registry.running)
        promised += running_count - len(registry.prefilling)
        return registry.memory.ledger.free >= wanted + promised + self._reserve(running_count)

    def _has_room_for_all(self) -> bool:
        """Whether each waiting sequence finds a slot and memory beside the running ones, whoever
        ends, and no share holds it back."""
        queue, registry = self.registry.queue, self.registry
        if queue.shares.waiting_count(queue.shares.full | self._memory_full):
            return False
        if len(registry.running) + queue.count > self._settings.max_num_seqs:
            return False
        # Each may begin a block that it does not fill.
        blocks = queue.token_count // registry.memory.ledger.block_tokens + queue.count
        return self._is_ample(blocks)

    def _admit_one(self, now: float, held_back: Set[str] | None) -> bool:
        """Admit one sequence, or make room for one; false if there is nothing more to do."""
        self.deferred_count = 0
        registry = self.registry
        is_full = len(registry.running) >= self._settings.max_num_seqs
        # Background sequences are the last of the running ones.
        if is_full and not self._preemption.displaces and not registry.running[-1].is_background:
            return False
        if held_back is None:
            return False
        without = held_back | self._memory_full
        if registry.queue.shares.waiting_count(without):
            self._counters["share_waits"] += 1
        candidates, others_count = self._candidates(now, without)
        looked_at = 0
        for sequence in candidates:
            tenant = sequence.request.limited_tenant
            if tenant in self._memory_full:
                continue  # found full just now; after this it is left out as a whole
            self.deferred_count = others_count + looked_at
            if looked_at >= LOOKAHEAD:
                return False
            looked_at += 1
            if not self._may_run(sequence):
                continue
            match = self._match_of(sequence, now)
            if match is None:
                continue
            shares, running = registry.memory_shares, registry.running
            if tenant is not None and not shares.has_room(sequence, match, running):
                # The tenant's other sequences wait too. Those of other tenants pass.
                self._memory_full.add(tenant)
                continue
            return self._start(sequence, match, now)
        assert looked_at <= LOOKAHEAD, looked_at
        self.deferred_count = registry.queue.count
        return False

    def _match_of(self, sequence: Sequence, now: float) -> Match | None:
        """What it can begin with; None if it waits for more, which somebody computes or fetches."""
        memory = self.registry.memory
        match = memory.find(sequence)
        if match.is_awaited:
            self._counters["prefix_waits"] += 1
            return None
        if memory.stored.awaits(sequence, match.length, now):
            self._counters["fetch_waits"] += 1
            return None
        return match

    def _candidates(self, now: float, without: Set[str]) -> tuple[Iterable[Sequence], int]:
        """The sequences that may be admitted, the next first; and how many others wait.

        The others wait for a group, or for their tenant's share.
        """
        queue, gate = self.registry.queue, self.registry.gate
        waiting = self._in_order(now, without)
        if gate.is_open:
            # Many who came later may be before a member of the group.
            return filter(gate.may_join, waiting), queue.shares.waiting_count(without)
        newcomer_count = queue.live.newcomer_count()
        assert newcomer_count <= queue.count, newcomer_count
        # A sequence that ran before may come after many newcomers.
        found = filter(gate.may_join, waiting) if newcomer_count < queue.count else ()
        return found, newcomer_count

    def _in_order(self, now: float, without: Set[str]) -> Iterator[Sequence]:
        """The waiting sequences without these tenants, the next first.

        Background ones follow only when they may join: a tick that is full needs no more of them.
        """
        queue = self.registry.queue
        yield from queue.live.ordered(now, without)
        if queue.background.count and not self.is_tick_full and not self.is_live_awaited:
            # They have no share, whatever their key has.
            yield from queue.background.ordered(now)

    def _fill_tick(self, running: list[Sequence]) -> bool:
        """Whether these sequences want all tokens of a tick."""
        chunk, wanted = self._settings.prefill_chunk, self.registry.wanted
        budget = self._settings.max_num_batched_tokens
        prefills = sum([min(wanted(sequence), chunk) for sequence in self.registry.prefilling])
        if prefills + len(running) < budget:
            return False  # who does not prefill wants one token at most
        return sum([min(wanted(sequence), chunk) for sequence in running]) >= budget

    def _start(self, sequence: Sequence, match: Match, now: float) -> bool:
        """Let it run, or make room for it; false if it has to wait."""
        assert sequence.slot is None, "a waiting sequence has no slot"
        is_full = len(self.registry.running) >= self._settings.max_num_seqs
        if is_full or not self.has_memory(sequence, match):
            self._counters["kv_full"] += not is_full
            has_memory = partial(self._has_memory_beside, sequence, match)
            if not self._preemption.make_room(sequence, now, has_memory, needs_memory=not is_full):
                return False
            match = self.registry.memory.find(sequence)
        if sequence.is_suspect:
            self._begin_trial(sequence, now)
        self.registry.start(sequence, match, now)
        return True

    def _has_memory_beside(self, sequence: Sequence, match: Match, staying: Staying) -> bool:
        """Whether there is room for it if of the running sequences only these stay."""
        source = match.holding
        if source and not source.is_cached and source.slot not in staying.slots:
            match = NO_MATCH  # its prefix may go with the sequence that has computed it
        room = self.registry.memory.blocks_beside(staying, match) - staying.promised
        return self._is_enough(room, len(staying.slots), sequence, match)

    def _is_enough(self, room: int, running_count: int, sequence: Sequence, match: Match) -> bool:
        """Whether so many blocks are enough for its known tokens, beside so many sequences."""
        memory = self.registry.memory
        room -= memory.blocks_wanted(sequence, match)
        assert room <= memory.ledger.capacity, room
        return room >= self._reserve(running_count)

    def _reserve(self, running_count: int) -> int:
        """Blocks that are kept for the running sequences to grow into."""
        capacity = self.registry.memory.ledger.capacity
        return int(self._settings.watermark * capacity * bool(running_count))

    def _may_run(self, sequence: Sequence) -> bool:
        """Whether it may be tried if it is a suspect: they run one at a time, and a live one before
        background ones. The batch that opens it opens nobody else."""
        if not sequence.is_suspect:
            return True
        return not self.registry.opened and all(
            other.is_background and not sequence.is_background and not other.is_in_flight
            for other in self.registry.running
            if other.is_suspect
        )

    def _begin_trial(self, sequence: Sequence, now: float) -> None:
        """The suspect starts now, and no other one runs beside it."""
        for other in [each for each in self.registry.running if each.is_suspect]:
            self._preemption.displace(other, now, sequence)
        self._counters["quarantined"] += 1
