"""`DeviceBackend`: a `ModelBackend` for a device that chooses the tokens, and keeps the last ones.

It takes a second batch while the first one runs. The second may continue from tokens that the host
has not seen. The host learns them from the outcome of the first. All calls for batches come from
one thread, and `send` returns as soon as the device has the work.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

from jitney.backends.shared.layout import EntryRows, TokenSampler
from jitney.backends.shared.model_backend import ForwardModel, ModelBackend, in_order
from jitney.backends.shared.slots import SavedCells
from jitney.core.batch import Batch, Outcome, Sample

Logits = TypeVar("Logits")
DeviceLogits = TypeVar("DeviceLogits", contravariant=True)


class DeviceSampler(TokenSampler[DeviceLogits]):
    """What a device backend has to implement besides `ForwardModel`: its `make_sampler` gives this.

    For a slot whose last token `take` has not returned, `last_tokens` is empty. After a fault the
    device goes on with any token. `reset` also forgets what was started.
    """

    @abstractmethod
    def start(self, laid_out: Sequence[EntryRows], logits: DeviceLogits) -> None:
        """Begin to choose tokens for these entries, and do not wait for them."""

    @abstractmethod
    def take(self, limit_s: float | None) -> list[Sample] | None:
        """A sample for each entry of the oldest `start`; None when they take longer than `limit_s`.

        Raises BackendFailed, and then at each call until `reset`.
        """

    def sample(self, laid_out: Sequence[EntryRows], logits: DeviceLogits) -> list[Sample]:
        """Choose tokens, and wait for them."""
        self.start(laid_out, logits)
        samples = self.take(None)
        assert samples is not None, "Without a limit, take waits for them"
        return samples


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A batch that the device has, and when it got it."""

    number: int
    laid_out: Sequence[EntryRows]
    sent_at: float


class DeviceBackend(ModelBackend[SavedCells, Logits]):
    """Implements `Backend` and `QueueingBackend` of `jitney.core.backend` for a model."""

    def __init__(self, model: ForwardModel[SavedCells, Logits]) -> None:
        super().__init__(model)
        assert isinstance(self._sampler, DeviceSampler), "A device has a sampler of its own"
        self._device: DeviceSampler[Logits] = self._sampler
        self._sent: deque[DeviceBatch] = deque()
        # Outcomes that are known, and were not received.
        self._outcomes: deque[Outcome] = deque()
        self._ended_at = 0.0

    def execute(self, batch: Batch) -> Outcome:
        """Carry out a batch, and wait for it."""
        assert not self._sent, "A batch is under way"
        self.send(batch)
        outcome = self.receive()
        assert outcome is not None, "Without a limit, receive waits for it"
        return outcome

    def send(self, batch: Batch) -> None:
        """Hand a batch to the device. After BackendFailed the caller must reset the memory.

        Waits for earlier batches only where an operation keeps tokens that they choose.
        """
        started = perf_counter()
        if any(map(self._memory.keeps_unknown, batch.operations)):
            while self._sent:
                self._collect(None)
        laid_out = self._lay_out(batch)
        if laid_out:
            self._device.start(laid_out, self._forward(laid_out))
        self._sent.append(DeviceBatch(batch.number, laid_out, started))

    def receive(self, limit_s: float | None = None) -> Outcome | None:
        """The outcome of the oldest batch that was sent; None when it takes longer."""
        if not self._outcomes and not self._collect(limit_s):
            return None
        return self._outcomes.popleft()

    def reset(self) -> None:
        """Empty every slot and every ticket, and forget the batches under way."""
        super().reset()
        self._sent.clear()
        self._outcomes.clear()

    def _collect(self, limit_s: float | None) -> bool:
        """Wait for the oldest batch, and learn its tokens; false when it takes longer."""
        assert self._sent, "No batch is under way"
        sent = self._sent[0]
        samples = self._device.take(limit_s) if sent.laid_out else []
        if samples is None:
            return False
        self._sent.popleft()
        for each, sample in zip(sent.laid_out, samples, strict=True):
            if each.entry.wants_token:
                # After a fault any token will do: the sequence has ended.
                each.contents.learn(each.entry.end, sample.token or 0)
        # The time since the device was free for this batch.
        now, begun = perf_counter(), max(sent.sent_at, self._ended_at)
        self._ended_at = now
        ordered = in_order(sent.laid_out, samples)
        self._outcomes.append(Outcome(sent.number, ordered, now - begun))
        return True
