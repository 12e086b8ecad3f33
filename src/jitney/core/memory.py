"""The model's memory as the scheduler sees it: slots, the ledger, cached prefixes, saved memory.

It does not decide which sequences run. It makes each change in the ledger and the prefix index, and
adds a memory operation to the next batch. The operations are in the order in which they must
happen.

    a slot is   free     on `_free`, holds nothing
                owned    in `holdings`, by a running sequence
                cached   in `holdings` and `_cached`: kept for its prefix until room is needed

Tests: tests/simulation and tests/unit/core/test_scheduler.py.
"""

import heapq

from jitney.core.backend import Traits
from jitney.core.batch import (
    Copy,
    Discard,
    MemoryOperation,
    Open,
    Release,
    Restore,
    Save,
    Truncate,
)
from jitney.core.counters import Counters
from jitney.core.kept_states import StateIndex, next_copy
from jitney.core.ledger import Ledger
from jitney.core.limits import PREFIX_STRIDE
from jitney.core.prefix import NO_MATCH, Chain, EvictionOrder, Holding, Match, PrefixIndex
from jitney.core.saved_memory import SavedMemories, SavedMemory
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.sequence import Sequence
from jitney.core.staying import Staying
from jitney.core.stored_prefixes import StoredPrefixes

SAMPLE_SLOTS = 4
"""How many slots `check_sample` looks at."""


