"""The program of `test_bindings.py`: an interrupt while native code works, once for each name.

In a process of its own: where OpenVINO has run in the same process, an interrupted load of
llama.cpp ends it with a segmentation fault.
"""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any  # Any: native functions

import pytest

from jitney.backends.llamacpp import bindings

SHAPE = bindings.ContextShape(
    kv_tokens=64,
    slots=1,
    max_num_batched_tokens=64,
    pass_tokens_max=64,
    threads=1,
    flash_attention=False,
)


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


def load(tiny_model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards Ctrl-C while a model loads: it stops, and gigabytes are not left behind."""
    bindings.native_log()
    _interrupted(monkeypatch, "llama_model_load_from_file")
    freed = _counted(monkeypatch, "llama_model_free")
    with pytest.raises(KeyboardInterrupt):
        bindings.Model(tiny_model, gpu_layers=0, extra_kernels=False)
    assert len(freed) == 1


def context(tiny_model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards Ctrl-C while the memory of the slots is made."""
    model = bindings.Model(tiny_model, gpu_layers=0, extra_kernels=False)
    _interrupted(monkeypatch, "llama_init_from_model")
    freed = _counted(monkeypatch, "llama_free")
    with pytest.raises(KeyboardInterrupt):
        bindings.Context(model, SHAPE)
    assert len(freed) == 1


def conversion(tiny_model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards Ctrl-C while weights are converted."""
    bindings.native_log()
    _interrupted(monkeypatch, "llama_model_quantize")
    with pytest.raises(KeyboardInterrupt):
        bindings.quantize(tiny_model, folder / "q8.gguf", threads=1)


if __name__ == "__main__":
    # As in a terminal, whatever started the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.MonkeyPatch.context() as patch:
        {"load": load, "context": context, "conversion": conversion}[sys.argv[1]](
            Path(sys.argv[2]), Path(sys.argv[3]), patch
        )
