"""The llama.cpp backend on a tiny random model: edges that the conformance suite leaves out."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.backends_for_tests import skip_reason

if reason := skip_reason("llamacpp"):
    pytest.skip(reason, allow_module_level=True)

from jitney.backends.llamacpp.backend import LlamaCppModel, make_backend
from jitney.backends.llamacpp.bindings import LlamaCppSettings
from jitney.backends.shared.model_backend import ModelBackend
from jitney.core import limits
from jitney.core.backend import Backend
from jitney.core.batch import (
    Batch,
    Copy,
    Entry,
    MemoryOperation,
    Open,
    Release,
    Restore,
    Sample,
    Sampling,
    Save,
)
from jitney.errors import BackendCrashed, BackendFailed, InvalidRequest, ModelError
from tests.models_for_tests import CHAT_TEMPLATE, TinyShape, write_tiny_gguf

KV_TOKENS = 1024
PASSES = 1100
"""A batch that the library computes in three passes."""


def settings(model: Path, *, kv_tokens: int = KV_TOKENS, slots: int = 8) -> LlamaCppSettings:
    return LlamaCppSettings(
        model=str(model), kv_tokens=kv_tokens, slots=slots, max_num_batched_tokens=2048, threads=2
    )


@pytest.fixture(scope="module")
def built(tiny_model: Path) -> Iterator[Backend]:
    backend = make_backend(settings(tiny_model))
    yield backend
    backend.close()


@pytest.fixture
def backend(built: Backend) -> Backend:
    built.reset()
    return built


def tokens(count: int, start: int = 0) -> tuple[int, ...]:
    """Text tokens, each differing from its neighbours."""
    return tuple(4 + (index * 31 + index * index) % 250 for index in range(start, start + count))


def greedy(prompt_count: int, **other: int) -> Sampling:
    return Sampling(seed=0, prompt_count=prompt_count, **other)  # type: ignore[arg-type]


def run(
    backend: Backend, *entries: Entry, operations: tuple[MemoryOperation, ...] = ()
) -> tuple[Sample, ...]:
    return backend.execute(Batch(0, operations, entries)).samples


def fill(backend: Backend, slot: int, count: int) -> Sample:
    """Open a slot, give it a prompt, and take its first token."""
    entry = Entry(slot, 0, tokens(count), wants_token=True)
    return run(backend, entry, operations=(Open(slot, greedy(count)),))[0]


def test_traits_come_from_the_model(backend: Backend) -> None:
    """The scheduler counts memory by these."""
    traits = backend.traits
    assert traits.kv_tokens == KV_TOKENS
    assert traits.slots_max == 8
    assert traits.model_len_max == TinyShape().context
    assert traits.kv_bytes_per_token == 2 * 2 * (32 + 32) * 2
    assert not traits.batch_invariant


def test_numbers_of_8_bits_are_counted_as_they_are_kept(tiny_model: Path) -> None:
    """Guards the budget of saved memory, which is counted by these bytes: half as many."""
    model = LlamaCppModel(replace(settings(tiny_model), kv_type="q8_0"))
    small = ModelBackend(model)
    fill(small, 0, 512)
    saved = len(model.cells.save(0))
    small.close()
    # In each of 2 layers 2 heads of 32 numbers for keys, and as many for values.
    assert small.traits.kv_bytes_per_token == 2 * 2 * 2 * 34
    assert 512 * 272 <= saved <= 512 * 300


def test_vocabulary_of_the_file(backend: Backend) -> None:
    """Control names must not pass for text, nor text for control."""
    vocabulary = backend.vocabulary
    assert vocabulary.control == {0, 1, 2, 3}
    assert vocabulary.pieces[2] == b"<|im_end|>"
    assert set(vocabulary.pieces[4:260]) == {bytes([byte]) for byte in range(256)}
    assert 2 in vocabulary.eos_tokens
    assert vocabulary.bos_token == 1
    assert not vocabulary.adds_bos
    assert vocabulary.chat_template == CHAT_TEMPLATE


@pytest.mark.parametrize(
    "text",
    ["", "the thing", "a\0b", "\ufeff\u202e é 漢字 🚌", "<|im_end|>", " \n\t ", "x" * 10_000],
)
def test_encoding_round_trips(backend: Backend, text: str) -> None:
    """What a user writes is what the model reads, byte for byte."""
    pieces = backend.vocabulary.pieces
    encoded = backend.encode([(text, False)])
    assert b"".join(pieces[token] for token in encoded).decode() == text
    assert not backend.vocabulary.control.intersection(encoded)


def test_control_names_only_when_special(backend: Backend) -> None:
    """A user who types the name of a control token must not get the token."""
    assert backend.encode([("<|im_start|>", True)]) == [1]
    assert len(backend.encode([("<|im_start|>", False)])) > 1


def test_half_a_character_is_refused(backend: Backend) -> None:
    """A lone surrogate has no UTF-8."""
    with pytest.raises(InvalidRequest, match="surrogate"):
        backend.encode([("a\ud800", False)])


def test_a_text_beyond_the_limit_is_refused(backend: Backend) -> None:
    """Native code counts in 32 bits."""
    with pytest.raises(InvalidRequest, match="characters"):
        backend.encode([("x" * (limits.PROMPT_CHARACTERS_MAX + 1), False)])


def test_memory_can_be_used_to_the_last_token(backend: Backend) -> None:
    """Holes left by released slots must be usable, or the ledger promises what is not there."""
    for slot in range(8):
        fill(backend, slot, KV_TOKENS // 8)
    run(backend, operations=tuple(Release(slot) for slot in (1, 3, 5, 7)))
    sample = fill(backend, 1, KV_TOKENS // 2)
    backend.reset()
    assert fill(backend, 0, KV_TOKENS // 2).token == sample.token


def test_copies_share_their_memory(backend: Backend) -> None:
    """The ledger counts a shared token once; seven copies of most of the memory must fit."""
    fill(backend, 0, KV_TOKENS - 100)
    run(backend, operations=tuple(Copy(0, slot, KV_TOKENS - 100) for slot in range(1, 8)))
    entries = [Entry(slot, KV_TOKENS - 100, (5 + slot,), False) for slot in range(8)]
    assert len(run(backend, *entries)) == 8


def test_full_memory_fails_and_reset_mends_it(backend: Backend) -> None:
    """Running out of cells is a failure of the batch, not of the process."""
    fill(backend, 0, KV_TOKENS)
    with pytest.raises(BackendFailed, match="no room"):
        fill(backend, 1, 400)
    backend.reset()
    assert fill(backend, 1, 400).token is not None


def test_restore_into_full_memory_fails(backend: Backend) -> None:
    """The library says no by a size of zero, which must not pass for success."""
    fill(backend, 0, 600)
    run(backend, operations=(Save(0, 1),))
    with pytest.raises(BackendFailed, match="no room"):
        run(backend, operations=(Restore(1, 1),))


def test_prompt_logprobs_of_a_batch_of_several_passes(tiny_model: Path) -> None:
    """Rows must be in order of position although the library computes them in pieces."""
    backend = make_backend(settings(tiny_model, kv_tokens=2048, slots=2))
    prompt = tokens(PASSES)
    sampling = greedy(PASSES, prompt_logprobs=0)
    whole = run(backend, Entry(0, 0, prompt, True), operations=(Open(0, sampling),))[0]
    backend.reset()
    pieces: list[Sample] = []
    operations: tuple[MemoryOperation, ...] = (Open(0, sampling),)
    for start in range(0, PASSES, 100):
        entry = Entry(0, start, prompt[start : start + 100], start + 100 == PASSES)
        pieces += run(backend, entry, operations=operations)
        operations = ()
    backend.close()
    scores = [score for piece in pieces for score in piece.prompt_logprobs]
    assert [score.token for score in whole.prompt_logprobs] == list(prompt[1:])
    assert [score.token for score in scores] == list(prompt[1:])
    for one, other in zip(whole.prompt_logprobs, scores, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=0.1)
    assert pieces[-1].token == whole.token


def test_prompt_logprobs_survive_a_save_in_mid_prompt(backend: Backend) -> None:
    """The first token after the restore is predicted by a row from before the save."""
    prompt = tokens(40)
    opened = Open(0, greedy(40, prompt_logprobs=0))
    run(backend, Entry(0, 0, prompt[:20], False), operations=(opened,))
    run(backend, operations=(Save(0, 1), Release(0)))
    moved = Open(3, opened.sampling)
    sample = run(backend, Entry(3, 20, prompt[20:], True), operations=(Restore(1, 3), moved))[0]
    assert [score.token for score in sample.prompt_logprobs] == list(prompt[20:])


def test_a_copied_prefix_gives_no_prompt_logprobs(backend: Backend) -> None:
    """The row before the span was never computed here: nothing is better than a wrong number."""
    fill(backend, 0, 20)
    opened = Open(1, greedy(40, prompt_logprobs=0))
    entry = Entry(1, 20, tokens(20, 20), True)
    sample = run(backend, entry, operations=(Copy(0, 1, 20), opened))[0]
    assert sample.prompt_logprobs == ()
    assert sample.token is not None


def test_weights_that_are_not_numbers_are_faults_of_rows(tmp_path: Path) -> None:
    """A damaged model answers with a fault, never with a token."""
    path = tmp_path / "nan.gguf"
    write_tiny_gguf(path)
    content = path.read_bytes()
    path.write_bytes(content[:-20_000] + b"\xff" * 20_000)
    backend = make_backend(settings(path))
    sample = fill(backend, 0, 8)
    backend.close()
    assert sample.token is None
    assert sample.fault


def test_closed_is_told(tiny_model: Path) -> None:
    """After close the pointers are gone: nothing native may be called."""
    backend = make_backend(settings(tiny_model))
    backend.close()
    backend.close()
    encode, execute = partial(backend.encode, [("x", False)]), partial(run, backend)
    for call in (encode, execute, backend.reset):
        with pytest.raises(BackendCrashed):
            call()


def test_memory_that_does_not_fit_is_refused_before_it_is_taken(tiny_model: Path) -> None:
    """Two thousand million tokens: the kernel would kill the process."""
    with pytest.raises(ModelError, match="lower kv_tokens"):
        make_backend(settings(tiny_model, kv_tokens=limits.TOKENS_MAX))


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), (b"text", "not a GGUF"), (b"GGUF\3\0", "cut short")],
)
def test_bad_files_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    """Native code does not see them."""
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        make_backend(settings(path))


def test_unknown_architecture_is_named(tmp_path: Path) -> None:
    """The most common failure with a new model: the library is older than the file."""
    path = tmp_path / "model.gguf"
    write_tiny_gguf(path, shape=TinyShape(architecture="newest"))
    with pytest.raises(ModelError, match="unknown model architecture: 'newest'"):
        make_backend(settings(path))
