"""Tests of `jitney.backends.llamacpp.bindings`: interrupts of native code, copies, kinds."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any  # Any: native functions

import pytest

from tests.backends_for_tests import skip_reason

if reason := skip_reason("llamacpp"):
    pytest.skip(reason, allow_module_level=True)

from jitney.backends.llamacpp import asked, bindings, prebuilt
from jitney.backends.llamacpp.kind import KIND
from jitney.errors import BackendFailed, ModelError
from jitney.models.gguf import read_header
from tests.models_for_tests import TinyShape, write_tiny_gguf

SHAPE = bindings.LlamaCppSettings(
    model="",
    kv_tokens=64,
    slots=1,
    max_num_batched_tokens=64,
    threads=1,
    flash_attention=False,
)


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """As in a terminal, whatever started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _interrupted(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have Ctrl-C pressed while the native function of that name works."""
    call: Callable[..., Any] = getattr(bindings.llama_cpp, name)

    def pressed(*arguments: Any) -> Any:
        result = call(*arguments)
        signal.raise_signal(signal.SIGINT)  # to this thread, before the next line
        return result

    monkeypatch.setattr(bindings.llama_cpp, name, pressed)


def _counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[object]:
    """The pointers that the native function of that name is given from now on."""
    call: Callable[..., Any] = getattr(bindings.llama_cpp, name)
    seen: list[object] = []

    def counted(pointer: Any) -> None:
        seen.append(pointer)
        call(pointer)

    monkeypatch.setattr(bindings.llama_cpp, name, counted)
    return seen


def test_an_interrupted_load_is_raised_and_frees_the_model(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards Ctrl-C while a model loads: it stops, and gigabytes are not left behind."""
    bindings.native_log()
    _interrupted(monkeypatch, "llama_model_load_from_file")
    freed = _counted(monkeypatch, "llama_model_free")
    with pytest.raises(KeyboardInterrupt):
        bindings.Model(tiny_model, gpu_layers=0, extra_kernels=False)
    assert len(freed) == 1


def test_an_interrupted_context_is_raised_and_freed(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards Ctrl-C while the memory of the slots is made."""
    model = bindings.Model(tiny_model, gpu_layers=0, extra_kernels=False)
    _interrupted(monkeypatch, "llama_init_from_model")
    freed = _counted(monkeypatch, "llama_free")
    with pytest.raises(KeyboardInterrupt):
        bindings.Context(model, SHAPE)
    assert len(freed) == 1


def test_an_interrupted_conversion_is_raised(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards Ctrl-C while weights are converted."""
    bindings.native_log()
    _interrupted(monkeypatch, "llama_model_quantize")
    with pytest.raises(KeyboardInterrupt):
        bindings.quantize(tiny_model, tmp_path / "q8.gguf", threads=1)


def test_a_copy_of_another_length_is_refused(tiny_model: Path) -> None:
    """Guards whoever continues in the slot: a gap would be filled by what was there before."""
    model = bindings.Model(tiny_model, gpu_layers=0, extra_kernels=False)
    context = bindings.Context(model, SHAPE)
    with pytest.raises(BackendFailed, match="restored 0 tokens of 5 in slot 0"):
        context.restore(0, context.save(0), 5)


def test_the_list_of_architectures_is_that_of_the_prebuilt_library(tmp_path: Path) -> None:
    """Guards models from a refusal by an old list, where the library is yet to be added."""
    gguf = pytest.importorskip("gguf", reason="needs the gguf package")
    models = pytest.importorskip("tests.models_for_tests", reason="needs the gguf package")
    assert prebuilt.PREBUILT["Linux", "x86_64", ""].release == asked.RELEASE
    installed = KIND.library()
    if installed is None or not (installed.version or "").startswith(asked.RELEASE):
        pytest.skip("another release of llama.cpp is installed")
    path, loaded = tmp_path / "model.gguf", set()
    for name in asked.ARCHITECTURES.union(gguf.MODEL_ARCH_NAMES.values()):
        shape = models.TinyShape(architecture=name, layers=1, width=64, heads=2, inner=64)
        models.write_tiny_gguf(path, shape=shape)
        try:
            bindings._loads(path)
        except ModelError:
            continue
        loaded.add(name)
    assert loaded == asked.ARCHITECTURES


@pytest.mark.parametrize(
    "name", ["lfm2", "granitehybrid", "nemotron_h", "falcon-h1", "mamba2", "qwen35"]
)
def test_the_header_says_what_a_slot_takes(tmp_path: Path, name: str) -> None:
    """Guards memory that is chosen by the header alone: the library saves as many bytes."""
    hybrids = pytest.importorskip("tests.hybrids_for_tests", reason="needs the gguf package")
    path = tmp_path / "hybrid.gguf"
    hybrids.write_hybrid(path, hybrids.HYBRIDS[name])
    header = read_header(path)
    model = bindings.Model(path, gpu_layers=0, extra_kernels=False)
    context = bindings.Context(model, replace(SHAPE, kv_tokens=256, max_num_batched_tokens=128))
    saved = []
    for start, end in ((0, 40), (40, 100)):
        count = end - start
        context.tokens[:count] = range(5, 5 + count)
        context.positions[:count] = range(start, end)
        context.slots[:count] = context.needs_logits[:count] = 0
        assert context.decode(count) == 0
        saved.append(len(context.save(0)))
    token_bytes = (saved[1] - saved[0]) / 60
    # The library writes where each token stands, too, and some bytes for each kind of memory.
    assert 0 <= token_bytes - header.kv_bytes_per_token <= 24
    assert 0 <= saved[0] - 40 * token_bytes - header.state_bytes <= 160


@pytest.mark.parametrize(
    ("architecture", "continues"), [("llama", True), ("modern-bert", False), ("llada", False)]
)
def test_a_model_that_embeds_texts_continues_none(
    tmp_path: Path, architecture: str, continues: bool
) -> None:
    """Guards whoever names one: the library computes it, and its logits would mean nothing."""
    path = tmp_path / "model.gguf"
    write_tiny_gguf(path, shape=TinyShape(architecture=architecture))
    model = bindings.Model(path, gpu_layers=0, extra_kernels=False, has_weights=False)
    assert model.is_causal_decoder == continues
