"""The memory of the fake backend: what each slot holds, exactly as told, and what it costs.

Called by `jitney.backends.fake.backend` on the engine thread only. Every violated precondition
raises BackendFailed with a sentence, so that a mistake of the scheduler cannot pass unseen. Blocks
are counted as a backend with real ones counts them, by `jitney.backends.shared.paging`.
"""

from dataclasses import dataclass, field

from jitney.backends.fake.oracle import HASH_OF_NOTHING, mix64
from jitney.backends.shared.paging import BlockPool, BlockTable
from jitney.core.batch import Copy, Discard, Release, Restore, Sampling, Save, Truncate
from jitney.errors import BackendFailed
from jitney.sampling.sampler import SlotSampler


@dataclass(slots=True)
class SlotContents:
    """What one slot holds. `hashes[i]` is the hash of the first `i` tokens."""

    tokens: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=lambda: [HASH_OF_NOTHING])
    table: BlockTable = field(default_factory=BlockTable)
    sampling: Sampling | None = None
    is_plain: bool = True
    sampler: SlotSampler | None = None
    fault: str | None = None
    """Why this slot cannot be sampled."""
    token_last: int | None = None
    """The token sampled last for this slot, as long as it would stand right after `tokens`."""


class FakeMemory:
    """Slots and tickets over a fixed number of blocks."""

    def __init__(self, slots: int, kv_tokens: int, block_tokens: int) -> None:
        assert slots > 0, f"slots {slots}"
        assert 0 < block_tokens <= kv_tokens, f"blocks of {block_tokens} in {kv_tokens} tokens"
        self._pool = BlockPool(kv_tokens // block_tokens, block_tokens)
        self._slots_max = slots
        self.reset()

    def reset(self) -> None:
        """Empty every slot and every ticket."""
        self._slots = [SlotContents() for _ in range(self._slots_max)]
        self._tickets: dict[int, tuple[list[int], list[int]]] = {}
        self._pool.reset()

    @property
    def used_tokens(self) -> int:
        """Tokens of memory taken, in whole blocks; shared blocks count once."""
        return self._pool.used_tokens

    @property
    def slots_held(self) -> frozenset[int]:
        """The slots that hold at least one token."""
        return frozenset(index for index, state in enumerate(self._slots) if state.tokens)

    @property
    def tickets(self) -> frozenset[int]:
        """The tickets under which something is saved."""
        return frozenset(self._tickets)

    def state(self, slot: int) -> SlotContents:
        """The state of a slot that exists."""
        if not 0 <= slot < self._slots_max:
            raise BackendFailed(f"slot {slot} does not exist; there are {self._slots_max}.")
        return self._slots[slot]

    def append(self, state: SlotContents, tokens: tuple[int, ...], rounding: int) -> None:
        """Write tokens after those that the slot holds, taking blocks for them."""
        self._pool.grow(state.table, len(tokens))
        state.tokens += tokens
        hashes = state.hashes
        rolling = hashes[-1]
        for token in tokens:
            rolling = mix64(rolling, token + rounding)
            hashes.append(rolling)
        state.token_last = None

    def append_one(self, state: SlotContents, token: int, rounding: int) -> None:
        """What `append` does, for the one token of a sequence that generates: the usual case.

        Leaves `token_last` to the caller, who is about to sample the next one.
        """
        self._pool.grow(state.table, 1)
        state.tokens.append(token)
        state.hashes.append(mix64(state.hashes[-1], token + rounding))

    def copy(self, operation: Copy) -> None:
        """The first tokens of one slot become the memory of another, empty one."""
        source, target = self.state(operation.source), self.state(operation.target)
        length = operation.length
        if target.tokens:
            raise BackendFailed(
                f"copy onto slot {operation.target}, which holds {len(target.tokens)} tokens."
            )
        if not 0 < length <= len(source.tokens):
            raise BackendFailed(
                f"copy of {length} tokens from slot {operation.source}, "
                f"which holds {len(source.tokens)}."
            )
        self._pool.share(source.table, target.table, length)
        target.tokens = source.tokens[:length]
        target.hashes = source.hashes[: length + 1]
        target.token_last = None

    def truncate(self, operation: Truncate) -> None:
        """Forget what the slot holds from a position on."""
        state, length = self.state(operation.slot), operation.length
        if not 0 <= length <= len(state.tokens):
            raise BackendFailed(
                f"truncate of slot {operation.slot} to {length} tokens; "
                f"it holds {len(state.tokens)}."
            )
        if length < len(state.tokens):
            self._shorten(state, length)

    def save(self, operation: Save) -> None:
        """Keep a copy of the slot's tokens under a ticket."""
        state = self.state(operation.slot)
        if operation.ticket in self._tickets:
            raise BackendFailed(f"save under ticket {operation.ticket}, which is taken.")
        if not state.tokens:
            raise BackendFailed(f"save of slot {operation.slot}, which is empty.")
        self._tickets[operation.ticket] = (state.tokens.copy(), state.hashes.copy())

    def restore(self, operation: Restore) -> None:
        """Bring saved tokens into an empty slot; the ticket is spent."""
        state = self.state(operation.slot)
        if state.tokens:
            raise BackendFailed(
                f"restore into slot {operation.slot}, which holds {len(state.tokens)} tokens."
            )
        tokens, hashes = self._ticket(operation.ticket)
        self._pool.grow(state.table, len(tokens))
        state.tokens, state.hashes = tokens, hashes
        state.token_last = None

    def discard(self, operation: Discard) -> None:
        """Forget what was saved under a ticket."""
        self._ticket(operation.ticket)

    def release(self, operation: Release) -> None:
        """Forget everything the slot holds, and how its tokens were chosen."""
        state = self.state(operation.slot)
        self._shorten(state, 0)
        state.sampling = None
        state.sampler = None

    def _ticket(self, ticket: int) -> tuple[list[int], list[int]]:
        if ticket not in self._tickets:
            raise BackendFailed(f"nothing is saved under ticket {ticket}.")
        return self._tickets.pop(ticket)

    def _shorten(self, state: SlotContents, length: int) -> None:
        self._pool.shrink(state.table, length)
        del state.tokens[length:]
        del state.hashes[length + 1 :]
        state.token_last = None
