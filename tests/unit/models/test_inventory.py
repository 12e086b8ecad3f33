"""Tests of what jitney's own cache holds: listed, removed, pruned, and left alone while in use."""

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest

from jitney.backends.trials import trial
from jitney.models import embedded, files, inventory, notes
from jitney.models.conversions import Conversion, converted, lock_of
from jitney.models.inventory import StoredModel
from tests.models_for_tests import TinyShape, write_tiny_gguf

KINDS = ("copy",)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    write_tiny_gguf(path, shape=TinyShape(layers=1, width=32, heads=2, heads_kv=1, inner=32))
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def convert(cache: Path, source: Path) -> Path:
    def make(source: Path, folder: Path) -> None:
        shutil.copyfile(source, folder / "copy.gguf")

    conversion = Conversion(kind="copy", files=("copy.gguf",), bytes_per_weight=4, make=make)
    return converted(cache, source, conversion)


def only(cache: Path) -> StoredModel:
    [model] = inventory.stored_models(cache)
    return model


def test_a_conversion_says_how_its_source_is(cache: Path, source: Path) -> None:
    """Guards the list: what can go is seen in it."""
    folder = convert(cache, source)
    model = only(cache)
    assert (model.name, model.kind, model.state) == (folder.name, "converted", "ready")
    assert model.source == str(source)
    assert model.size > source.stat().st_size
    os.utime(source, ns=(1, 1))
    assert only(cache).state == "its source has changed"
    source.unlink()
    assert only(cache).state == "its source is gone"


def test_prune_keeps_what_is_of_use(cache: Path, source: Path) -> None:
    """Guards models, and whatever else lies in a folder that is shared with others."""
    folder = convert(cache, source)
    notes.note_use(cache, source)
    (cache / "foreign.lock").touch()
    (cache / "models").mkdir()
    (cache / "models" / "foreign.lock").touch()
    assert inventory.prune(cache, KINDS) == 0
    assert folder.exists()
    assert [about for _, about in notes.all_notes(cache)] == [source]
    assert (cache / "foreign.lock").exists()
    assert (cache / "models" / "foreign.lock").exists()
    # The lock of the conversion is of no use, and has no bytes.
    assert not lock_of(folder).exists()


def test_prune_takes_conversions_of_an_earlier_kind(cache: Path, source: Path) -> None:
    """Guards room on the disk: what an earlier jitney converted is read by nobody any more."""
    folder = convert(cache, source)
    assert inventory.prune(cache, ("another",)) >= 1
    assert not folder.exists()
    assert source.exists()


def test_prune_takes_what_is_of_none(cache: Path, source: Path) -> None:
    """Guards room on the disk: conversions without a source, leftovers, notes about nothing."""
    folder = convert(cache, source)
    notes.note_use(cache, source)
    left = cache / "converted" / "other-1.copy.partial"
    left.mkdir()
    (left / "weights").write_bytes(b"\0" * 1000)
    expected = files.bytes_under(folder) + 1000
    source.unlink()
    assert inventory.prune(cache, KINDS) >= expected
    assert not [path for path in cache.rglob("*") if path.is_file()]
    assert inventory.stored_models(cache) == []


def test_what_another_process_holds_is_left_alone(cache: Path, source: Path) -> None:
    """Guards a conversion that is being made right now."""
    folder = convert(cache, source)
    source.unlink()
    with lock_of(folder).open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert inventory.prune(cache, KINDS) == 0
        assert not inventory.remove(only(cache))
        assert folder.exists()
    assert inventory.remove(only(cache))
    assert not folder.exists()


def test_whoever_waits_for_a_lock_that_was_removed_takes_the_new_one(tmp_path: Path) -> None:
    """Guards against two who hold locks on different files of one name."""
    path = tmp_path / "a.lock"
    with path.open("ab") as old:
        fcntl.flock(old, fcntl.LOCK_EX)
        path.unlink()
        with files.locked(path, wait_s=5), files.locked_if_free(path) as is_held:
            assert not is_held
    with files.locked_if_free(path) as is_held:
        assert is_held
    with pytest.raises(FileNotFoundError), files.locked_if_free(tmp_path / "none" / "a.lock"):
        pass


def test_the_embedded_model_can_be_removed(cache: Path) -> None:
    """Guards room on the disk; its lock goes too."""
    path = embedded.path_in(cache)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"model")
    model = only(cache)
    assert (model.name, model.kind, model.size) == (embedded.NAME, "embedded", 5)
    assert inventory.remove(model)
    assert not list(path.parent.iterdir())


def test_memories_of_what_is_gone_are_forgotten(cache: Path, source: Path) -> None:
    """Guards against a folder that grows with every build of a library."""
    folder = cache / "probes"
    folder.mkdir(parents=True)
    good = {"model": str(source), "libraries": trial.builds(("numpy",))}
    kept = {
        "good": good,
        "other build": {**good, "libraries": [["numpy", "0.1", "digest"]]},
        "no model": {**good, "model": str(source) + "x"},
        "no word": {},
    }
    for name, about in kept.items():
        (folder / f"{name}.json").write_text(json.dumps({"extra_kernels": True, **about}))
    (folder / "damaged.json").write_text("{")
    assert trial.forget(cache) > 0
    assert [path.stem for path in folder.iterdir()] == ["good"]
