"""From settings to a backend: what is refused before anything heavy is done."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf", reason="needs the gguf package")

from jitney.config import Settings
from jitney.errors import ConfigError, ModelError
from jitney.loading import load_backend, select_backend
from tests.models_for_tests import TinyShape, write_tiny_gguf


def refused(tmp_path: Path, **given: Any) -> str:
    """The sentence; nothing was written to the cache."""
    cache = tmp_path / "cache"
    with pytest.raises((ConfigError, ModelError)) as caught:
        load_backend(Settings(cache_dir=cache, **given))
    assert not cache.exists()
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


@pytest.mark.parametrize("backend", ["llamacpp", "fake"])
@pytest.mark.parametrize("given", [{"dtype": "float32"}, {"kv_cache_dtype": "uint8"}])
def test_kinds_of_numbers_are_refused_where_there_is_no_choice(
    tmp_path: Path, backend: str, given: dict[str, Any]
) -> None:
    """Guards against a setting that is taken and ignored."""
    told = refused(tmp_path, backend=backend, **given)
    assert told.startswith(f"{next(iter(given))} is given, and the {backend} backend")


@pytest.mark.parametrize("given", [{"gpu_layers": 3}, {"flash_attention": "off"}])
def test_settings_of_llamacpp_are_refused_by_openvino(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    """Guards against a setting that is taken and ignored."""
    assert next(iter(given)) in refused(tmp_path, backend="openvino", **given)


def test_bytes_are_refused_by_a_backend_that_has_none(tmp_path: Path) -> None:
    """Guards against a budget that is taken and ignored."""
    assert "kv_tokens, not memory_limit" in refused(tmp_path, backend="fake", memory_limit=2**20)


@pytest.mark.parametrize("backend", ["openvino", "llamacpp", "auto"])
def test_a_folder_that_is_no_model_is_a_sentence(tmp_path: Path, backend: str) -> None:
    """Guards against a traceback from a path that is a folder of something else."""
    model = tmp_path / "folder"
    model.mkdir()
    assert str(model) in refused(tmp_path, backend=backend, model=model)


def test_a_family_that_openvino_does_not_know_is_refused_with_a_way_out(tmp_path: Path) -> None:
    """Guards against minutes of conversion for a model that cannot be run."""
    model = tmp_path / "model.gguf"
    write_tiny_gguf(model, shape=TinyShape(layers=1, width=32, heads=2, architecture="gemma"))
    told = refused(tmp_path, backend="openvino", model=model)
    assert "its architecture is gemma" in told
    assert told.endswith("use the llama.cpp backend.")


def test_an_exported_folder_is_for_openvino(tmp_path: Path) -> None:
    """Guards against reading a folder as a GGUF."""
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (tmp_path / name).touch()
    assert select_backend(Settings(model=tmp_path)).name == "openvino"
