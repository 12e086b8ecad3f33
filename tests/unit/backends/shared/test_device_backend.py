"""A device that chooses the tokens: batches ahead of the host, and what is kept of their slots."""

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from jitney.backends.fake.hash_cells import HashCells
from jitney.backends.process.messages import Channel, Execute, Executed, Failure
from jitney.backends.process.worker import BatchServer
from jitney.backends.shared.device_backend import DeviceBackend, DeviceSampler
from jitney.backends.shared.layout import EntryRows
from jitney.backends.shared.slots import SlotMemory
from jitney.core.backend import QueueingBackend, Segment, Traits
from jitney.core.batch import (
    Batch,
    Copy,
    Entry,
    Fault,
    FaultKind,
    MemoryOperation,
    Open,
    Release,
    Restore,
    Sample,
    Sampling,
    Save,
    Truncate,
)
from jitney.core.params import Constraint
from jitney.errors import BackendFailed
from jitney.sampling.sampler import TokenMatcher
from jitney.sandbox.frames import ChannelClosed, Frames
from jitney.tokenizers import byte_tokenizer

WAIT_S = 100.0
PROMPT = (5, 6, 7)
SAMPLING = Sampling(seed=0, prompt_count=len(PROMPT))
OPENED = tuple(Open(slot, SAMPLING) for slot in range(4))


def after(tokens: Sequence[int]) -> int:
    """The token that the device chooses after these."""
    return hash(tuple(tokens)) % 200


def continued(*tokens: int, count: int) -> list[int]:
    """These tokens, and those that the device chooses after them."""
    found = list(tokens)
    while len(found) < len(tokens) + count:
        found.append(after(found))
    return found


class TokenCells:
    """The memory of the device: its tokens."""

    def __init__(self) -> None:
        self.clear()

    def copy(self, source: int, target: int, length: int) -> bool:
        self.held[target] = self.held[source][:length]
        return True

    def truncate(self, slot: int, length: int) -> bool:
        del self.held[slot][length:]
        return True

    def save(self, slot: int) -> list[int]:
        return self.held[slot].copy()

    def restore(self, slot: int, saved: list[int], length: int) -> bool:
        assert len(saved) == length
        self.held[slot] = saved
        return True

    def clear(self) -> None:
        self.held: list[list[int]] = [[] for _ in range(4)]


class HashSampler(DeviceSampler[list[int]]):
    """Chooses when it is asked. The host gets the tokens when the test lets it."""

    def __init__(self) -> None:
        self.may_end = threading.Semaphore(0)
        self.faulty: set[int] = set()
        self.last: dict[int, int] = {}
        self._known: dict[int, bool] = {}
        self._started: deque[list[tuple[int, int]]] = deque()

    def operate(self, operation: MemoryOperation) -> None:
        match operation:
            case (
                Open(slot) | Truncate(slot) | Release(slot) | Copy(target=slot) | Restore(slot=slot)
            ):
                self.last.pop(slot, None)

    def last_tokens(self, slot: int) -> tuple[int, ...] | None:
        if slot not in self.last:
            return None
        return (self.last[slot],) if self._known[slot] else ()

    def has_row_before(self, slot: int, position: int) -> bool:
        return False

    def start(self, laid_out: Sequence[EntryRows], logits: list[int]) -> None:
        chosen = [(each.entry.slot, token) for each, token in zip(laid_out, logits, strict=True)]
        self.last.update(chosen)
        self._known.update(dict.fromkeys(dict(chosen), False))
        self._started.append(chosen)

    def take(self, limit_s: float | None) -> list[Sample] | None:
        if not self.may_end.acquire(timeout=WAIT_S if limit_s is None else limit_s):
            return None
        chosen = self._started.popleft()
        later = {slot for each in self._started for slot, _ in each}
        self._known.update(dict.fromkeys(dict(chosen).keys() - later, True))
        fault = Fault("it is bad.", FaultKind.REQUEST)
        return [
            Sample(fault=fault) if slot in self.faulty else Sample(token) for slot, token in chosen
        ]

    def reset(self) -> None:
        self.last.clear()
        self._started.clear()


