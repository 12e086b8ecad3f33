"""Tests of `jitney.backends.llamacpp.bindings`: interrupts of native code, copies, kinds."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any  # Any: native functions

import pytest

from tests.backends_for_tests import skip_reason

if reason := skip_reason("llamacpp"):
    pytest.skip(reason, allow_module_level=True)

from jitney.backends.llamacpp import bindings
from jitney.errors import BackendFailed
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
