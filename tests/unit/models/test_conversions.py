"""Converted models: made once, whole, and again when damaged."""

import errno
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from jitney.errors import ModelError
from jitney.models.conversions import RECORD_NAME, Conversion, converted
from jitney.models.files import SMALL_BYTES_MAX, locked
from tests.models_for_tests import TinyShape, write_tiny_gguf

SHAPE = TinyShape(layers=1, width=32, heads=2, heads_kv=1, inner=32)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    write_tiny_gguf(path, shape=SHAPE)
    return path


NAME, OTHER = "model.gguf", "graph.xml"


class Copier:
    """Stands for the native conversion: copies, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, source: Path, folder: Path) -> None:
        self.calls += 1
        shutil.copyfile(source, folder / NAME)
        (folder / OTHER).write_text("a graph")
        (folder / "scrap").write_text("not to be kept")


def convert(cache: Path, source: Path, make: Callable[[Path, Path], None]) -> Path:
    """The converted file."""
    conversion = Conversion(kind="copy", files=(NAME, OTHER), bytes_per_weight=4, make=make)
    return converted(cache, source, conversion) / NAME


def test_made_once(tmp_path: Path, source: Path) -> None:
    """A conversion at every start would cost seconds each time."""
    copier = Copier()
    first = convert(tmp_path / "cache", source, copier)
    second = convert(tmp_path / "cache", source, copier)
    assert first == second
    assert copier.calls == 1
    assert first.read_bytes() == source.read_bytes()
    assert {path.name for path in first.parent.iterdir()} == {NAME, OTHER, RECORD_NAME}
    assert not list(first.parent.parent.glob("*.partial"))


@pytest.mark.parametrize(
    "damage", ["shorter", "changed", "gone", "other gone", "no record", "bad", "long"]
)
def test_damage_is_made_again(tmp_path: Path, source: Path, damage: str) -> None:
    """A file that does not match its record must not be loaded."""
    copier = Copier()
    path = convert(tmp_path / "cache", source, copier)
    good = path.read_bytes()
    record = path.parent / RECORD_NAME
    match damage:
        case "shorter":
            path.write_bytes(good[:-1])
        case "changed":
            path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
            os.utime(path, ns=(1, 1))
        case "gone":
            path.unlink()
        case "other gone":
            (path.parent / OTHER).unlink()
        case "no record":
            record.unlink()
        case "long":
            record.write_bytes(record.read_bytes() + b" " * SMALL_BYTES_MAX)
        case _:
            record.write_text('{"source": 3}')
    assert convert(tmp_path / "cache", source, copier).read_bytes() == good
    assert copier.calls == 2


def test_changed_source_is_converted_again(tmp_path: Path, source: Path) -> None:
    """A model that was replaced under the same name must not be answered by the old one."""
    copier = Copier()
    convert(tmp_path / "cache", source, copier)
    write_tiny_gguf(source, seed=2, shape=SHAPE)
    os.utime(source, ns=(5, 5))
    path = convert(tmp_path / "cache", source, copier)
    assert path.read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ModelError("it failed."), "it failed"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "disk is full; make room"),
    ],
)
def test_half_done_leaves_a_sentence_and_no_file(
    tmp_path: Path, source: Path, error: Exception, sentence: str
) -> None:
    """Guards against half a model that is taken next time, and errors that say not what to do."""

    def fails(_: Path, folder: Path) -> None:
        (folder / NAME).write_bytes(b"GGUF half")
        raise error

    with pytest.raises(ModelError, match=sentence):
        convert(tmp_path / "cache", source, fails)
    assert not list((tmp_path / "cache").rglob("*.gguf"))
    assert not list((tmp_path / "cache").rglob("*.partial"))


def test_a_missing_result_is_a_sentence(tmp_path: Path, source: Path) -> None:
    """A converter that says it is done and wrote nothing must not be believed."""
    with pytest.raises(ModelError, match="could not be made"):
        convert(tmp_path / "cache", source, lambda given, folder: None)
    assert not list((tmp_path / "cache").rglob("*.copy"))


def test_a_cache_that_cannot_be_written_is_a_sentence(tmp_path: Path, source: Path) -> None:
    """A file where the folder should be, as root may write anywhere else."""
    cache = tmp_path / "cache"
    cache.write_text("not a folder")
    with pytest.raises(ModelError, match="could not be made"):
        convert(cache, source, Copier())


def test_bad_source_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """The converter is native code and must not see a file that is no GGUF."""
    copier = Copier()
    path = tmp_path / "model.gguf"
    path.write_text("text")
    with pytest.raises(ModelError, match="not a GGUF"):
        convert(tmp_path / "cache", path, copier)
    assert copier.calls == 0


def _convert_slowly(cache: Path, source: Path, log: Path, gate: Barrier) -> None:
    def copy(given: Path, folder: Path) -> None:
        with log.open("a") as file:
            file.write("made\n")
        content = given.read_bytes()
        with (folder / NAME).open("wb") as file:
            for start in range(0, len(content), 4096):
                file.write(content[start : start + 4096])
                file.flush()
        (folder / OTHER).write_text("a graph")

    gate.wait(30)
    path = convert(cache, source, copy)
    assert path.read_bytes() == source.read_bytes()


def test_two_processes_at_once_make_one_file(tmp_path: Path, source: Path) -> None:
    """Both start together: one converts, the other waits, both get the whole file."""
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(2)
    log = tmp_path / "log"
    arguments = (tmp_path / "cache", source, log, gate)
    processes = [context.Process(target=_convert_slowly, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert log.read_text() == "made\n"
    record = next((tmp_path / "cache").rglob(RECORD_NAME))
    assert json.loads(record.read_text())["source_stamp"]["size"] == source.stat().st_size


def test_a_lock_that_is_held_is_waited_for_within_a_bound(tmp_path: Path) -> None:
    """A process stuck with the lock must not hang every other one for ever."""
    path = tmp_path / "lock"
    with (
        locked(path),
        pytest.raises(ModelError, match="Another process"),
        locked(path, wait_s=0.2),
    ):
        pass
    with locked(path, wait_s=0.2):
        pass
