"""The fake backend: no model, but an exact memory and an answer that depends on all of it.

It stores tokens by slot and position as it is told, and its next token is a hash of what it finds
stored (`jitney.backends.fake.oracle`). Every parameter of the sampling is honoured. For tests,
demonstrations, and load tests of everything above it. `execute` and `reset` run on the engine
thread; `encode` and `prepare` on any. Promises BackendFailed on every violated precondition.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from jitney.backends.fake.memory import FakeMemory, SlotContents
from jitney.backends.fake.oracle import (
    ROUNDED_ALONE,
    ROUNDED_ROW,
    TokenOracle,
    encode_plain,
    is_plain,
    seeded,
)
from jitney.backends.shared.shapes import is_lone, rows_missing
from jitney.core.backend import Text, Traits, Vocabulary
from jitney.core.batch import (
    Batch,
    Copy,
    Discard,
    Entry,
    MemoryOperation,
    Open,
    Outcome,
    Release,
    Restore,
    Sample,
    Save,
    TokenLogprob,
    Truncate,
)
from jitney.core.params import Constraint
from jitney.errors import BackendFailed, ConfigError, InvalidRequest, QueueFull
from jitney.sampling.constraint import ConstraintCompiler
from jitney.sampling.logprobs import token_logprob
from jitney.sampling.reference import TEMPERATURE_MIN
from jitney.sampling.sampler import RowWanted, SlotSampler, sample_rows
from jitney.tokenizers import byte_tokenizer

ROWS_GROUP = 4
"""Rows that a pass of the pretended kernels takes together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSettings:
    """The size of the memory, how often a completion ends by itself, and a pretended cost."""

    slots: int = 16
    kv_tokens: int = 16_384
    block_tokens: int = 1
    model_len_max: int = 4096
    max_num_batched_tokens: int = 2048
    eos_period: int = 64
    """One token in so many is the end token; 0 means none is."""
    tick_s: float = 0.0
    token_s: float = 0.0
    """A batch is said to take `tick_s` and `token_s` for each of its tokens."""
    sleeps: bool = False
    """Whether that time really passes."""
    can_save: bool = True
    rounds: bool = False
    """Whether it pretends kernels that round by the shape of a pass: a token computed by itself
    leaves something else behind than one in a span, and so does a pass that does not fill its
    groups of rows."""

    def __post_init__(self) -> None:
        for name in (
            "slots",
            "kv_tokens",
            "block_tokens",
            "model_len_max",
            "max_num_batched_tokens",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, and got {getattr(self, name)}.")
        for name in ("eos_period", "tick_s", "token_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, and got {getattr(self, name)}.")
        if self.block_tokens > self.kv_tokens:
            raise ConfigError(
                f"a block of {self.block_tokens} tokens does not fit kv_tokens ({self.kv_tokens})."
            )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An entry that is answered by logits: its place among the samples, and its slot."""

    index: int
    entry: Entry
    state: SlotContents

    @property
    def is_sampled(self) -> bool:
        """Whether a token is wanted, and can be had."""
        return self.entry.wants_token and self.state.fault is None


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


class FakeBackend:
    """Implements `jitney.core.backend.Backend` on a dictionary and a hash."""

    def __init__(
        self, settings: FakeSettings, *, sleep: Callable[[float], None] | None = None
    ) -> None:
        self._settings = settings
        self._sleep = sleep or _wait
        self._vocabulary = byte_tokenizer.byte_vocabulary()
        self._vocabulary_size = len(self._vocabulary.pieces)
        self._oracle = TokenOracle(self._vocabulary, settings.eos_period)
        self._compiler = ConstraintCompiler(self._vocabulary, encode_plain)
        self._memory = FakeMemory(settings.slots, settings.kv_tokens, settings.block_tokens)
        self._traits = Traits(
            name="fake",
            slots_max=settings.slots,
            kv_tokens=settings.kv_tokens // settings.block_tokens * settings.block_tokens,
            model_len_max=settings.model_len_max,
            block_tokens=settings.block_tokens,
            can_save=settings.can_save,
            kv_bytes_per_token=8,
            batch_invariant=True,
            decodes_differ=settings.rounds,
        )

    @property
    def traits(self) -> Traits:
        """Numbers that hold for as long as this backend lives."""
        return self._traits

    @property
    def vocabulary(self) -> Vocabulary:
        """Bytes, words and a few control tokens."""
        return self._vocabulary

    @property
    def used_tokens(self) -> int:
        """Tokens of memory taken, in whole blocks; shared blocks count once."""
        return self._memory.used_tokens

    @property
    def slots_held(self) -> frozenset[int]:
        """The slots that hold at least one token."""
        return self._memory.slots_held

    @property
    def tickets(self) -> frozenset[int]:
        """The tickets under which something is saved."""
        return self._memory.tickets

    def tokens_of(self, slot: int) -> tuple[int, ...]:
        """What a slot holds, in order of position."""
        return tuple(self._memory.state(slot).tokens)

    def execute(self, batch: Batch) -> Outcome:
        """Carry out a batch; after BackendFailed the memory is to be reset."""
        settings = self._settings
        self._compiler.begin_batch()
        for operation in batch.operations:
            self._operate(operation)
        token_count = batch.token_count
        if token_count > settings.max_num_batched_tokens:
            raise BackendFailed(
                f"batch {batch.number} has {token_count} tokens; "
                f"the limit is {settings.max_num_batched_tokens}."
            )
        slots = {entry.slot for entry in batch.entries}
        if len(slots) < len(batch.entries):
            raise BackendFailed(f"a slot stands twice in batch {batch.number}.")
        samples = self._run(batch.entries)
        seconds = settings.tick_s + settings.token_s * token_count
        if settings.sleeps and seconds > 0.0:
            self._sleep(seconds)
        return Outcome(batch.number, tuple(samples), seconds)

    def reset(self) -> None:
        """Empty every slot and every ticket."""
        self._memory.reset()

    def check(self) -> None:
        """It always lives; those who want it to fail wrap it."""

    def encode(self, texts: Sequence[Text]) -> list[int]:
        """Tokens of a text; the names of control tokens become them only when `special`."""
        return [
            token
            for text, special in texts
            for token in byte_tokenizer.encode(text, special=special)
        ]

    def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint ahead of use, in bounded time. Raises InvalidRequest."""
        self._compiler.prepare(constraint)

    def close(self) -> None:
        """Release everything; idempotent."""
        self._compiler.close()
        self._memory.reset()

    def _operate(self, operation: MemoryOperation) -> None:
        memory = self._memory
        match operation:
            case Open():
                self._open(operation)
            case Copy():
                memory.copy(operation)
            case Truncate():
                memory.truncate(operation)
            case Save():
                if not self._settings.can_save:
                    raise BackendFailed("this backend was set up not to save slots.")
                memory.save(operation)
            case Restore():
                memory.restore(operation)
            case Release():
                memory.release(operation)
            case Discard():
                memory.discard(operation)
            case _:
                assert_never(operation)

    def _open(self, operation: Open) -> None:
        state, sampling = self._memory.state(operation.slot), operation.sampling
        state.sampling = sampling
        state.token_last = None
        state.sampler = None
        state.fault = None
        state.is_plain = is_plain(sampling)
        if state.is_plain:
            return
        matcher = None
        if sampling.constraint is not None:
            try:
                matcher = self._compiler.compile(sampling.constraint)
            except (InvalidRequest, QueueFull) as error:
                # The others in the batch are not to blame.
                state.fault = str(error)
        state.sampler = SlotSampler(sampling, matcher)

    def _run(self, entries: tuple[Entry, ...]) -> list[Sample]:
        """Store every span, then answer. Slots do not touch, so one pass does both."""
        samples: list[Sample] = []
        wanted: list[_Wanted] = []
        nothing = Sample()
        choose = self._oracle.choose
        rows = sum(entry.length for entry in entries)
        left_over = (rows + rows_missing(rows, ROWS_GROUP)) % ROWS_GROUP
        for entry in entries:
            state = self._store(entry, left_over)
            state.token_last = None
            sampling = state.sampling
            if sampling is None:
                if entry.wants_token:
                    raise BackendFailed(f"a token is wanted of slot {entry.slot}, never opened.")
                samples.append(nothing)
            elif not state.is_plain:
                wanted.append(_Wanted(len(samples), entry, state))
                samples.append(nothing)
            elif entry.wants_token:
                tokens = state.tokens
                rolling = state.hashes[-1]
                if sampling.temperature >= TEMPERATURE_MIN:
                    rolling = seeded(rolling, sampling.seed, len(tokens))
                token = choose(rolling, tokens[-1])
                state.token_last = token
                samples.append(Sample(token))
            else:
                samples.append(nothing)
        if wanted:
            self._sample_by_logits(wanted, samples)
        return samples

    def _store(self, entry: Entry, left_over: int) -> SlotContents:
        state = self._memory.state(entry.slot)
        if entry.start != len(state.tokens):
            raise BackendFailed(
                f"the span of slot {entry.slot} starts at {entry.start}, "
                f"and the slot holds {len(state.tokens)} tokens."
            )
        tokens = entry.tokens
        if entry.continues:
            if tokens or state.token_last is None:
                raise BackendFailed(
                    f"slot {entry.slot} is to continue from its last token, and "
                    f"{'has tokens given as well' if tokens else 'has sampled none'}."
                )
            tokens = (state.token_last,)
        if not tokens:
            raise BackendFailed(f"the span of slot {entry.slot} is empty.")
        if entry.start + len(tokens) > self._settings.model_len_max:
            raise BackendFailed(
                f"slot {entry.slot} would hold {entry.end} tokens; "
                f"the model takes {self._settings.model_len_max}."
            )
        if len(tokens) == 1:
            lowest = highest = tokens[0]
        else:
            lowest, highest = min(tokens), max(tokens)
        if lowest < 0 or highest >= self._vocabulary_size:
            raise BackendFailed(f"slot {entry.slot} got a token that is not in the vocabulary.")
        rounding = self._rounding(entry, state, left_over) if self._settings.rounds else 0
        if len(tokens) == 1:
            self._memory.append_one(state, highest, rounding)
        else:
            self._memory.append(state, tokens, rounding)
        return state

    def _rounding(self, entry: Entry, state: SlotContents, left_over: int) -> int:
        """What the pretended kernels add to each token of a span: 0 for a span in a full pass."""
        prompt_count = state.sampling.prompt_count if state.sampling else 0
        # One that is left over of a prompt takes the token before it along.
        is_alone = entry.length == 1 and entry.start > 0 and not is_lone(entry, prompt_count)
        return left_over * ROUNDED_ROW + is_alone * ROUNDED_ALONE

    def _sample_by_logits(self, wanted: list[_Wanted], samples: list[Sample]) -> None:
        """Fill in the samples of those whose sampling needs logits."""
        rows: list[RowWanted] = []
        logits = []
        for one in wanted:
            if one.is_sampled:
                state = one.state
                assert state.sampler is not None, f"slot {one.entry.slot} has no sampler"
                rows.append(RowWanted(state.sampler, state.tokens, len(rows)))
                logits.append(self._oracle.logits(state.hashes[-1], state.tokens[-1]))
        sampled = iter(sample_rows(rows, np.stack(logits)) if rows else ())
        for one in wanted:
            sample = next(sampled) if one.is_sampled else Sample(fault=one.state.fault)
            one.state.token_last = sample.token
            if sample.fault is not None:
                # What lies behind a fault is computed all the same, with any token.
                one.state.token_last = one.state.tokens[-1]
            samples[one.index] = Sample(
                sample.token, sample.logprob, self._prompt_logprobs(one), sample.fault
            )

    def _prompt_logprobs(self, wanted: _Wanted) -> tuple[TokenLogprob, ...]:
        entry, state = wanted.entry, wanted.state
        sampling = state.sampling
        if sampling is None or sampling.prompt_logprobs is None:
            return ()
        positions = range(max(entry.start, 1), min(entry.end, sampling.prompt_count))
        return tuple(
            token_logprob(
                self._oracle.logits(state.hashes[position], state.tokens[position - 1]),
                state.tokens[position],
                sampling.prompt_logprobs,
            )
            for position in positions
        )
