"""The llama.cpp backend: one `llama_decode` per batch over sequences of a unified cache.

A slot is a sequence of the library. `execute` and `reset` run on the engine thread; `encode` and
`prepare` on any. Promises BackendFailed on every violated precondition, before native code sees
it, and one fault per row that cannot be sampled. Logits depend a little on what else is in the
batch, because kernels are chosen by its size: `traits.exact` is false.
"""

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import assert_never

import numpy as np
import numpy.typing as npt

from jitney.backends.llamacpp import room
from jitney.backends.llamacpp.bindings import Context, ContextShape, Model, native_log, slots_max
from jitney.backends.llamacpp.slots import LastRow, SlotMemory, SlotState
from jitney.backends.llamacpp.vocabulary import read_vocabulary
from jitney.core import limits
from jitney.core.backend import Traits, Vocabulary
from jitney.core.batch import (
    Batch,
    Copy,
    Discard,
    Entry,
    Logprob,
    MemoryOperation,
    Open,
    Outcome,
    Release,
    Restore,
    Sample,
    Save,
    Truncate,
)
from jitney.core.params import Constraint
from jitney.errors import BackendCrashed, BackendFailed, ConfigError, InvalidRequest, ModelError
from jitney.sampling.constraint import ConstraintCompiler
from jitney.sampling.logprobs import prompt_logprobs
from jitney.sampling.sampler import RowWanted, SlotSampler, sample_rows

Rows = npt.NDArray[np.float32]

PASS_TOKENS_MAX = 512
"""A larger batch is computed in passes of this size: larger ones are no faster and take more
work space."""

KV_VALUE_BYTES = 2
"""Keys and values are kept as 16-bit floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppSettings:
    """Which file, how much memory, and how the library is to use the machine."""

    model: Path
    kv_tokens: int
    slots: int
    batch_tokens_max: int
    threads: int
    gpu_layers: int = 0
    """Layers on a GPU; -1 is all of them."""
    flash_attention: bool = True
    extra_kernels: bool = True
    """Whether weights are rearranged for faster kernels, AMX among them."""

    def __post_init__(self) -> None:
        # Settings may have come over a pipe, where a path is text.
        object.__setattr__(self, "model", Path(self.model))
        for name in ("kv_tokens", "slots", "batch_tokens_max", "threads"):
            value = getattr(self, name)
            if not 1 <= value <= limits.TOKENS_MAX:
                raise ConfigError(f"{name} must be from 1 to {limits.TOKENS_MAX}, and got {value}.")
        if self.slots > slots_max():
            raise ConfigError(
                f"llama.cpp holds at most {slots_max()} sequences apart, and {self.slots} slots "
                "were asked for; lower max_num_seqs."
            )


@dataclass(frozen=True, slots=True)
class _Span:
    """An entry as it was fed: its slot's state, and which rows of the logits are its own."""

    entry: Entry
    state: SlotState
    tokens: tuple[int, ...]
    rows: range
    """Rows in the order of positions; they end with the span's last position."""
    scored: range
    """Positions of prompt tokens whose logprobs are wanted."""