class Memory:
    """Slots and blocks: which sequence has them, which are shared, which could be freed."""

    def __init__(self, traits: Traits, settings: SchedulerSettings, counters: Counters) -> None:
        assert traits.slots_max >= settings.max_num_seqs, (traits, settings)
        self._traits = traits
        self._settings = settings
        self._counters = counters
        self._rewinds = traits.rewinds
        self._block = traits.block_tokens
        self.ledger = Ledger(traits.kv_tokens // self._block, self._block)
        self._free = list(range(traits.slots_max))
        self.holdings: dict[int, Holding] = {}
        """What each slot holds. Changed only here."""
        self._cached = EvictionOrder(settings, traits.slots_max)
        self._index = self._new_index()
        self._operations: list[MemoryOperation] = []
        self._saved = SavedMemories(traits, settings)
        self.stored = StoredPrefixes(traits, settings, counters, self._saved, self._operations)
        self._sampled_slot = 0
        self._cached_blocks: int | None = None
        """Blocks that only cached prefixes hold; None when a slot has changed hands since the last
        count. Nothing else changes it: what running sequences grow is their own."""

    def take_operations(self) -> tuple[MemoryOperation, ...]:
        """The operations since the last call, for the next batch."""
        operations = tuple(self._operations)
        self._operations.clear()
        return operations

    def find(self, sequence: Sequence) -> Match:
        """The longest prefix of the sequence that a slot holds, within its scope.

        One token is always left to compute, because only a forward pass gives the next one. The
        saved memory of the sequence is preferred, unless a prefix is as long.
        """
        if sequence.wants_prompt_logprobs:
            return NO_MATCH  # logprobs of the prompt need all of it to be computed
        chain = self._chain(sequence)
        read_count = chain.read_count
        match = self._index.longest(
            chain, sequence.known_count - 1, is_background=sequence.is_background
        )
        self._counters["prefix_tokens_read"] += chain.read_count - read_count
        saved = self._saved.of(sequence)
        return match if saved is None or match.length >= saved.token_count else NO_MATCH

    def blocks_wanted(self, sequence: Sequence, match: Match) -> int:
        """Blocks that the sequence needs to compute all its known tokens."""
        assert match.length < sequence.known_count, "one token is left to compute"
        count, saved = sequence.known_count, self._saved.of(sequence)
        if match.holding is None and saved is not None:
            count = max(count, saved.held)  # all of it is restored, and then cut
        return self.ledger.blocks(count) - match.length // self._block

    def blocks_promised(self, running: list[Sequence]) -> int:
        """Blocks that running sequences still need for their known tokens."""
        growth = self.ledger.growth
        return sum([growth(s.slot, len(s.tokens)) for s in running if s.slot is not None])

    def blocks_obtainable(self, running: list[Sequence], match: Match) -> int:
        """Free blocks and blocks that only cached prefixes hold, without the matched ones."""
        if match.holding is not None and match.holding.is_cached:
            return self.blocks_beside(self.staying(running), match)
        return self.ledger.capacity - self.ledger.used + self.cached_blocks(running)

    def staying(self, running: list[Sequence]) -> Staying:
        """These running sequences, to choose some who leave."""
        return Staying(self.ledger, running)

    def blocks_beside(self, staying: Staying, match: Match) -> int:
        """Blocks that would be obtainable if of the running sequences only these stay."""
        held, source = staying.held, match.holding
        if source is not None and source.is_cached:
            # Running sequences may share its blocks, which count once.
            held = min(held + match.length // self._block, staying.held_with(source.slot))
        assert held <= self.ledger.capacity, held
        return self.ledger.capacity - held

    def give_slot(self, sequence: Sequence, match: Match) -> None:
        """Give the sequence a slot with the matched or saved tokens, for which there is room."""
        assert sequence.slot is None, "it has a slot already"
        self.stored.forget(sequence)
        source = match.holding
        if source is None and sequence in self._saved:
            self._give_restored(sequence)
            return
        is_whole = source is not None and source.is_cached and match.length == source.length
        # A state stays for others: a copy always, and what ended while there are free slots.
        stays = not self._rewinds and (self._free or (source is not None and source.is_copy))
        if source is not None and is_whole and not stays:
            self._take_over(sequence, source, match.length)
        elif not self._give_copy(sequence, match):
            assert source is not None, "there is room for what copies nothing"
            # No room for a copy: cut the prefix at a block's edge and use its slot.
            cut = 0 if is_whole else match.length % self._block
            self._take_over(sequence, source, match.length - cut)
        self.discard(sequence)
        self._counters["copied_tokens"] += sequence.computed

    def until_copy(self, sequence: Sequence) -> int | None:
        """How many tokens it may compute until a copy of its state is to be kept, if any is."""
        assert sequence.slot is not None, "only a sequence with a slot has a state"
        keeps_at = self.holdings[sequence.slot].keeps_at
        return None if keeps_at is None else keeps_at - sequence.planned

    def keep_state(self, sequence: Sequence, running: list[Sequence]) -> None:
        """Keep a copy of its state, if it is to be kept here and there is room beside those who
        run: now, because the next batch goes on from here."""
        left = self.until_copy(sequence)
        # One token before will do: alone in a span, the last one would be taken for a decode.
        if sequence.slot is None or left is None or left > 1:
            return
        length, source = sequence.planned, self.holdings[sequence.slot]
        assert left >= 0 < length, (length, left)
        source.keeps_at = self._next_copy(sequence, length + left)
        self._index.extend(source)
        match = self._index.longest(source.chain, length, is_background=sequence.is_background)
        if match.length == length:
            return  # somebody has kept it already
        blocks = self.ledger.blocks(length % self._block)
        slot = None
        if blocks <= self.blocks_obtainable(running, NO_MATCH):
            slot = self._take_slot(blocks)
        if slot is None:
            return
        self._operations.append(Copy(sequence.slot, slot, length))
        self.ledger.copy(sequence.slot, slot, length)
        kept = Holding(slot, source.chain, length, is_background=sequence.is_background)
        kept.is_cached = kept.is_copy = True
        self.holdings[slot] = kept
        self._cached_blocks = None
        is_on_way = source.keeps_at is not None
        self._counters["copies_demoted"] += self._cached.add_copy(kept, is_on_way=is_on_way)
        self._index.extend(kept)
        self._counters["kept_states"] += 1

    def forget(self, sequence: Sequence) -> None:
        """Release what is cached of its tokens: it may hold the cause of a failure, or its request
        has ended and nobody else may use it."""
        scope = None if self._settings.enable_prefix_caching else self._scope(sequence)
        for holding in list(self._cached.values()):
            if holding.chain is sequence.chain or holding.chain.scope == scope:
                del self._cached[holding.slot]
                self._release(holding)
                self._counters["copies_forgotten"] += holding.is_copy

    def grow(self, sequence: Sequence, length: int) -> bool:
        """Take room for the sequence's first `length` tokens; may evict cached prefixes."""
        assert sequence.slot is not None, "only a sequence with a slot grows"
        assert length <= sequence.known_max, "it has no position after its last token"
        while not self.ledger.grow(sequence.slot, length):
            if not self._evict_oldest(None):
                return False
        return True

    def could_grow(self, sequence: Sequence, length: int, staying: Staying) -> bool:
        """Whether there is room for that if of the running sequences only these stay."""
        assert sequence.slot is not None, "only a sequence with a slot grows"
        room = self.ledger.capacity - staying.held
        return self.ledger.growth(sequence.slot, length) <= room

    def confirm(self, sequence: Sequence) -> None:
        """More tokens of the sequence are computed: now others may share them."""
        assert sequence.slot is not None, "only a sequence with a slot computes"
        holding = self.holdings[sequence.slot]
        holding.length = length = sequence.computed
        if length // PREFIX_STRIDE != holding.computed_depth:
            # Most tokens end no stride, so nothing in the index changes.
            self._index.extend(holding)

    def leave(self, sequence: Sequence, *, keeps_memory: bool) -> None:
        """The sequence gives its slot back. Its tokens stay as a cached prefix, or are released."""
        assert sequence.slot is not None, "only a sequence with a slot leaves"
        holding = self.holdings[sequence.slot]
        holding.is_cached = True
        self._cached_blocks = None
        # A batch in flight may compute more. Where that cannot be cut off, it stays.
        kept = sequence.computed if self._rewinds else sequence.planned
        is_known = kept <= sequence.known_count
        if not (keeps_memory and self._settings.enable_prefix_caching and kept and is_known):
            self._release(holding)
        else:
            if self._rewinds:
                self._index.trim(holding, kept)
            else:
                holding.length = kept
                self._index.extend(holding)
            # A batch in flight may have computed more than the end of the sequence.
            self._cut(holding.slot, kept)
            self._counters["copies_demoted"] += self._cached.add(holding)
        sequence.forget_computed()

    def save(self, sequence: Sequence) -> bool:
        """Save the sequence's memory under a ticket, if the backend can and there is room."""
        assert sequence.slot is not None, "only a sequence with a slot can be saved"
        assert sequence not in self._saved, "what runs has its memory in a slot"
        count = sequence.computed
        if count == 0 or not self._traits.can_save or not self._saved.has_room(count):
            return False
        saved = SavedMemory(self._saved.new_ticket(), count, count)
        self._saved.add(sequence, saved)
        self._operations.append(Save(sequence.slot, saved.ticket))
        return True

    def discard(self, sequence: Sequence) -> None:
        """Forget the saved memory of the sequence, if there is any."""
        self.stored.forget(sequence)
        saved = self._saved.pop(sequence)
        if saved is not None:
            self._operations.append(Discard(saved.ticket))

    def clear(self) -> None:
        """The backend's memory is lost: every slot is free and every ticket is void."""
        self.ledger = Ledger(self.ledger.capacity, self._block)
        self._cached_blocks = None
        self._free = list(range(self._traits.slots_max))
        self.holdings.clear()
        self._cached.clear()
        self._index = self._new_index()
        self._operations.clear()
        self._saved.clear()
        self.stored.clear()

    def heads(self, strides: int) -> frozenset[int]:
        """Keys of the computed prefixes, each `strides` strides long or a multiple of it.

        An engine that has one of these keys computes only what follows it.
        """
        found: set[int] = set()
        for holding in self.holdings.values():
            depth = holding.computed_depth
            # A state is of use where it ends only.
            first = strides if self._rewinds else max(depth // strides, 1) * strides
            found.update(holding.chain.keys(depth)[first - 1 : depth : strides])
        return frozenset(found)

    @property
    def cached_count(self) -> int:
        """Slots that are kept only for their prefixes."""
        return len(self._cached)

    def cached_blocks(self, running: list[Sequence]) -> int:
        """Blocks that only cached prefixes hold."""
        if self._cached_blocks is None:
            self._cached_blocks = self.ledger.used - self.held_by(running)
        return self._cached_blocks

    def check(self, running: list[Sequence]) -> None:
        """Recount everything (invariant 3)."""
        ledger = self.ledger
        assert ledger.used == ledger.recount(), (ledger.used, ledger.recount())
        assert 0 <= ledger.used <= ledger.capacity, ledger.used
        self._saved.check()
        assert self.cached_blocks(running) == ledger.used - self.held_by(running), "cached blocks"
        owned = {sequence.slot for sequence in running}
        assert len(owned) == len(running), "two sequences in one slot"
        assert owned.isdisjoint(self._cached), "a running sequence in a cached slot"
        assert owned | set(self._cached) == set(self.holdings), "a slot without an owner"
        slots_max, promising = self._traits.slots_max, [h.keeps_at for h in self.holdings.values()]
        assert slots_max > self._settings.max_num_seqs or not any(promising), "a slot is promised"
        assert len(self._free) + len(self.holdings) == slots_max, self._free
        for slot in self._free:
            assert ledger.length(slot) == 0, slot
        for slot, holding in self._cached.items():
            assert ledger.length(slot) == holding.length, (slot, holding.length)
        for sequence in running:
            assert sequence.slot is not None, "only a sequence with a slot runs"
            assert ledger.length(sequence.slot) == sequence.planned, sequence.slot
        self._index.check(list(self.holdings.values()))

    def check_sample(self) -> None:
        """Check the totals and the next few slots, in turn: so much in production, where `check`
        would take as long as the memory is large."""
        ledger, slot_count = self.ledger, self._traits.slots_max
        assert 0 <= ledger.used <= ledger.capacity, ledger.used
        assert len(self._free) + len(self.holdings) == slot_count, self._free
        for _ in range(min(SAMPLE_SLOTS, slot_count)):
            slot = self._sampled_slot = (self._sampled_slot + 1) % slot_count
            holding = self.holdings.get(slot)
            if holding is None:
                assert ledger.length(slot) == 0, slot
                continue
            assert holding.is_cached == (slot in self._cached), slot
            if holding.is_cached:
                assert ledger.length(slot) == holding.length, (slot, holding.length)
            self._index.check_ends(holding)

    def held_by(self, running: list[Sequence]) -> int:
        """Blocks of these sequences. Shared blocks count once."""
        return self.ledger.held_by([s.slot for s in running if s.slot is not None])

    def _new_index(self) -> PrefixIndex | StateIndex:
        return PrefixIndex() if self._rewinds else StateIndex()

    def _next_copy(self, sequence: Sequence, length: int) -> int | None:
        """After so many tokens: where a copy of its state is to be kept next, if anywhere."""
        settings, prompt_count = self._settings, sequence.prompt_count
        if self._rewinds or self._traits.slots_max == settings.max_num_seqs:
            return None
        if settings.enable_prefix_caching:
            return next_copy(length, prompt_count, settings.kept_state_every)
        # Only the other completions of its request use it.
        is_shared = sequence.request.params.n > 1
        return next_copy(length, prompt_count, prompt_count) if is_shared else None

    def _chain(self, sequence: Sequence) -> Chain:
        if sequence.chain is None:
            spanned = sequence.prompt_count if self._traits.decodes_differ else 0
            scope, order = self._scope(sequence), sequence.order
            sequence.chain = Chain(scope, sequence.tokens, spanned, order=order)
        return sequence.chain

    def _scope(self, sequence: Sequence) -> str:
        # Without reuse, only the completions of one request share: `n` needs one prefill.
        if self._settings.enable_prefix_caching:
            return "scope " + sequence.request.scope
        return "request " + sequence.request.id

    def _give_restored(self, sequence: Sequence) -> None:
        saved = self._saved.pop(sequence)
        assert saved is not None, "its caller has seen it"
        assert saved.token_count < sequence.known_count, saved
        slot = self._take_slot(self.ledger.blocks(saved.held))
        assert slot is not None, "there is room for what was saved"
        self._operations.append(Restore(saved.ticket, slot))
        has_room = self.ledger.grow(slot, saved.held)
        assert has_room, "it was made for the slot"
        self._cut(slot, saved.token_count)
        self._own(sequence, slot, saved.token_count)
        self._counters["restored"] += 1

    def _give_copy(self, sequence: Sequence, match: Match) -> bool:
        """Give a new slot, with a copy of the matched prefix."""
        source = match.holding
        assert source is None or match.length <= source.length, match.length
        slot = self._take_slot(self.ledger.blocks(match.length % self._block), source)
        if slot is None:
            return False
        if source is not None:
            self._operations.append(Copy(source.slot, slot, match.length))
            self.ledger.copy(source.slot, slot, match.length)
            if source.is_cached and not (source.is_background and sequence.is_background):
                self._cached.use(source)
        self._own(sequence, slot, match.length)
        return True

    def _take_over(self, sequence: Sequence, holding: Holding, length: int) -> None:
        """The slot of a cached prefix becomes the sequence's own, without a copy."""
        assert holding.is_cached, "only a cached prefix has no owner"
        assert 0 <= length <= holding.length, (length, holding.length)
        del self._cached[holding.slot]
        self._cut(holding.slot, length)
        self._index.trim(holding, 0)
        del self.holdings[holding.slot]
        self._own(sequence, holding.slot, length)
        self._counters["taken_over"] += 1

    def _cut(self, slot: int, length: int) -> None:
        """Let the slot forget what is behind so many tokens."""
        if self.ledger.length(slot) > length:
            self._operations.append(Truncate(slot, length))
            self.ledger.shrink(slot, length)

    def _own(self, sequence: Sequence, slot: int, computed: int) -> None:
        assert slot not in self.holdings, "a slot has one owner"
        self._cached_blocks = None
        assert computed < sequence.known_count, "one token is left to compute"
        is_background = sequence.is_background
        holding = Holding(slot, self._chain(sequence), computed, is_background=is_background)
        self.holdings[slot] = holding
        holding.keeps_at = self._next_copy(sequence, computed)
        self._index.extend(holding)
        self._operations.append(Open(slot, sequence.sampling))
        sequence.slot = slot
        sequence.computed = sequence.planned = computed

    def _take_slot(self, blocks: int, pinned: Holding | None = None) -> int | None:
        """A free slot, with room for so many blocks; None if there is too little of either."""
        while self.ledger.free < blocks or not self._free:
            if not self._evict_oldest(pinned):
                return None
        # The lowest first: some backends are faster when used slots are neighbours.
        return heapq.heappop(self._free)

    def _evict_oldest(self, pinned: Holding | None) -> bool:
        for slot, holding in self._cached.items():
            if holding is not pinned:
                del self._cached[slot]
                self._release(holding)
                self._counters["evicted"] += 1
                return True
        return False

    def _release(self, holding: Holding) -> None:
        assert holding.is_cached, "a running sequence needs its slot"
        self._cached_blocks = None
        self._index.trim(holding, 0)
        del self.holdings[holding.slot]
        self.ledger.release(holding.slot)
        self._operations.append(Release(holding.slot))
        heapq.heappush(self._free, holding.slot)
