"""Notes about models: when one was used, and what was checked."""

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jitney.models import notes
from jitney.models.files import SMALL_BYTES_MAX


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"model")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_last_use_is_noted(cache: Path, source: Path) -> None:
    """Guards file systems that do not say when a file was read."""
    os.utime(source, (1000, 1000))
    assert notes.last_use(cache, source, [source]) == datetime.fromtimestamp(1000, tz=UTC)
    notes.note_use(cache, source)
    noted = notes.last_use(cache, source, [source])
    assert noted is not None
    assert noted.year > 2000
    ((file, about),) = notes.all_notes(cache)
    assert about == source
    file.write_bytes(file.read_bytes() + b" " * SMALL_BYTES_MAX)
    assert list(notes.all_notes(cache)) == [], "it is none of ours"


def test_a_digest_is_read_once(cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the time of a start: a large model is not read whole each time."""
    digest = hashlib.sha256(b"model").hexdigest()
    assert not notes.has_digest(cache, source, "0" * 64)
    assert notes.has_digest(cache, source, digest)
    monkeypatch.setattr(notes, "sha256_of", lambda path: "")
    assert notes.has_digest(cache, source, digest)
    source.write_bytes(b"other")
    assert not notes.has_digest(cache, source, digest)