class LlamaCppBackend:
    """Implements `jitney.core.backend.Backend` on llama.cpp."""

    def __init__(self, settings: LlamaCppSettings) -> None:
        self._settings = settings
        self._model: Model | None = None
        model = _load_model(settings)
        heads, key, value = model.head_sizes()
        token_bytes = model.layer_count * heads * (key + value) * KV_VALUE_BYTES
        if settings.gpu_layers == 0:
            work_bytes = _work_bytes(settings, model)
            room.check_memory(settings.kv_tokens, token_bytes, work_bytes)
        self._context = Context(
            model,
            ContextShape(
                kv_tokens=settings.kv_tokens,
                slots=settings.slots,
                batch_tokens_max=settings.batch_tokens_max,
                pass_tokens_max=PASS_TOKENS_MAX,
                threads=settings.threads,
                flash_attention=settings.flash_attention,
            ),
        )
        self._memory = SlotMemory(self._context, settings.slots)
        self._vocabulary = read_vocabulary(model)
        self._compiler = ConstraintCompiler(self._vocabulary, self._encode_plain)
        self._traits = Traits(
            name="llamacpp",
            slots_max=settings.slots,
            kv_tokens=settings.kv_tokens,
            model_len_max=model.trained_len,
            kv_bytes_per_token=token_bytes,
            exact=False,
        )
        self._model = model

    @property
    def traits(self) -> Traits:
        """Numbers that hold for as long as this backend lives."""
        return self._traits

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens of the model."""
        return self._vocabulary

    def execute(self, batch: Batch) -> Outcome:
        """Carry out a batch; after BackendFailed the memory is to be reset."""
        started = perf_counter()
        self._living_model()
        for operation in batch.operations:
            self._operate(operation)
        samples = self._run(batch) if batch.entries else []
        return Outcome(batch.number, tuple(samples), perf_counter() - started)

    def reset(self) -> None:
        """Empty every slot and every ticket."""
        self._living_model()
        self._memory.reset()

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Tokens of a text; the names of control tokens become them only when `special`."""
        model = self._living_model()
        if len(text) > limits.PROMPT_CHARACTERS_MAX:
            raise InvalidRequest(
                f"the text has {len(text)} characters; "
                f"at most {limits.PROMPT_CHARACTERS_MAX} are tokenised."
            )
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidRequest(
                "the text holds half of a surrogate pair, which is no character."
            ) from None
        return model.encode(data, special=special)

    def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint ahead of use, in bounded time. Raises InvalidRequest."""
        self._compiler.compile(constraint)

    def close(self) -> None:
        """Release everything; idempotent. The weights go when no `encode` uses them any more."""
        self._context.close()
        self._model = None

    def _living_model(self) -> Model:
        model = self._model
        if model is None:
            raise BackendCrashed("the backend was closed.")
        return model

    def _encode_plain(self, text: str) -> list[int]:
        return self.encode(text, special=False)

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
        matcher = None
        state.fault = None
        if sampling.constraint is not None:
            try:
                matcher = self._compiler.compile(sampling.constraint)
            except InvalidRequest as error:
                # It compiled when it was prepared; the others in the batch are not to blame.
                state.fault = str(error)
        state.sampler = SlotSampler(sampling, matcher)
        state.token_last = None

    def _run(self, batch: Batch) -> list[Sample]:
        """The forward pass, and a sample for each entry."""
        count = batch.token_count
        if count > self._settings.batch_tokens_max:
            raise BackendFailed(
                f"batch {batch.number} has {count} tokens; "
                f"the limit is {self._settings.batch_tokens_max}."
            )
        if len({entry.slot for entry in batch.entries}) < len(batch.entries):
            raise BackendFailed(f"a slot stands twice in batch {batch.number}.")
        spans = self._feed(batch.entries, count)
        status = self._context.decode(count)
        if status == 1:
            raise BackendFailed(f"memory has no room for the {count} tokens of a batch.")
        if status != 0:
            raise BackendFailed(f"llama.cpp failed with status {status}: {native_log().reason()}.")
        for span in spans:
            span.state.tokens += span.tokens
            span.state.token_last = None
        rows = spans[-1].rows.stop
        logits = self._context.logits(rows) if rows else np.empty((0, 0), np.float32)
        return self._sample(spans, logits)

    def _feed(self, entries: tuple[Entry, ...], count: int) -> list[_Span]:
        """Check the entries and write them into the arrays of the context."""
        tokens: list[int] = []
        positions: list[int] = []
        wanted = np.zeros(count, np.int8)
        spans: list[_Span] = []
        row = 0
        for entry in entries:
            state = self._memory.state(entry.slot)
            fresh = _tokens_of(entry, state)
            tokens += fresh
            positions += range(entry.start, entry.end)
            scored = _scored(entry, state)
            end = len(tokens)
            # The last row of a span is wanted for its token, or for the next span's first one.
            rows = entry.length if scored else int(entry.wants_token)
            wanted[end - rows : end] = 1
            spans.append(_Span(entry, state, fresh, range(row, row + rows), scored))
            row += rows
        fed = np.array(tokens, np.int64)
        if fed.min() < 0 or fed.max() >= len(self._vocabulary.pieces):
            raise BackendFailed("a batch holds a token that is not in the vocabulary.")
        context = self._context
        context.tokens[:count] = fed
        context.positions[:count] = positions
        slots = [entry.slot for entry in entries]
        context.slots[:count] = np.repeat(slots, [entry.length for entry in entries])
        context.wanted[:count] = wanted
        return spans

    def _sample(self, spans: list[_Span], logits: Rows) -> list[Sample]:
        rows: list[RowWanted] = []
        for span in spans:
            if span.entry.wants_token and span.state.fault is None:
                assert span.state.sampler is not None, "checked when it was fed"
                last = span.rows.stop - 1
                rows.append(RowWanted(span.state.sampler, span.state.tokens, last))
        sampled = iter(sample_rows(rows, logits) if rows else ())
        samples: list[Sample] = []
        for span in spans:
            sample = Sample()
            if span.entry.wants_token:
                fault = span.state.fault
                sample = next(sampled) if fault is None else Sample(fault=fault)
                span.state.token_last = sample.token
            if span.scored:
                scores = _score(span, logits)
                sample = Sample(sample.token, sample.logprob, scores, sample.fault)
            samples.append(sample)
        return samples


def _load_model(settings: LlamaCppSettings) -> Model:
    path = settings.model
    try:
        weights_bytes = path.stat().st_size
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None
    if settings.gpu_layers == 0:
        room.check_weights(path, weights_bytes)
    model = Model(path, gpu_layers=settings.gpu_layers, extra_kernels=settings.extra_kernels)
    if not model.is_causal_decoder:
        raise ModelError(f"{path} is not a model that continues a text, and cannot be served.")
    if not model.is_rewindable:
        raise ModelError(
            f"{path} keeps a recurrent state, which cannot be cut back to a prefix; "
            "take a model whose layers all use attention."
        )
    return model


def _work_bytes(settings: LlamaCppSettings, model: Model) -> int:
    """The larger parts of what a pass needs beside weights and memory: scores and logits."""
    tokens = min(PASS_TOKENS_MAX, settings.batch_tokens_max)
    scores = 0 if settings.flash_attention else settings.kv_tokens * model.head_count
    return 4 * tokens * (scores + model.vocabulary_count)


def _tokens_of(entry: Entry, state: SlotState) -> tuple[int, ...]:
    """The tokens of an entry that fits what its slot holds."""
    if entry.start != len(state.tokens):
        raise BackendFailed(
            f"the span of slot {entry.slot} starts at {entry.start}, "
            f"and the slot holds {len(state.tokens)} tokens."
        )
    if entry.wants_token and state.sampler is None:
        raise BackendFailed(f"a token is wanted of slot {entry.slot}, never opened.")
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
    return tokens


def _scored(entry: Entry, state: SlotState) -> range:
    """The positions of the span whose prompt logprobs are wanted and can be had.

    The row that predicts the span's first token came with the span before it. Where that was
    computed in another slot the row is gone, and the span is left out as a whole: the scheduler
    lets this happen only to prompts that have been scored already.
    """
    sampler = state.sampler
    if sampler is None or sampler.sampling.prompt_logprobs is None:
        return range(0)
    if entry.start and (state.row_last is None or state.row_last.position != entry.start):
        return range(0)
    prompt_count = sampler.sampling.prompt_count
    if entry.start >= prompt_count:
        return range(0)
    return range(entry.start, min(entry.end, prompt_count))


def _score(span: _Span, logits: Rows) -> tuple[Logprob, ...]:
    """Logprobs of the span's prompt tokens; keeps the row that the next span needs."""
    state, entry = span.state, span.entry
    assert state.sampler is not None, "scored spans have a sampler"
    count = state.sampler.sampling.prompt_logprobs
    assert count is not None, "scored spans want logprobs"
    scores: tuple[Logprob, ...] = ()
    if entry.start:
        assert state.row_last is not None, "checked when it was fed"
        scores = prompt_logprobs(
            state.row_last.logits[np.newaxis], [state.tokens[entry.start]], count
        )
    later = range(entry.start + 1, span.scored.stop)
    first = span.rows.start
    scores += prompt_logprobs(
        logits[first : first + len(later)], state.tokens[later.start : later.stop], count
    )
    state.row_last = None
    if entry.end < state.sampler.sampling.prompt_count:
        state.row_last = LastRow(entry.end, logits[span.rows.stop - 1].copy())
    return scores
