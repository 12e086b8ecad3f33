"""Unit tests of the torch backend as a kind: when it is chosen, and with which numbers."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitney.backends.machine.processor import Processor
from jitney.backends.torch import kind
from jitney.backends.torch.kind import KIND, chosen_dtypes
from jitney.config import Settings
from jitney.config.settings import KvCacheDtype, Quantization
from jitney.errors import ConfigError, NoRoom
from jitney.models.tiny import write_tiny_gguf


@pytest.mark.parametrize(
    ("instructions", "given", "expected"),
    [
        ("avx512_bf16", {}, ("bfloat16", "bfloat16")),
        ("avx2", {}, ("float32", "float32")),
        ("avx2", {"dtype": "bfloat16"}, ("bfloat16", "bfloat16")),
        ("avx2", {"kv_cache_dtype": "float16"}, ("float32", "float16")),
    ],
)
def test_numbers_follow_the_processor_and_the_settings(
    monkeypatch: pytest.MonkeyPatch,
    instructions: str,
    given: dict[str, Any],
    expected: tuple[str, str],
) -> None:
    """Guards speed: bfloat16 without instructions for it takes many times as long."""
    monkeypatch.setattr(kind, "read_processor", lambda: Processor("any", instructions))
    chosen = chosen_dtypes(Settings(backend="torch", **given))
    assert (chosen["dtype"], chosen["kv_dtype"]) == expected


@pytest.mark.parametrize(
    ("version", "has_driver", "cuda", "is_used"),
    [
        ("cuda: Optional[str] = '12.8'\n", True, "12.8", True),
        ("cuda: Optional[str] = '12.8'\n", False, "12.8", False),
        ("cuda: Optional[str] = None\nhip = '6.0'\n", True, None, False),
    ],
)
def test_a_gpu_is_used_and_chosen_where_there_is_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    has_driver: bool,
    cuda: str | None,
    is_used: bool,
) -> None:
    """Guards machines without one: there it is the slowest of all."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "version.py").write_text(version)
    for name in list(sys.modules):
        if name == "torch" or name.startswith("torch."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    driver = tmp_path / "driver"
    if has_driver:
        driver.touch()
    monkeypatch.setattr(kind, "DRIVERS", (tmp_path / "another", driver))
    assert kind.cuda_version() == cuda
    assert kind.has_gpu() == is_used
    assert KIND.is_automatic() == is_used


def test_on_a_gpu_memory_is_what_is_free_unless_a_number_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the backend sees the memory of a GPU, so its kind must not count that of the machine."""
    caplog.set_level("INFO")
    monkeypatch.setattr(kind, "has_gpu", lambda: True)
    write_tiny_gguf(tmp_path / "tiny.gguf")
    found = kind.values(Settings(backend="torch", batch_invariant="on"), tmp_path / "tiny.gguf")
    assert "kernels are compiled once" in caplog.text, "a start that seems to hang"
    assert (found["device"], found["kv_tokens"], found["memory_percent"]) == ("cuda", 0, 90)
    assert (found["dtype"], found["batch_invariant"]) == ("bfloat16", True)
    assert found["max_num_seqs"] == Settings().max_num_seqs != found["slots"]
    given = Settings(
        backend="torch", kv_tokens=512, gpu_memory_utilization=0.5, batch_invariant="off"
    )
    found = kind.values(given, tmp_path / "tiny.gguf")
    assert (found["kv_tokens"], found["memory_percent"]) == (512, 50)
    assert not found["quantization"]


def test_float16_is_refused_where_its_numbers_are_too_small(tmp_path: Path) -> None:
    """Guards sums that would become infinite."""
    model = tmp_path / "tiny.gguf"
    write_tiny_gguf(model)
    settings = Settings(backend="torch", dtype="float16", batch_invariant="off")
    found = kind.values(settings, model)
    assert (found["dtype"], found["kv_dtype"]) == ("float16", "float16")
    with pytest.raises(ConfigError, match="numbers end at 65504"):
        kind.values(replace(settings, quantization="int8"), model)


def test_weights_that_are_larger_than_the_gpu_are_refused_before_a_fetch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Guards models that llama.cpp runs on the CPU, and hours of fetching."""
    monkeypatch.setattr(kind, "has_gpu", lambda: True)
    model = tmp_path / "tiny.gguf"
    write_tiny_gguf(model)
    settings, found = Settings(), []
    for memory in (None, 2**30):
        monkeypatch.setattr(kind, "gpu_bytes", lambda memory=memory: memory)
        found.append(kind.needs(model, settings))
    assert found[0] == found[1]
    # The share that may be used counts.
    monkeypatch.setattr(kind, "gpu_bytes", lambda: found[0].weights_bytes)
    with pytest.raises(NoRoom, match=r"of which 90% may be used; .*, or --backend llamacpp"):
        kind.needs(model, settings)


@pytest.mark.parametrize(("gpu", "quantization"), [(True, "fp8"), (False, "fp8"), (True, "int8")])
def test_weights_of_one_byte_are_for_every_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpu: bool, quantization: Quantization
) -> None:
    """Guards perplexity, which is measured on a CPU; the words for people say it too."""
    monkeypatch.setattr(kind, "has_gpu", lambda: gpu)
    write_tiny_gguf(tmp_path / "tiny.gguf")
    settings = Settings(
        backend="torch", quantization=quantization, kv_tokens=512, batch_invariant="off"
    )
    assert kind.values(settings, tmp_path / "tiny.gguf")["quantization"] == quantization
    assert f"weights of layers in {quantization}" in (KIND.numbers(settings) or "")


def test_keys_and_values_in_fp8_take_a_byte_on_every_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Guards the size of memory, and other types, which a GPU has no kernel for."""
    monkeypatch.setattr(kind, "has_gpu", lambda: True)
    model = tmp_path / "tiny.gguf"
    write_tiny_gguf(model)

    def tokens(kv_cache_dtype: KvCacheDtype) -> int:
        settings = Settings(
            backend="torch", kv_cache_dtype=kv_cache_dtype, memory_limit=2**20, max_num_seqs=1
        )
        return int(kind.values(settings, model)["kv_tokens"])

    assert tokens("fp8") == 2 * tokens("bfloat16")
    with pytest.raises(ConfigError, match="or kv_cache_dtype is fp8"):
        tokens("float16")
