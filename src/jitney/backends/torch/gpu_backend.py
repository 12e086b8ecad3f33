"""The torch backend on a GPU: passes are enqueued, and the host reads their tokens later.

`send` enqueues a pass before the tokens of the one before it were read: a row that continues takes
the token that was sampled last, on the device. The host's copy of it is UNKNOWN until the pass was
settled. Passes are settled in their order, by `receive`, or by a `send` that must know more: where
cells are copied or saved, or where the host samples. One thread runs batches and calls `reset`; any
thread may call `encode` and `prepare`.

Tests: tests/unit/backends/torch/kernels/test_gpu_backend.py.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter

import torch
from triton.runtime.errors import OutOfResources

from jitney.backends.shared.host_sampler import HostSampler
from jitney.backends.shared.layout import BatchLayout
from jitney.backends.shared.slots import EntryRows, SlotMemory
from jitney.backends.torch.device_memory import DeviceMemory
from jitney.backends.torch.device_passes import DevicePasses, RunningPass
from jitney.backends.torch.device_sampler import is_on_device
from jitney.backends.torch.kernels.choice import NOT_A_NUMBER
from jitney.backends.torch.kernels.places import SAMPLED
from jitney.backends.torch.kernels.triton_ops import TritonOps
from jitney.backends.torch.model import Decoder
from jitney.core.backend import Segment, Traits, Vocabulary
from jitney.core.batch import Batch, Discard, Open, Outcome, Release, Sample
from jitney.core.params import Constraint
from jitney.errors import BackendCrashed, ModelError, NoRoom
from jitney.sampling.constraint import ConstraintCompiler
from jitney.sampling.sampler import FAULT_NOT_A_NUMBER, FAULT_NOTHING_LEFT

UNKNOWN = SAMPLED
"""Stands for a token that was sampled on the device, and not yet read."""

POLL_S = 5e-5
"""How long to sleep between two looks at a pass that is waited for with a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """A model on the device, and what is known of it."""

    model: Decoder
    ops: TritonOps
    vocabulary: Vocabulary
    traits: Traits
    max_num_batched_tokens: int
    sequences_max: int
    slot_tokens_max: int
    encode: Callable[[Sequence[Segment]], list[int]]


@dataclass(slots=True)
class _Sent:
    """A batch whose pass was enqueued. Entries are in the order of the pass."""

    number: int
    laid_out: tuple[EntryRows, ...]
    running: RunningPass | None
    samples: tuple[Sample, ...] | None = None
    """In the order of the batch, once the pass was settled."""
    seconds: float = 0.0
    idle_s: float = 0.0


