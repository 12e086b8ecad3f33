"""Slots with cells of their own: gaps between them, and sizes. Conformance has the rest."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends_for_tests import skip_reason

if reason := skip_reason("llamacpp"):
    pytest.skip(reason, allow_module_level=True)

from jitney.backends.llamacpp.backend import make_backend
from jitney.backends.llamacpp.bindings import LlamaCppSettings
from jitney.core.backend import Backend
from jitney.core.batch import Batch, Entry, MemoryOperation, Open, Release, Sample, Sampling
from jitney.errors import BackendFailed

SLOT_TOKENS = 256
TOLERANCE = 0.05


def settings(model: Path, slot_tokens_max: int) -> LlamaCppSettings:
    return LlamaCppSettings(
        model=str(model),
        kv_tokens=2048,
        slots=8,
        max_num_batched_tokens=512,
        threads=2,
        flash_attention=False,
        slot_tokens_max=slot_tokens_max,
    )


@pytest.fixture(scope="module")
def built(tiny_model: Path) -> Iterator[Backend]:
    backend = make_backend(settings(tiny_model, SLOT_TOKENS))
    yield backend
    backend.close()


@pytest.fixture
def backend(built: Backend) -> Backend:
    built.reset()
    return built


def prompt(slot: int, count: int = 24) -> tuple[int, ...]:
    """Another text for each slot."""
    return tuple(4 + (slot * 67 + index * 31 + index * index) % 250 for index in range(count))


def opened(slot: int, count: int = 24) -> Open:
    return Open(slot, Sampling(seed=0, prompt_count=count, logprobs=5))


def run(
    backend: Backend, *entries: Entry, operations: tuple[MemoryOperation, ...] = ()
) -> tuple[Sample, ...]:
    return backend.execute(Batch(0, operations, entries)).samples


def alone(backend: Backend, text: int, steps: int) -> list[Sample]:
    """The prompt of `text` continued in slot 0 of an empty backend."""
    backend.reset()
    samples = list(run(backend, Entry(0, 0, prompt(text), True), operations=(opened(0),)))
    for step in range(steps):
        samples += run(backend, Entry(0, 24 + step, (), True, continues=True))
    return samples


def assert_alike(one: list[Sample], other: list[Sample]) -> None:
    assert [sample.token for sample in one] == [sample.token for sample in other]
    for left, right in zip(one, other, strict=True):
        assert left.logprob is not None
        assert right.logprob is not None
        assert left.logprob.logprob == pytest.approx(right.logprob.logprob, abs=TOLERANCE)


@pytest.mark.parametrize("slots", [(0, 1, 2), (0, 2, 4), (1, 4), (7, 0, 3), (6, 5, 1)])
def test_gaps_and_order_do_not_change_answers(backend: Backend, slots: tuple[int, ...]) -> None:
    """Slots in gaps get a token for the pass: it must be gone after it, and rows not swapped."""
    expected = {slot: alone(backend, slot, 4) for slot in range(8)}
    backend.reset()
    entries = [Entry(slot, 0, prompt(slot), True) for slot in range(8)]
    firsts = run(backend, *entries, operations=tuple(opened(slot) for slot in range(8)))
    got = {slot: [firsts[slot]] for slot in range(8)}
    # Those that stood in a gap go on as if nothing had been there.
    for going_on in (slots, [slot for slot in range(8) if slot not in slots]):
        for step in range(4):
            entries = [Entry(slot, 24 + step, (), True, continues=True) for slot in going_on]
            for slot, sample in zip(going_on, run(backend, *entries), strict=True):
                got[slot].append(sample)
        for slot in going_on:
            assert_alike(got[slot], expected[slot])


def test_a_slot_holds_what_it_was_given(backend: Backend) -> None:
    """Every slot can be full at once, also as a neighbour in a gap; one token more fails."""
    for slot in range(8):
        text = prompt(slot, SLOT_TOKENS)
        run(backend, Entry(slot, 0, text, False))
    run(backend, operations=(Release(0), Release(2)))
    run(backend, Entry(0, 0, (5,), False), Entry(2, 0, (5,), False))
    with pytest.raises(BackendFailed, match="no room"):
        run(backend, Entry(3, SLOT_TOKENS, (5,), False))


def test_traits_are_those_of_the_slots(backend: Backend) -> None:
    """A sequence longer than a slot must be refused at the door."""
    assert backend.traits.model_len_max == SLOT_TOKENS
    assert backend.traits.kv_tokens == 8 * SLOT_TOKENS
