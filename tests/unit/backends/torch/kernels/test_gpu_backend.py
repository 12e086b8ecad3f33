"""Passes that are sent ahead, on the CPU with the kernels in Triton's interpreter."""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch
from triton.runtime.errors import OutOfResources

from jitney.backends.torch.backend import TorchSettings
from jitney.backends.torch.device_passes import DevicePasses, RunningPass
from jitney.backends.torch.gpu_backend import GpuBackend, GpuModel
from jitney.backends.torch.gpu_loading import check_fp8, check_gpu, load_on_gpu
from jitney.backends.torch.graphs import logit_rows, sizes_up_to
from jitney.backends.torch.kernels import triton_ops
from jitney.backends.torch.kernels.triton_ops import TritonOps
from jitney.core.batch import Batch, Copy, Entry, Open, Outcome, Release, Restore, Sampling, Save
from jitney.errors import BackendCrashed, BackendFailed, ConfigError, ModelError, NoRoom
from jitney.models.tiny import TinyShape, write_tiny_gguf

GREEDY = Sampling(seed=1, prompt_count=5)
PROMPT = (5, 9, 11, 7, 3)
SIZES = TorchSettings(
    model="", slots=4, kv_tokens=512, max_num_batched_tokens=64, model_len_max=128, threads=1,
    dtype="float32", kv_dtype="float32",
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as small as can be."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_gguf(path, shape=TinyShape(layers=1, width=64, heads=2, heads_kv=1, inner=64))
    return path


def load(model: Path, **changes: Any) -> GpuModel:
    """The model, on the CPU."""
    return load_on_gpu(replace(SIZES, model=str(model), **changes), torch.device("cpu"))


@pytest.fixture(autouse=True)
def _products_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of Triton have tests of their own, and take most of the time in the interpreter."""
    monkeypatch.setattr(triton_ops, "tile_of", lambda *_, **__: None)


@pytest.fixture
def backend(model: Path) -> Iterator[GpuBackend]:
    """It, with kernels in the interpreter."""
    made = GpuBackend(load(model))
    yield made
    made.close()


def _token(outcome: Outcome | None, index: int = 0) -> int:
    assert outcome is not None
    token = outcome.samples[index].token
    assert token is not None, outcome.samples[index].fault
    return token


def _text(backend: GpuBackend, sampling: Sampling, count: int, *, ahead: bool) -> list[int]:
    """Tokens of slot 0, with each pass sent before the last one's token is known, or after it."""
    start = len(PROMPT)
    backend.send(Batch(1, (Open(0, sampling),), (Entry(0, 0, PROMPT, True),)))
    tokens: list[int] = []
    for index in range(count - 1):
        entry = Entry(0, start + index, (), True, continues=True)
        if ahead:
            backend.send(Batch(2 + index, (), (entry,)))
        tokens.append(_token(backend.receive()))
        if not ahead:
            backend.send(
                Batch(2 + index, (), (replace(entry, tokens=(tokens[-1],), continues=False),))
            )
    tokens.append(_token(backend.receive()))
    backend.reset()
    return tokens


def test_a_scored_prompt_that_is_sent_ahead_loses_no_logprobs(backend: GpuBackend) -> None:
    """Guards prompts of several parts: a part needs the last row of the one before it."""
    scored = replace(GREEDY, prompt_logprobs=1)
    found = []
    for ahead in (False, True):
        backend.send(Batch(1, (Open(0, scored),), (Entry(0, 0, PROMPT[:3], False),)))
        outcomes = [] if ahead else [backend.receive()]
        backend.send(Batch(2, (), (Entry(0, 3, PROMPT[3:], True),)))
        outcomes += [backend.receive() for _ in range(2 - len(outcomes))]
        found.append([each.samples[0].prompt_logprobs for each in outcomes if each is not None])
        backend.reset()
    assert found[0] == found[1]
    assert [len(each) for each in found[1]] == [2, 2]


@pytest.mark.parametrize(
    "sampling",
    [
        replace(GREEDY, temperature=0.8),
        replace(GREEDY, frequency_penalty=0.5),
    ],
    ids=["drawn", "penalty"],
)
def test_passes_sent_ahead_give_the_same_tokens(backend: GpuBackend, sampling: Sampling) -> None:
    """A pass that continues takes a token that the host has not seen, or waits for the host's."""
    assert _text(backend, sampling, 2, ahead=True) == _text(backend, sampling, 2, ahead=False)


def test_a_copy_after_a_pass_in_flight_has_its_tokens(backend: GpuBackend) -> None:
    """The copied slot continues like the first one, whose last token was not read before."""
    backend.send(Batch(1, (Open(0, GREEDY),), (Entry(0, 0, PROMPT, True),)))
    backend.send(Batch(2, (), (Entry(0, 5, (), True, continues=True),)))
    first = _token(backend.receive())
    backend.send(
        Batch(
            3,
            (Copy(0, 1, 5), Open(1, GREEDY)),
            (Entry(0, 6, (), True, continues=True), Entry(1, 5, (first,), True)),
        )
    )
    second = _token(backend.receive())
    outcome = backend.receive()
    assert _token(outcome, 1) == second


def test_a_slot_may_be_released_while_its_pass_runs(backend: GpuBackend) -> None:
    """Guards against a look for the token after the tokens of a slot that was emptied meanwhile,
    as when a request is cancelled."""
    backend.send(Batch(1, (Open(0, GREEDY),), (Entry(0, 0, PROMPT, True),)))
    backend.send(Batch(2, (Release(0),), ()))
    assert _token(backend.receive()) >= 0
    assert backend.receive() is not None


def test_after_a_failed_pass_the_device_hears_of_every_block(model: Path) -> None:
    """Rows carry the first blocks of slots 0 and 1, and the pass fails, because slot 2 has no room.
    After the reset these slots get the same blocks."""
    found = []
    for fails in (False, True):
        backend = GpuBackend(load(model, kv_tokens=128, model_len_max=64))
        if fails:
            with pytest.raises(BackendFailed, match="Memory is full"):
                backend.send(_first_tokens(3))
            backend.reset()
        tokens = [each.token for each in backend.execute(_first_tokens(2)).samples]
        entries = tuple(Entry(slot, 1, (), True, continues=True) for slot in range(2))
        tokens += [each.token for each in backend.execute(Batch(2, (), entries)).samples]
        found.append(tokens)
        backend.close()
    assert found[0] == found[1]


def test_keys_and_values_in_fp8_come_back_as_they_were_saved(model: Path) -> None:
    """Guards the bytes of a token, and the type of what leaves the slots."""
    made = GpuBackend(load(model, kv_dtype="fp8"))
    plain = made.execute(Batch(1, (Open(0, GREEDY),), (Entry(0, 0, PROMPT, True),)))
    assert made.traits.kv_bytes_per_token == made._device_memory.cells._caches[0].shape[-1] * 2
    again = Entry(0, 5, (_token(plain),), True)
    expected = made.execute(Batch(2, (Save(0, 1),), (again,)))
    restored = (Release(0), Restore(1, 0), Open(0, GREEDY))
    found = made.execute(Batch(3, restored, (again,)))
    assert found.samples == expected.samples
    made.close()


def _first_tokens(slots: int) -> Batch:
    """A token of a prompt for so many slots."""
    opened = tuple(Open(slot, replace(GREEDY, prompt_count=1)) for slot in range(slots))
    return Batch(1, opened, tuple(Entry(slot, 0, (5 + slot,), True) for slot in range(slots)))


def test_what_fills_up_a_pass_reads_only_the_table_of_its_slot(
    backend: GpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards short sequences: what lies behind the tables is no number of a block."""
    passes, memory = backend._passes, backend._device_memory
    for step in (16, 128):
        monkeypatch.setattr(passes, "_step", step)
        for size in sizes_up_to(SIZES.slots):
            tiles = passes._filler(size).tiles
            assert len(tiles) == size.tiles(step)
            for slot, _, start, count in tiles:
                assert slot == memory.spare_slot
                assert start + count <= memory.tables.shape[1] * memory.block_tokens


def test_all_graphs_write_their_logits_to_one_place(backend: GpuBackend) -> None:
    """Guards memory: with a place for each graph they took tens of gigabytes."""
    passes, sizes = backend._passes, sizes_up_to(SIZES.sequences_max)
    # Of those with the most logits the one with the fewest rows: its pass is soon computed.
    largest = max(sizes, key=lambda size: (size.sampled, -size.rows))
    with torch.inference_mode():
        for size in (largest, sizes[-1]):
            parcel = passes._filler(size).packed(torch.device("cpu"))
            logits, _ = passes._graphs.run(parcel, size)
            assert logits.data_ptr() == passes._logits.data_ptr()
            assert len(logits) == size.sampled
    assert len(passes._logits) == logit_rows(SIZES.sequences_max) >= largest.sampled


def test_more_sequences_than_have_a_graph_get_the_same_tokens(backend: GpuBackend) -> None:
    """Guards the logits of graphs, which have no room for them."""
    found = backend.execute(_first_tokens(2)).samples
    backend.reset()
    backend._passes._logits = backend._passes._logits[:1]
    assert backend.execute(_first_tokens(2)).samples == found


def test_a_scored_prompt_has_the_logits_of_a_few_rows_at_a_time(
    backend: GpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards memory: the count at the start has so many rows, and a pass may have thousands."""
    scored = Batch(1, (Open(0, replace(GREEDY, prompt_logprobs=1)),), (Entry(0, 0, PROMPT, True),))
    expected = _scores(backend.execute(scored))
    backend.reset()
    backend._passes._logits = backend._passes._logits[:2]
    write, written = TritonOps.write_logits, []

    def note(self: TritonOps, hidden: torch.Tensor, head: torch.Tensor, out: torch.Tensor) -> None:
        written.append(len(out))
        write(self, hidden, head, out)

    monkeypatch.setattr(TritonOps, "write_logits", note)
    assert _scores(backend.execute(scored)) == pytest.approx(expected, abs=1e-4)
    assert written == [2, 2, 1]


def _scores(outcome: Outcome) -> list[float]:
    """The token of the only sample, and the logprobs of the prompt."""
    (sample,) = outcome.samples
    assert len(sample.prompt_logprobs) == len(PROMPT) - 1
    return [_token(outcome), *(each.logprob for each in sample.prompt_logprobs)]


def test_a_gpu_with_little_shared_memory_is_a_sentence(
    backend: GpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards smaller GPUs than that whose tiles are here; Triton's error names block sizes."""

    def fail(_: DevicePasses) -> None:
        raise OutOfResources(163_840, 101_376, "shared memory")

    monkeypatch.setattr(DevicePasses, "capture", fail)
    with pytest.raises(ModelError, match=r"too little shared memory .* 163840 bytes of 101376"):
        backend.capture_sizes()


def test_without_a_usable_gpu_there_is_no_room_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards a driver that is mended: a trial remembers all other refusals for ever."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NoRoom, match="no usable NVIDIA GPU"):
        check_gpu()


def test_graphs_that_do_not_fit_at_the_start_are_a_refusal(
    backend: GpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts it must learn which setting to change."""

    def fail(_: DevicePasses) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(DevicePasses, "capture", fail)
    with pytest.raises(NoRoom, match="gpu_memory_utilization"):
        backend.capture_sizes()


def test_an_error_of_the_gpu_ends_the_backend(
    backend: GpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks first has to say so, or the process would go on without its GPU."""

    def fail(_: RunningPass) -> bool:
        raise torch.AcceleratorError("a kernel failed")

    backend.send(Batch(1, (Open(0, GREEDY),), (Entry(0, 0, PROMPT, True),)))
    with monkeypatch.context() as patch:
        patch.setattr(RunningPass, "has_ended", fail)
        patch.setattr(RunningPass, "wait", fail)
        with pytest.raises(BackendCrashed, match="a kernel failed"):
            backend.receive(1.0)
        with pytest.raises(BackendCrashed, match="a kernel failed"):
            backend.receive()
        with pytest.raises(BackendCrashed, match="a kernel failed"):
            backend.reset()


def test_a_gpu_that_cannot_multiply_in_fp8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against an error of the library in the first pass."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    check_fp8(torch.device("cuda"), "kv_cache_dtype")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(
        ConfigError,
        match=r"kv_cache_dtype is fp8, and A100 .* 8\.0, and FP8 needs 8\.9",
    ):
        check_fp8(torch.device("cuda"), "kv_cache_dtype")


def test_a_closed_backend_holds_no_weights(model: Path) -> None:
    """Guards the next backend of this process: whoever still knows a closed one, as an engine does,
    would hold the memory of the GPU. Where garbage is frozen nobody looks for circles."""
    loaded = load(model)
    weights = weakref.ref(loaded.model.head)
    made = GpuBackend(loaded)
    del loaded
    gc.disable()
    try:
        made.close()
        assert weights() is None
    finally:
        gc.enable()