class GpuBackend:
    """Implements `Backend` and `QueueingBackend` of `jitney.core.backend`."""

    def __init__(self, loaded: GpuModel) -> None:
        self.traits, self.vocabulary = loaded.traits, loaded.vocabulary
        self._encode = encode = loaded.encode
        self._is_closed = False
        self._compiler = ConstraintCompiler(loaded.vocabulary, lambda text: encode([(text, False)]))
        traits, count = loaded.traits, len(loaded.vocabulary.pieces)
        self._device_memory = DeviceMemory(
            loaded.model, traits.slots_max, traits.kv_tokens // traits.block_tokens,
            loaded.slot_tokens_max,
        )  # fmt: skip
        self._passes = DevicePasses(
            loaded.model, loaded.ops, self._device_memory, count, loaded.sequences_max
        )
        self._memory = SlotMemory(self._device_memory.cells, traits.slots_max)
        self._sampler = HostSampler(self._compiler, self._memory)
        self._layout = BatchLayout(
            self._memory, loaded.max_num_batched_tokens, loaded.slot_tokens_max, count
        )
        self._sent: deque[_Sent] = deque()
        self._ended: torch.cuda.Event | None = None
        """The end of the pass that was settled last."""
        self._pause = threading.Event()  # never set

    def execute(self, batch: Batch) -> Outcome:
        """Carry out a batch. After BackendFailed the caller must reset the memory."""
        self.send(batch)
        outcome = self.receive()
        assert outcome is not None, "Without a limit, receive waits for it"
        return outcome

    def send(self, batch: Batch) -> None:
        """Enqueue a batch. Raises BackendFailed where it does not fit, or BackendCrashed."""
        self.check()
        if self._needs_tokens(batch):
            self._settle_all()
        with torch.inference_mode(), _crash_where_the_gpu_fails():
            self._sampler.operate(batch.operations)
            laid_out = self._layout.lay_out(batch, by_slot=False)
            self._sent.append(self._launch(batch.number, laid_out))

    def receive(self, limit_s: float | None = None) -> Outcome | None:
        """The outcome of the oldest batch sent; None when it does not come within `limit_s`."""
        sent = self._sent[0]
        if limit_s is not None and sent.running is not None:
            deadline = perf_counter() + limit_s
            with _crash_where_the_gpu_fails():
                while not sent.running.has_ended():
                    if perf_counter() >= deadline:
                        return None
                    self._pause.wait(POLL_S)
        self._settle(sent)
        self._sent.popleft()
        assert sent.samples is not None, "It was settled"
        return Outcome.of(sent.number, sent.samples, sent.seconds, sent.idle_s)

    def reset(self) -> None:
        """Empty every slot and every ticket."""
        self.check()
        with _crash_where_the_gpu_fails():
            for sent in self._sent:
                if sent.running is not None:
                    sent.running.wait()
        self._sent.clear()
        self._memory.reset()
        self._device_memory.forget_tables()

    def check(self) -> None:
        """Raise BackendCrashed if it was closed."""
        if self._is_closed:
            raise BackendCrashed("The backend was closed.")

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of texts, one after the other."""
        return self._encode(texts)

    def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint ahead of use, in bounded time. Raises InvalidRequest."""
        self._compiler.prepare(constraint)

    def capture_sizes(self) -> None:
        """Make ready for passes of decodes, and of a few rows of prompts, of every size. Raises
        ModelError."""
        try:
            with torch.inference_mode():
                self._passes.capture()
        except torch.OutOfMemoryError as error:
            raise NoRoom(
                "The memory of the GPU is full before all passes were tried; take a smaller "
                "gpu_memory_utilization, kv_tokens or max_num_seqs."
            ) from error
        except OutOfResources as error:
            raise ModelError(
                f"The GPU has too little {error.name} for this model: its kernels take "
                f"{error.required} bytes of {error.limit}; take a GGUF and `--backend llamacpp`."
            ) from error

    def close(self) -> None:
        """Release everything; idempotent."""
        if self._is_closed:
            return
        try:
            self.reset()
        finally:
            self._is_closed = True
            self._compiler.close()
            self._device_memory.drop()
            self._passes.drop()
            del self._passes
            # The library keeps what is free, and another backend of this process may need it.
            torch.cuda.empty_cache()

    def _launch(self, number: int, laid_out: Sequence[EntryRows]) -> _Sent:
        if not laid_out:
            return _Sent(number, (), None, ())
        decodes = [each for each in laid_out if _is_decode(each)]
        others = [each for each in laid_out if not _is_decode(each)]
        ordered = (*decodes, *others)
        running = self._passes.run(decodes, others)
        for each in ordered:
            each.contents.tokens += each.tokens
            is_sampled = each.entry.wants_token and is_on_device(each)
            each.contents.token_last = UNKNOWN if is_sampled else None
        return _Sent(number, ordered, running)

    def _needs_tokens(self, batch: Batch) -> bool:
        """Whether a batch cannot be enqueued before all tokens are known."""
        if not self._sent:
            return False
        waiting = {each.entry.slot for sent in self._sent for each in sent.laid_out}
        for each in batch.operations:
            if isinstance(each, Release | Discard) or (
                isinstance(each, Open) and each.slot not in waiting
            ):
                continue
            return True
        # The next part of a scored prompt needs the last row of the part before it.
        scored = {each.entry.slot for sent in self._sent for each in sent.laid_out if each.scored}
        return any(
            entry.slot in scored
            or (entry.continues and self._memory.contents(entry.slot).token_last is None)
            for entry in batch.entries
        )

    def _settle_all(self) -> None:
        for sent in self._sent:
            self._settle(sent)

    def _settle(self, sent: _Sent) -> None:
        """Wait for a pass, and give its tokens to the slots. Those before it are settled."""
        running = sent.running
        if sent.samples is not None or running is None:
            return
        with _crash_where_the_gpu_fails():
            running.wait()
        sent.seconds, sent.running = running.seconds(), None
        sent.idle_s, self._ended = running.idle_s(self._ended), running.ended
        tokens = running.tokens.tolist()
        samples = [Sample()] * len(sent.laid_out)
        host, first = [], 0
        for each, rows in zip(sent.laid_out, running.rows, strict=True):
            if not is_on_device(each):
                host.append(replace(each, rows=range(first, first + len(rows))))
                first += len(rows)
            elif each.entry.wants_token:
                samples[each.index] = _sample_of(each, tokens[rows.stop - 1])
        if host:
            logits = running.logits.numpy()
            for each, sample in zip(host, self._sampler.sample(host, logits), strict=True):
                samples[each.index] = sample
        sent.samples = tuple(samples)


@contextmanager
def _crash_where_the_gpu_fails() -> Iterator[None]:
    """After a kernel failed, every call says so: the process can do nothing more."""
    try:
        yield
    except torch.AcceleratorError as error:
        raise BackendCrashed(f"The GPU failed in a pass ({str(error)[:300]}).") from error


def _sample_of(each: EntryRows, token: int) -> Sample:
    """The sample of an entry whose token the device chose; the slot gets to know it."""
    contents, end = each.contents, each.entry.end
    if contents.fault is None and token < 0:
        contents.fault = FAULT_NOT_A_NUMBER if token == NOT_A_NUMBER else FAULT_NOTHING_LEFT
    if contents.length == end:
        contents.token_last = max(token, 0)
    elif contents.length > end and contents.tokens[end] == UNKNOWN:  # not released meanwhile
        contents.tokens[end] = max(token, 0)
    if contents.fault is not None:
        return Sample(fault=contents.fault)
    return Sample(token=token)


def _is_decode(each: EntryRows) -> bool:
    """Whether an entry is one generated token, and not a part of a prompt."""
    is_single = each.entry.length == 1 and not each.scored
    return is_single and each.entry.start >= max(each.contents.prompt_count, 1)
