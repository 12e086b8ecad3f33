"""Tests of a start: whose folder it is, who may look into it, and what stays of what it finds."""

import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from jitney.errors import ConfigError
from jitney.server.batches.database import NAME
from jitney.server.batches.store import BatchStore
from tests.unit.server.batches.store_for_tests import add_file

FILES = "files"
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def store_with(folder: Path, count: int) -> set[str]:
    """A closed store with so many files; their ids."""
    store = BatchStore(folder)
    ids = {add_file(store, b"content %d" % number).id for number in range(count)}
    store.close()
    return ids


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def ids_after_a_start(folder: Path) -> set[str]:
    store = BatchStore(folder)
    try:
        return store.file_ids()
    finally:
        store.close()


def test_a_start_touches_no_name_that_is_not_its_own(tmp_path: Path) -> None:
    """Guards strangers: what somebody put there stays, also a folder, and the store opens."""
    ids = store_with(tmp_path / "jobs", 2)
    files = tmp_path / "jobs" / FILES
    (files / "lost+found").mkdir()
    for name in ("thesis.txt", "download.partial", "file-notes", ".hidden"):
        (files / name).write_text("mine")
    before = names(files)
    assert ids_after_a_start(tmp_path / "jobs") == ids
    assert names(files) == before


def test_a_folder_that_is_somebody_elses_is_refused(tmp_path: Path) -> None:
    """Guards whoever gives the wrong folder: nothing is removed, added or locked away."""
    home = tmp_path / "home"
    (home / FILES).mkdir(parents=True)
    (home / FILES / "thesis.txt").write_text("mine")
    (home / FILES / f"file-{'0' * 32}").write_text("of another store")
    home.chmod(0o755)
    with pytest.raises(ConfigError, match=r"has something in it .*another folder"):
        BatchStore(home)
    assert names(home) == {FILES}
    assert names(home / FILES) == {"thesis.txt", f"file-{'0' * 32}"}
    assert stat.S_IMODE(home.stat().st_mode) == 0o755
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "list.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"list\.txt"):
        BatchStore(tmp_path / "notes")
    assert names(tmp_path / "notes") == {"list.txt"}


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_file_in_its_place_is_said(tmp_path: Path, name: str) -> None:
    """Guards whoever gives a file for a folder: not only that it exists."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made, because a file is in its place; move"):
        BatchStore(tmp_path / name)


def test_a_new_volume_is_a_good_folder(tmp_path: Path) -> None:
    """Guards the first start on a disk of its own, which has a folder in it already."""
    (tmp_path / "jobs" / FILES / "lost+found").mkdir(parents=True)
    (tmp_path / "jobs" / "lost+found").mkdir()
    assert ids_after_a_start(tmp_path / "jobs") == set()


def test_a_database_that_was_moved_away_is_missed(tmp_path: Path) -> None:
    """Guards all files of ended batches: a start without their database takes none of them."""
    ids = store_with(tmp_path / "jobs", 3)
    for path in tmp_path.glob(f"jobs/{NAME}*"):
        path.rename(tmp_path / path.name)
    with pytest.raises(ConfigError, match=r"there is no jobs\.sqlite"):
        BatchStore(tmp_path / "jobs")
    assert names(tmp_path / "jobs" / FILES) >= ids
    (tmp_path / NAME).rename(tmp_path / "jobs" / NAME)
    assert ids_after_a_start(tmp_path / "jobs") == ids


def test_an_older_database_puts_what_it_does_not_know_aside(tmp_path: Path) -> None:
    """Guards a backup that is played back: what came after it is not lost."""
    early = store_with(tmp_path / "jobs", 1)
    shutil.copy(tmp_path / "jobs" / NAME, tmp_path / "backup")
    late = store_with(tmp_path / "jobs", 2)
    shutil.copy(tmp_path / "backup", tmp_path / "jobs" / NAME)
    assert ids_after_a_start(tmp_path / "jobs") == early
    assert names(tmp_path / "jobs" / FILES / "aside") == late


def test_another_database_is_refused(tmp_path: Path) -> None:
    """Guards two stores whose parts were mixed up."""
    ids = store_with(tmp_path / "jobs", 2)
    store_with(tmp_path / "other", 0)
    shutil.copy(tmp_path / "other" / NAME, tmp_path / "jobs" / NAME)
    with pytest.raises(ConfigError, match="belongs to another"):
        BatchStore(tmp_path / "jobs")
    assert names(tmp_path / "jobs" / FILES) >= ids


@pytest.mark.parametrize("is_there", [True, False])
def test_a_volume_that_is_not_mounted_is_missed(tmp_path: Path, *, is_there: bool) -> None:
    """Guards everything against one start without its disk: later all of it is known again."""
    ids = store_with(tmp_path / "jobs", 5)
    files = tmp_path / "jobs" / FILES
    files.rename(tmp_path / "volume")
    if is_there:
        files.mkdir()
    with pytest.raises(ConfigError, match="mount its volume"):
        BatchStore(tmp_path / "jobs")
    if is_there:
        files.rmdir()
    (tmp_path / "volume").rename(files)
    assert ids_after_a_start(tmp_path / "jobs") == ids
    assert names(files) >= ids


def test_rows_that_lost_their_content_stay(tmp_path: Path) -> None:
    """Guards files that come back: one is missed and told, many are a reason to stop."""
    ids = sorted(store_with(tmp_path / "jobs", 4))
    files = tmp_path / "jobs" / FILES
    (files / ids[0]).rename(tmp_path / ids[0])
    assert ids_after_a_start(tmp_path / "jobs") == set(ids)
    (files / ids[1]).rename(tmp_path / ids[1])
    with pytest.raises(ConfigError, match="2 of 4 files are gone"):
        BatchStore(tmp_path / "jobs")
    for each in ids[:2]:
        (tmp_path / each).rename(files / each)
    assert ids_after_a_start(tmp_path / "jobs") == set(ids)


def test_a_start_ends_what_a_killed_process_began(tmp_path: Path) -> None:
    """Guards the disk and the rows: content without a row was never complete and goes; content
    whose row is noted gets its name."""
    first, second = sorted(store_with(tmp_path / "jobs", 2))
    files = tmp_path / "jobs" / FILES
    (files / first).rename(files / f"{first}.partial")
    (files / f"file-{'a' * 32}.partial").write_bytes(b"half")
    (files / f"{'b' * 32}.partial").write_bytes(b"half, by an older version")
    assert ids_after_a_start(tmp_path / "jobs") == {first, second}
    assert names(files) == {first, second, "store"}


@pytest.mark.parametrize("is_old", [True, False])
def test_the_store_is_for_its_user_only(tmp_path: Path, *, is_old: bool) -> None:
    """Guards prompts against other users: every folder and file, the log of SQLite too, also those
    of a store that was made open."""
    folder = tmp_path / "jobs"
    mask = os.umask(0o022)
    try:
        if is_old:
            store_with(folder, 1)
            for path in (folder, *folder.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
        store = BatchStore(folder)
        add_file(store, b"more")
        found = [folder, *folder.rglob("*")]
        assert folder / f"{NAME}-wal" in found
        content = {path for path in found if path.parent == folder / FILES}
        # Content is behind two folders that nobody else may enter.
        opened = [path for path in found if path not in content and path.stat().st_mode & 0o077]
        store.close()
    finally:
        os.umask(mask)
    assert opened == []


def test_a_store_among_other_things_closes_only_its_own(tmp_path: Path) -> None:
    """Guards a folder that others use too, in which an earlier version put its store."""
    store_with(tmp_path / "shared", 1)
    (tmp_path / "shared" / "for-all.txt").write_text("for all")
    (tmp_path / "shared").chmod(0o755)
    (tmp_path / "shared" / NAME).chmod(0o644)
    assert ids_after_a_start(tmp_path / "shared")
    modes = {name: (tmp_path / "shared" / name).stat().st_mode & 0o777 for name in (NAME, FILES)}
    assert modes == {NAME: 0o600, FILES: 0o700}
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o755


@as_root
def test_another_user_neither_reads_nor_locks_the_store(tmp_path: Path) -> None:
    """Guards a shared machine: whoever can open the lock can keep the server from starting."""
    for path in (tmp_path, *tmp_path.parents[:-1]):
        if path.stat().st_uid == os.geteuid() and path.is_relative_to("/tmp"):
            path.chmod(path.stat().st_mode | 0o011)
    store_with(tmp_path / "jobs", 1)

    def look() -> str:
        found = []
        for name in (NAME, "lock", FILES):
            try:
                descriptor = os.open(tmp_path / "jobs" / name, os.O_RDONLY)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.append("opened")
            except OSError as error:
                found.append(error.strerror or "")
        return ",".join(found)

    assert answer_as(NOBODY, look) == ",".join(["Permission denied"] * 3)


def answer_as(user: int, ask: Callable[[], str]) -> str:
    """What this returns in a process of another user."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        # An error must not go up from here: it would come to a second pytest.
        try:
            os.setuid(user)
            said = ask()
        except BaseException as error:
            said = repr(error)
        os.write(write, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    try:
        return os.read(read, 1000).decode()
    finally:
        os.close(read)
        os.close(write)


@as_root
def test_what_another_user_laid_into_the_folder_is_refused(tmp_path: Path) -> None:
    """Guards root, which may use a volume of somebody else, but not a store that was planted."""
    for name in (NAME, "lock"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).symlink_to("/dev/null")
        os.chown(folder / name, NOBODY, NOBODY, follow_symlinks=False)
        with pytest.raises(ConfigError, match="belongs to another user"):
            BatchStore(folder)


@as_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    """Guards a folder that somebody laid out in a public place: its owner could change it all."""
    trap = tmp_path / "jobs"
    trap.mkdir(mode=0o777)
    trap.chmod(0o777)
    os.chown(trap, NOBODY, NOBODY)
    for path in (tmp_path, *tmp_path.parents[:-1]):
        if path.is_relative_to("/tmp"):
            path.chmod(path.stat().st_mode | 0o011)
        elif not path.stat().st_mode & 0o001:
            pytest.skip(f"other users do not come into {path}")

    def take() -> str:
        try:
            BatchStore(trap)
            return "taken"
        except ConfigError as error:
            return str(error)

    assert "belongs to another user" in answer_as(NOBODY - 1, take)