class HashModel:
    """Its logits are the tokens themselves."""

    wants_slot_order = True
    max_num_batched_tokens = 64
    slot_tokens_max = 64

    def __init__(self) -> None:
        self.cells = TokenCells()
        self.sampler = HashSampler()
        self.vocabulary = byte_tokenizer.byte_vocabulary()
        self.traits = Traits(
            name="device", slots_max=4, kv_tokens=256, model_len_max=64, batch_invariant=True
        )

    def make_sampler(self, compile_constraint: Callable[[Constraint], TokenMatcher]) -> HashSampler:
        return self.sampler

    def forward(self, laid_out: Sequence[EntryRows], memory: SlotMemory[list[int]]) -> list[int]:
        logits = []
        for each in laid_out:
            held = self.cells.held[each.entry.slot]
            held += [self.sampler.last[each.entry.slot]] if each.entry.continues else each.tokens
            logits.append(after(held))
        return logits

    def use_shape(self, shape: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        return []

    def close(self) -> None:
        pass


class Device:
    """The backend, and batches for it."""

    def __init__(self) -> None:
        self.model = HashModel()
        self.backend = DeviceBackend(self.model)
        self._number = 0
        self.lengths = [0] * 4

    def batch(self, *slots: int, operations: Sequence[MemoryOperation] = ()) -> Batch:
        """The next token of each slot: the prompt where the slot is empty."""
        self._number += 1
        entries = []
        for slot in slots:
            start = self.lengths[slot]
            tokens = () if start else PROMPT
            entries.append(Entry(slot, start, tokens, wants_token=True, continues=bool(start)))
            self.lengths[slot] = entries[-1].end
        return Batch(self._number, tuple(operations), tuple(entries))

    def send(self, *slots: int, operations: Sequence[MemoryOperation] = ()) -> None:
        self.backend.send(self.batch(*slots, operations=operations))

    def tokens(self, count: int = 1) -> list[int | None]:
        """The tokens of the next outcomes, of which the first sample counts."""
        self.model.sampler.may_end.release(count)
        return [self._received() for _ in range(count)]

    def _received(self) -> int | None:
        outcome = self.backend.receive(WAIT_S)
        assert outcome is not None
        return outcome.samples[0].token if outcome.samples else None

    def held(self, slot: int) -> list[int]:
        """What the host knows of a slot, which must be what the device has."""
        contents = self.backend._memory.contents(slot)
        assert contents.tokens == self.model.cells.held[slot][: len(contents.tokens)]
        assert contents.length == len(self.model.cells.held[slot])
        return contents.tokens


@pytest.fixture
def device() -> Device:
    made = Device()
    made.send(0, operations=OPENED)
    return made


def test_batches_run_ahead_of_the_host(device: Device) -> None:
    """Guards device sampling: no batch waits for a token of the one before it."""
    device.send(0)
    device.send(0)
    assert device.held(0) == [*PROMPT]
    assert device.backend.receive(0.0) is None
    expected = continued(*PROMPT, count=4)
    assert device.tokens(3) == expected[3:6]
    assert device.held(0) == expected[:5]
    device.send(0)
    assert device.held(0) == expected[:6], "the host had seen it before it was fed"
    assert device.tokens() == expected[6:]


@pytest.mark.parametrize("operation", [Save(0, 1), Copy(0, 1, 5), Truncate(0, 4)])
def test_what_is_kept_of_a_slot_waits_for_its_tokens(
    device: Device, operation: Save | Copy | Truncate
) -> None:
    """Guards saved and copied slots: without the tokens they would be shorter than their cells."""
    device.send(0)
    device.send(0)
    device.model.sampler.may_end.release(3)
    device.send(operations=[operation])
    expected = continued(*PROMPT, count=3)
    assert device.tokens(4) == [*expected[3:], None]
    if isinstance(operation, Save):
        device.send(operations=[Restore(1, 2), Open(2, SAMPLING)])
        assert device.held(2) == expected[:5]
    else:
        slot = 1 if isinstance(operation, Copy) else 0
        assert device.held(slot) == expected[: operation.length]


@pytest.mark.parametrize("operation", [Copy(0, 1, 3), Truncate(0, 3), Release(0)])
def test_what_keeps_only_known_tokens_does_not_wait(
    device: Device, operation: MemoryOperation
) -> None:
    """Guards the device: it must not stand still whenever a sequence ends."""
    device.send(0)
    device.send(operations=[operation])
    assert device.tokens(3) == [*continued(*PROMPT, count=2)[3:], None]


def test_a_slot_that_was_cut_does_not_learn_what_was_cut_off(device: Device) -> None:
    """Guards against a token of before, at a place where the slot waits for another one."""
    device.send(0)
    device.backend.send(
        Batch(9, (Truncate(0, 2), Open(0, SAMPLING)), (Entry(0, 2, (9,), wants_token=True),))
    )
    device.lengths[0] = 3
    device.send(0)
    first, second = continued(*PROMPT, count=2), continued(5, 6, 9, count=2)
    assert device.tokens(2) == first[3:]
    assert device.held(0) == [5, 6, 9]
    assert device.tokens(2) == second[3:]
    assert device.held(0) == second[:4]


def test_a_slot_with_a_fault_goes_on_until_the_host_knows_it(device: Device) -> None:
    """Guards the others in its batch, and a later save."""
    device.send(0)
    device.model.sampler.faulty.add(0)
    assert device.tokens(2) == [None, None]
    contents = device.backend._memory.contents(0)
    assert (contents.length, len(contents.tokens)) == (4, 4)


def test_unknown_tokens_are_never_kept() -> None:
    """Guards the slots where a backend does not wait for its device."""
    memory = SlotMemory(HashCells(2, 64, 1), 2)
    memory.contents(0).append(PROMPT, 3)
    memory.contents(0).append((), 4)
    for operation in (Save(0, 1), Copy(0, 1, 4)):
        with pytest.raises(BackendFailed, match="has not returned"):
            memory.operate(operation)


def test_reset_forgets_what_is_under_way(device: Device) -> None:
    """Guards the first batch after a failure."""
    device.send(0)
    device.backend.reset()
    device.lengths[0] = 0
    device.send(0, operations=OPENED)
    assert device.tokens() == [after(PROMPT)]


def test_the_worker_sends_it_a_second_batch_before_the_first_is_seen(device: Device) -> None:
    """Guards the way over the pipe: the device must not stand still between two batches."""
    assert isinstance(device.backend, QueueingBackend)
    device.tokens()
    near, far = (Channel(Frames(end)) for end in socket.socketpair())

    def serve() -> None:
        with contextlib.suppress(ChannelClosed):
            BatchServer(far, device.backend).serve()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        for operations in ((), (), (Save(0, 1), Release(0), Restore(1, 3))):
            slots = () if operations else (0,)
            near.send(Execute.of(device.batch(*slots, operations=operations)), WAIT_S)
        with pytest.raises(TimeoutError):
            near.receive(0.01)
        device.model.sampler.may_end.release(2)
        answers = [near.receive(WAIT_S) for _ in range(3)]
    finally:
        near.close()
        thread.join(WAIT_S)
        far.close()
    assert not any(isinstance(answer, Failure) for answer in answers)
    samples = [each.outcome.samples for each in answers if isinstance(each, Executed)]
    expected = continued(*PROMPT, count=3)
    assert [each[0].token for each in samples if each] == expected[4:]
    assert device.held(3) == expected[:5]
