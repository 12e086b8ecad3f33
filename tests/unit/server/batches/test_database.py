"""Tests of `batches.database`: which version made a store, and a full disk.

That one process owns it is proven by tests/e2e/batches/test_restarts.py.
"""

import errno
import sqlite3
from pathlib import Path

import pytest

from jitney.errors import ConfigError
from jitney.server.batches import database as database_module
from jitney.server.batches.database import NAME, VERSION, Database, DiskError, disk_errors


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """Guards work of a newer jitney: an older one must not touch it."""
    Database(tmp_path).close()
    with sqlite3.connect(tmp_path / NAME) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(ConfigError, match="newer version"):
        Database(tmp_path)


@pytest.mark.parametrize(("kept_count", "words"), [(0, "not a store"), (100, "damaged")])
def test_what_is_no_store_is_refused(tmp_path: Path, kept_count: int, words: str) -> None:
    """Guards other people's files, and the start after a bad disk: no traceback, and nothing is
    overwritten."""
    Database(tmp_path).close()
    content = (tmp_path / NAME).read_bytes()
    content = content[:kept_count] + b"x" * (len(content) - kept_count)
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        Database(tmp_path)
    assert (tmp_path / NAME).read_bytes() == content


def test_commits_wait_for_the_disk(tmp_path: Path) -> None:
    """Guards the promise after a loss of power: the two settings that it rests on."""
    database = Database(tmp_path)
    assert database.value("PRAGMA journal_mode") == "wal"
    assert database.value("PRAGMA synchronous") == 2
    database.close()


def test_a_full_disk_changes_nothing_and_can_be_tried_again(tmp_path: Path) -> None:
    """Guards a transaction that finds no room: none of it is there, and later all of it."""
    database = Database(tmp_path)
    row = "INSERT INTO lines VALUES (1, ?, 0, 0, 'x', 1, ?)"
    database.rows(f"PRAGMA max_page_count = {database.value('PRAGMA page_count') + 2}")
    rows = [(number, b"x" * 4000) for number in range(10)]
    with pytest.raises(DiskError, match="full"), database.transaction():
        database.execute_many(row, rows)
    assert database.value("SELECT count(*) FROM lines") == 0
    database.rows("PRAGMA max_page_count = 100000")
    with database.transaction():
        database.execute_many(row, rows)
    assert database.value("SELECT count(*) FROM lines") == 10
    database.close()


@pytest.mark.parametrize("name", ["ENOSPC", "EIO", "ENOENT", "EACCES", "ESTALE", "ENOTCONN"])
def test_errors_of_the_disk_are_told_apart(name: str) -> None:
    """Guards the pause of the runner: it waits for the disk, and for nothing else."""
    with pytest.raises(DiskError) as found, disk_errors():
        raise OSError(getattr(errno, name), "it does not work")
    assert found.value.is_full == (name in ("ENOSPC", "EIO"))
    with pytest.raises(ValueError, match="ours"), disk_errors():
        raise ValueError("a fault of ours")
    with pytest.raises(sqlite3.OperationalError), disk_errors():
        sqlite3.connect(":memory:").execute("SELECT nothing")


def test_another_program_that_writes_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards callers against a tool that holds the database: that is no fault of theirs."""
    monkeypatch.setattr(database_module, "BUSY_S", 0.01)
    database = Database(tmp_path)
    other = sqlite3.connect(tmp_path / NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DiskError, match="locked") as found, database.transaction():
        pass
    assert not found.value.is_full
    other.execute("ROLLBACK")
    with database.transaction():
        database.execute("DELETE FROM lines")
    other.close()
    database.close()


@pytest.mark.parametrize("version", [0, 1, VERSION])
def test_a_database_of_something_else_is_refused(tmp_path: Path, version: int) -> None:
    """Guards other people's databases: no table of ours is added to one."""
    with sqlite3.connect(tmp_path / NAME) as connection:
        connection.execute("CREATE TABLE theirs (x)")
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    before = (tmp_path / NAME).read_bytes()
    with pytest.raises(ConfigError, match="not a store of jobs"):
        Database(tmp_path)
    assert (tmp_path / NAME).read_bytes()[100:] == before[100:]
