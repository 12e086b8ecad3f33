"""`Database`: one SQLite file that one process owns, and its transactions. The store's thread.

What was committed is on the disk: the log is written ahead (WAL), and each commit waits for the
disk (`synchronous=FULL`). A process that was killed leaves what it had committed, and nothing else.
The lock ends with its process, however that ends. Raises `DiskTrouble` where the disk is full,
fails or is away: nothing has changed then, and the same call may succeed later. The files are for
their user only.
"""

import errno
import fcntl
import os
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from jitney.errors import ConfigError
from jitney.server.batches.schema import TABLES, UPGRADES, VERSION

NAME = "jobs.sqlite"
LOCK = "lock"

BUSY_S = 1.0
"""How long a call waits for another program that writes to the database."""

_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_TROUBLES = _FULL | {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
}
_FULL_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE}
)
"""EFBIG is a limit on the size of files, as a shell sets it."""

MISTAKES = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP}
)
"""Of a folder that was given: waiting does not help. Later, the same errors may pass."""

_TABLES = {"files", "batches", "lines"}
_UNUSABLE = {
    sqlite3.SQLITE_NOTADB: "is not a store of jobs",
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_READONLY: "cannot be written to",
    sqlite3.SQLITE_PERM: "cannot be written to",
}


class DiskTrouble(Exception):
    """The disk is full, fails or is away. Nothing has changed; the same may succeed later."""

    is_full = False
    """Whether room may be what is missing."""


class NotBegun(DiskTrouble):
    """A transaction could not begin, so it has certainly changed nothing."""


class StoreTaken(ConfigError):
    """Another process owns the store."""


@contextmanager
def disk_troubles(*, passing: Collection[int] = ()) -> Iterator[None]:
    """Turn a failure of the disk inside into DiskTrouble; other errors pass.

    What is read and written inside is ours, so no failure of the system is the caller's: a file
    that is not there is on a disk that is away. `passing` has errors that are somebody's mistake.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        code = error.sqlite_errorcode & 0xFF
        if code not in _TROUBLES:
            raise
        trouble = DiskTrouble(str(error))
        trouble.is_full = code in _FULL
        raise trouble from error
    except OSError as error:
        if error.errno in passing:
            raise
        trouble = DiskTrouble(error.strerror or type(error).__name__)
        trouble.is_full = error.errno in _FULL_ERRORS
        raise trouble from error


@contextmanager
def _not_begun() -> Iterator[None]:
    try:
        yield
    except DiskTrouble as trouble:
        unbegun = NotBegun(*trouble.args)
        unbegun.is_full = trouble.is_full
        raise unbegun from trouble


class Database:
    """The open store. Made, used and closed on one thread."""

    def __init__(self, folder: Path) -> None:
        self._lock = _locked(folder)
        try:
            self._connection = _opened(folder / NAME)
        except BaseException:
            self._lock.close()
            raise

    @property
    def mark(self) -> str:
        """What tells this database from all others, in the folder of content too."""
        mark = self._meta("mark")
        assert mark is not None
        return mark

    @property
    def is_marked(self) -> bool:
        """Whether the folder of content has got the mark."""
        return self._meta("is_marked") is not None

    def note_marked(self) -> None:
        """The folder of content has the mark."""
        with self.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO meta VALUES ('is_marked', '1')")

    def close(self) -> None:
        """Close the file, and let others have it."""
        self._connection.close()
        self._lock.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All changes inside are on the disk at the end, or none is. Raises DiskTrouble."""
        connection = self._connection
        with _not_begun(), disk_troubles():
            connection.execute("BEGIN IMMEDIATE")
        with disk_troubles():
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

    def _meta(self, key: str) -> str | None:
        with self.reading() as connection:
            row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row["value"])


def _private(path: Path) -> int:
    """A descriptor of a file; a new one is for its user only."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)


def _locked(folder: Path) -> BinaryIO:
    file = os.fdopen(_private(folder / LOCK), "ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise StoreTaken(
            f"Another process uses the jobs in {folder}; end it, or give another folder."
        ) from None
    return file


def _opened(path: Path) -> sqlite3.Connection:
    # SQLite gives its log and its shared memory the mode that this file has.
    os.close(_private(path))
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
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
    # A damaged file is found here, and not by the first caller.
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    is_ours = tables >= _TABLES if found else not tables
    if not is_ours:
        raise ConfigError(f"{path} is not a store of jobs; give another folder.")
    if found == VERSION:
        return
    script = TABLES if found == 0 else UPGRADES.get(found)
    if script is None:
        raise ConfigError(
            f"{path} was made by a newer version of jitney (form {found}, and this one knows "
            f"{VERSION}); use that version, or give another folder."
        )
    # One transaction: a process that is killed here leaves the store as it was.
    connection.executescript(f"BEGIN IMMEDIATE;{script}PRAGMA user_version = {VERSION};COMMIT;")
