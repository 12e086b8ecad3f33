"""`Database`: one SQLite file that one process owns, and its transactions. The store's thread.

What was committed is on the disk: the log is written ahead (WAL), and each commit waits for the
disk (`synchronous=FULL`). A process that was killed leaves what it had committed, and nothing else.
The lock ends with its process, however that ends. Raises `DiskTrouble` where the disk is full or
fails: nothing has changed then, and the same call may succeed later.
"""

import errno
import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from jitney.errors import ConfigError
from jitney.jobs.schema import TABLES, UPGRADES, VERSION

NAME = "jobs.sqlite"
LOCK = "lock"

_TROUBLES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
_DISK_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE}
)
"""Failures of the disk, and not of what was asked. EFBIG is a limit on the size of files, as a
shell sets it."""

_UNUSABLE = {
    sqlite3.SQLITE_NOTADB: "is not a store of jobs",
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_READONLY: "cannot be written to",
    sqlite3.SQLITE_PERM: "cannot be written to",
}


class DiskTrouble(Exception):
    """The disk is full, or fails. Nothing has changed; the same may succeed later."""


class StoreTaken(ConfigError):
    """Another process owns the store."""


@contextmanager
def disk_troubles() -> Iterator[None]:
    """Turn an error of the disk inside into DiskTrouble; other errors pass."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in _TROUBLES:
            raise
        raise DiskTrouble(str(error)) from error
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise DiskTrouble(error.strerror or type(error).__name__) from error


class Database:
    """The open store. Made, used and closed on one thread."""

    def __init__(self, folder: Path) -> None:
        self._lock = _locked(folder)
        try:
            with disk_troubles():
                self._connection = _opened(folder / NAME)
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Close the file, and let others have it."""
        self._connection.close()
        self._lock.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All changes inside are on the disk at the end, or none is. Raises DiskTrouble."""
        connection = self._connection
        with disk_troubles():
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # A failure of the disk may have ended it already.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """For questions only. Raises DiskTrouble."""
        with disk_troubles():
            yield self._connection

    def used_bytes(self) -> int:
        """The bytes of the file that hold something."""
        with self.reading() as connection:
            pages, free, size = (
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
        used: int = (pages - free) * size
        return used

    def shrink(self) -> None:
        """Give back to the disk what holds nothing."""
        with self.reading() as connection:
            connection.execute("PRAGMA incremental_vacuum").fetchall()


def _locked(folder: Path) -> BinaryIO:
    file = (folder / LOCK).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise StoreTaken(
            f"Another process uses the jobs in {folder}; end it, or give another folder."
        ) from None
    return file


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.row_factory = sqlite3.Row
        # Before the first table: later it has no effect.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _bring_up(connection, path)
    except sqlite3.DatabaseError as error:
        connection.close()
        reason = _UNUSABLE.get(error.sqlite_errorcode & 0xFF)
        if reason is None:
            raise
        raise ConfigError(f"{path} {reason}; give another folder.") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _bring_up(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new store; refuse one that a newer version made."""
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found == VERSION:
        # A damaged file is found here, and not by the first caller.
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return
    script = TABLES if found == 0 else UPGRADES.get(found)
    if script is None:
        raise ConfigError(
            f"{path} was made by a newer version of jitney (form {found}, and this one knows "
            f"{VERSION}); use that version, or give another folder."
        )
    # One transaction: a process that is killed here leaves the store as it was.
    connection.executescript(f"BEGIN IMMEDIATE;{script}PRAGMA user_version = {VERSION};COMMIT;")
