"""Where prefixes are stored: what changes the digests, and what is said of a wrong folder."""

from pathlib import Path
from typing import Any

import pytest

from jitney.backends.kind import Values
from jitney.backends.kinds import kind_of
from jitney.config import Settings
from jitney.errors import ConfigError
from jitney.loading.stored import place_of
from jitney.models.conversions import RECORD_NAME

LLAMA: Values = {"slots": 4, "kv_tokens": 100, "slot_tokens_max": 50, "threads": 2}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "model").write_bytes(b"weights")
    return Settings(prefix_cache_dir=tmp_path / "prefixes", prefix_cache_limit=2**20)


def digests(settings: Settings, **changed: Any) -> tuple[str, str]:
    assert settings.prefix_cache_dir is not None
    path = settings.prefix_cache_dir.parent / "model"
    place = place_of(kind_of("llamacpp"), settings, {**LLAMA, "model": str(path), **changed})
    assert place is not None
    return place.model, place.shape


def test_no_folder_is_no_place() -> None:
    assert place_of(kind_of("fake"), Settings(), {}) is None


@pytest.mark.parametrize(
    "changed", [{"slots": 9}, {"kv_tokens": 7}, {"slot_tokens_max": 99}], ids=lambda each: str(each)
)
def test_how_much_memory_there_is_does_not_matter(
    settings: Settings, changed: dict[str, Any]
) -> None:
    """Guards warm starts: free memory is never the same."""
    assert digests(settings, **changed) == digests(settings)


@pytest.mark.parametrize("changed", [{"slot_tokens_max": 0}, {"threads": 1}, {"kv_type": "q8_0"}])
def test_how_it_is_computed_matters(settings: Settings, changed: dict[str, Any]) -> None:
    """Guards equal texts."""
    (model, shape), (other_model, other_shape) = digests(settings), digests(settings, **changed)
    assert model == other_model
    assert shape != other_shape


def test_other_weights_have_another_digest(settings: Settings, tmp_path: Path) -> None:
    """Guards texts: a file of the same name and size may be another model."""
    before = digests(settings)
    (tmp_path / "model").write_bytes(b"Weights")
    assert digests(settings)[0] != before[0]
    assert digests(settings)[1] == before[1]


def test_a_folder_is_read_whole(settings: Settings, tmp_path: Path) -> None:
    """The same for a model of several files."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_bytes(b"1")
    before = digests(settings, model=str(folder))
    (folder / "b").write_bytes(b"2")
    assert digests(settings, model=str(folder)) != before


def test_every_part_counts(settings: Settings, tmp_path: Path) -> None:
    """The same for a GGUF in parts: the settings name the first one only."""
    first, second = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    first.write_bytes(b"1")
    second.write_bytes(b"2")
    before = digests(settings, model=str(first))
    second.write_bytes(b"3")
    assert digests(settings, model=str(first)) != before


def test_a_conversion_that_is_made_again_is_the_same(settings: Settings, tmp_path: Path) -> None:
    """Guards warm starts elsewhere: its record says when and from where it was made."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_bytes(b"1")
    before = digests(settings, model=str(folder))
    (folder / RECORD_NAME).write_bytes(b"{}")
    assert digests(settings, model=str(folder)) == before


def test_a_backend_that_cannot_store_says_so(settings: Settings) -> None:
    """Guards against a folder that stays empty."""
    with pytest.raises(ConfigError, match=r"torch backend cannot store.*openvino or llamacpp\."):
        place_of(kind_of("torch"), settings, {})


def test_a_file_in_the_folders_place_is_said(tmp_path: Path) -> None:
    """Guards the start."""
    (tmp_path / "file").write_text("here")
    with pytest.raises(ConfigError, match=r"prefix_cache_dir: .* a file is in its place"):
        place_of(kind_of("fake"), Settings(prefix_cache_dir=tmp_path / "file"), {})
