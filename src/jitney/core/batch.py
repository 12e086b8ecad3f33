"""The whole instruction to a backend, and its answer: `Batch` and `Outcome`.

A batch is made of plain integers and floats. It can be printed, recorded, replayed, sent over a
pipe and checked by a simulator. A backend first does the memory operations in order, then one
forward pass over the entries. Then it samples a token for every entry that wants one.

Tests: tests/conformance.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from jitney.core.params import Constraint
from jitney.core.value import value


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the tokens of one slot are chosen; `jitney.sampling.sampler` explains each field.

    Sampling depends only on these fields and on the tokens of the slot. So a slot can be rebuilt
    from its tokens after a preemption or a crash. The first `prompt_count` tokens of the slot are
    the prompt, the others the completion. Draws depend on (seed, position) alone.
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
    """These may not be chosen before the completion has `min_tokens` tokens."""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """From now on the slot uses this sampling. Its memory does not change."""

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
    """Forget the slot's tokens from position `length` on."""

    slot: int
    length: int


@dataclass(frozen=True, slots=True)
class Save:
    """Keep a copy of the slot's memory outside the slot, under `ticket`."""

    slot: int
    ticket: int


@dataclass(frozen=True, slots=True)
class Store:
    """Write a copy of the slot's memory to the disk, for later requests of this scope.

    They may use its first `length` tokens. Nothing is written where another copy is being written,
    or the disk has it. `scope` is a digest: nobody's key or salt leaves the core.
    """

    slot: int
    scope: str
    length: int


@dataclass(frozen=True, slots=True)
class Restore:
    """Copy the memory saved or fetched under `ticket` into the empty slot. The ticket is used
    up."""

    ticket: int
    slot: int


@dataclass(frozen=True, slots=True)
class Release:
    """Forget everything the slot holds."""

    slot: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Forget the memory saved or fetched under `ticket`, if it is there. Its sequence ended, or
    found a prefix as long in a slot."""

    ticket: int


MemoryOperation = Open | Copy | Truncate | Save | Store | Restore | Release | Discard


@value
class Entry:
    """One sequence's part of a batch: the span of positions from `start` on.

    When `continues` is true, the span is the one token that the backend sampled last for this slot.
    `tokens` is then empty, because the batch was planned before that token was known here.
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    wants_token: bool
    continues: bool = False

    @property
    def length(self) -> int:
        """How many positions the span covers."""
        return len(self.tokens) or 1

    @property
    def end(self) -> int:
        """The position after the span, where a sampled token goes."""
        return self.start + (len(self.tokens) or 1)


NO_TOKEN = -1
"""Stands in a column for a token that is not known, or not there."""


@value
class Decodes:
    """Entries of one position that want a token, as columns: most of a batch are such.

    A token is NO_TOKEN where its entry continues from the one that the backend sampled last.
    """

    slots: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()

    def entries(self) -> list[Entry]:
        """The same as entries."""
        return [
            Entry(slot, start, () if token < 0 else (token,), True, token < 0)
            for slot, start, token in zip(self.slots, self.starts, self.tokens, strict=True)
        ]


NO_DECODES = Decodes()


@value
class Batch:
    """All work of one tick. `number` grows by one from batch to batch.

    What is no decode is in `spans`. Decodes come first wherever entries are in order.
    """

    number: int
    operations: tuple[MemoryOperation, ...]
    spans: tuple[Entry, ...]
    decodes: Decodes = NO_DECODES

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in order. Made at each call: who is in a hurry reads the columns."""
        return (*self.decodes.entries(), *self.spans)

    @property
    def entry_count(self) -> int:
        """How many entries it has."""
        return len(self.decodes.slots) + len(self.spans)

    @property
    def token_count(self) -> int:
        """Positions that the forward pass computes."""
        return len(self.decodes.slots) + sum([len(entry.tokens) or 1 for entry in self.spans])


LOGPROB_MIN = -9999.0
"""Stands for minus infinity, which JSON cannot express. OpenAI's API gives the same value."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its logprob, and the most likely tokens at that position, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class FaultKind(StrEnum):
    """Who has to act after a fault."""

    BACKEND = "backend"
    """The model or the backend failed."""
    REQUEST = "request"
    """The caller's constraint cannot be followed. Some constraints show this only while in use."""
    PROMPT = "prompt"
    """The caller's prompt has no answer: a script may lack a line for it."""
    CAPACITY = "capacity"
    """Nobody: the compiled constraint was dropped to make room. It may work later."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A sentence that says why no token could be chosen."""

    message: str
    kind: FaultKind = FaultKind.BACKEND


@value
class Sample:
    """The result of one entry.

    `token` is None when none was wanted, or when `fault` says why none could be chosen.
    If the sampling asks for them, `prompt_logprobs` has those of the prompt tokens in the span, in
    order. The token at position 0 has none and is left out.
    """

    token: int | None = None
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    fault: Fault | None = None

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to say of it but its token."""
        return self.logprob is None and not self.prompt_logprobs and self.fault is None


@value
class Outcome:
    """The result of a batch, and the time it took.

    `tokens` has one for each entry, in order: NO_TOKEN where none was wanted, or none could be
    chosen. `more` has the samples that say more than their token, by the place of their entry.
    `idle_s` is how long a device had nothing to compute before this batch, where that is known.
    """

    number: int
    tokens: tuple[int, ...]
    seconds: float
    more: Mapping[int, Sample] = field(default_factory=dict)
    idle_s: float = 0.0

    @classmethod
    def of(
        cls, number: int, samples: Iterable[Sample], seconds: float, idle_s: float = 0.0
    ) -> "Outcome":
        """The outcome with these samples, one for each entry."""
        samples = tuple(samples)
        tokens = [NO_TOKEN if each.token is None else each.token for each in samples]
        more = {place: each for place, each in enumerate(samples) if not each.is_plain}
        return cls(number, tuple(tokens), seconds, more, idle_s)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """A sample for each entry, in order."""
        return tuple(
            self.more.get(place) or Sample(None if token < 0 else token)
            for place, token in enumerate(self.tokens)
        )
