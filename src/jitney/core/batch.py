"""The whole instruction to a backend, and its answer: `Batch` and `Outcome`.

A batch is plain integers and floats: it can be printed, recorded, replayed, sent over a pipe and
checked by a simulator. A backend carries out the memory operations in order, then one forward
pass over the entries, then samples for every entry that wants a token.

Tests: tests/conformance.
"""

from dataclasses import dataclass
from enum import StrEnum

from jitney.core.params import Constraint


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the tokens of one slot are chosen; `jitney.sampling.reference` says what each means.

    Everything that sampling depends on is here or in the tokens of the slot, so that a slot can
    be rebuilt from its tokens after a preemption or a crash. The tokens of the slot before
    `prompt_count` are prompt, the others completion. Draws depend on (seed, position) alone.
    """

    seed: int
    prompt_count: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    end_tokens: tuple[int, ...] = ()
    """Tokens that may not be chosen before the completion has `min_tokens` tokens."""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """The slot's tokens are chosen by this sampling from here on; its memory stays as it is."""

    slot: int
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `length` tokens of `source` become the memory of the empty slot `target`."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Forget what the slot holds from position `length` on."""

    slot: int
    length: int


@dataclass(frozen=True, slots=True)
class Save:
    """Keep a copy of the slot's memory outside of it, under `ticket`."""

    slot: int
    ticket: int


@dataclass(frozen=True, slots=True)
class Restore:
    """Bring what was saved under `ticket` into the empty slot; the ticket is spent."""

    ticket: int
    slot: int


@dataclass(frozen=True, slots=True)
class Release:
    """Forget everything the slot holds."""

    slot: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Forget what was saved under `ticket`: its sequence ended while it waited."""

    ticket: int


MemoryOperation = Open | Copy | Truncate | Save | Restore | Release | Discard


@dataclass(frozen=True, slots=True)
class Entry:
    """One sequence's part of a batch: the span of positions from `start` on.

    When `continues` is true the span is the single token that the backend sampled last for this
    slot, and `tokens` is empty: the batch was planned before that token was known here.
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    wants_token: bool
    continues: bool = False

    @property
    def length(self) -> int:
        """How many positions the span covers."""
        return 1 if self.continues else len(self.tokens)

    @property
    def end(self) -> int:
        """The position after the span: where a sampled token would stand."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Batch:
    """All work of one tick. `number` grows by one from batch to batch."""

    number: int
    operations: tuple[MemoryOperation, ...]
    entries: tuple[Entry, ...]

    @property
    def token_count(self) -> int:
        """Positions that the forward pass computes."""
        return sum(entry.length for entry in self.entries)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its logprob, and the most likely tokens at that position, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class FaultKind(StrEnum):
    """Whose turn it is after a fault."""

    BACKEND = "backend"
    """The model or the backend failed."""
    REQUEST = "request"
    """The caller's constraint cannot be followed: some are found out only on the way."""
    CAPACITY = "capacity"
    """Nobody's mistake: the compiled constraint was given up for others. It may work later."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why no token could be chosen, in a sentence for people."""

    message: str
    kind: FaultKind = FaultKind.BACKEND


@dataclass(frozen=True, slots=True)
class Sample:
    """What came back for one entry.

    `token` is None when none was wanted, or when `fault` says why none could be chosen.
    `prompt_logprobs` are those of the span's own tokens that are prompt tokens, in order, when
    the sampling asks for them; the token at position 0 has none and is left out.
    """

    token: int | None = None
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back for a batch: one sample per entry, in order, and the time it took."""

    number: int
    samples: tuple[Sample, ...]
    seconds: float
