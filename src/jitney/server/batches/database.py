"""`Database`: one SQLite file that one process owns, and its transactions. The store's thread.

What was committed is on the disk: the log is written ahead (WAL), and each commit waits for the
disk (`synchronous=FULL`). A process that was killed leaves what it had committed, and nothing else.
The lock ends with its process, however that ends. Raises `DiskError` where the disk is full,
fails or is away: nothing has changed then, and the same call may succeed later. The files are for
their user only.

A line is one row. Its state and its reply change in one statement: `reply` is there exactly when
the line is no longer pending. The row of a line is unique, so a line has at most one result,
whatever was killed when.
"""

import errno
import fcntl
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from jitney.errors import ConfigError

NAME = "jobs.sqlite"
LOCK = "lock"

VERSION = 3
"""Stored as `user_version`. A store of a newer version is refused; an older one is brought up."""

PENDING, DONE, FAILED = 0, 1, 2
"""States of a line."""

BUSY_S = 1.0
"""How long a call waits for another program that writes to the database."""

_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_PASSING = _FULL | {
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY),
    *(sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY),
}
_FULL_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE}
)
"""EFBIG is a limit on the size of files, as a shell sets it."""

MISTAKES = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP}
)
"""Of a folder that was given: waiting does not help. Later, the same errors may pass."""

_UNUSABLE = {
    sqlite3.SQLITE_NOTADB: "is not a store of jobs",
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_READONLY: "cannot be written to",
    sqlite3.SQLITE_PERM: "cannot be written to",
}

_ADDED = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO meta VALUES ('mark', lower(hex(randomblob(16))));
CREATE TABLE allowances (owner TEXT PRIMARY KEY, used REAL NOT NULL);
"""

_RESPONSES = """
CREATE TABLE responses (
    serial INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
    status TEXT NOT NULL, is_background INTEGER NOT NULL, is_started INTEGER NOT NULL DEFAULT 0,
    model TEXT NOT NULL, previous_id TEXT,
    asked TEXT NOT NULL, input TEXT NOT NULL, task TEXT, usage TEXT, error TEXT,
    bytes INTEGER NOT NULL, created_at INTEGER NOT NULL, completed_at INTEGER
);
CREATE INDEX responses_of_owner ON responses (owner, serial, bytes);
CREATE INDEX responses_by_age ON responses (created_at);
CREATE INDEX responses_live ON responses (serial) WHERE status IN ('queued', 'in_progress');

CREATE TABLE response_pieces (
    response INTEGER NOT NULL, number INTEGER NOT NULL,
    deltas TEXT NOT NULL, text TEXT, tokens TEXT,
    PRIMARY KEY (response, number)
);
"""

_UPGRADES = {
    1: f"{_ADDED}ALTER TABLE batches ADD COLUMN passed_s REAL NOT NULL DEFAULT 0;{_RESPONSES}",
    2: _RESPONSES,
}
"""From each older version to this one."""

_TABLES = f"""{_ADDED}
CREATE TABLE files (
    serial INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
    filename TEXT NOT NULL, purpose TEXT NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL,
    created_at INTEGER NOT NULL
);
CREATE INDEX files_of_owner ON files (owner, serial);

CREATE TABLE batches (
    serial INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
    endpoint TEXT, model TEXT NOT NULL,
    input_file_id TEXT NOT NULL, input_sha256 TEXT NOT NULL,
    metadata TEXT, idempotency_key TEXT,
    status TEXT NOT NULL, outcome TEXT, errors TEXT,
    read_bytes INTEGER NOT NULL DEFAULT 0, read_lines INTEGER NOT NULL DEFAULT 0,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
    prompt_tokens INTEGER NOT NULL DEFAULT 0, cached_tokens INTEGER NOT NULL DEFAULT 0,
    completion_tokens INTEGER NOT NULL DEFAULT 0,
    output_file_id TEXT, error_file_id TEXT, is_swept INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL, expires_at INTEGER, passed_s REAL NOT NULL DEFAULT 0,
    in_progress_at INTEGER, finalizing_at INTEGER, completed_at INTEGER, failed_at INTEGER,
    expired_at INTEGER, cancelling_at INTEGER, cancelled_at INTEGER,
    UNIQUE (owner, idempotency_key)
);
CREATE INDEX batches_of_owner ON batches (owner, serial);
CREATE INDEX batches_live ON batches (status)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');
CREATE INDEX batches_unswept ON batches (serial) WHERE is_swept = 0;

CREATE TABLE lines (
    batch INTEGER NOT NULL, number INTEGER NOT NULL,
    start INTEGER NOT NULL, length INTEGER NOT NULL, custom_id TEXT,
    state INTEGER NOT NULL CHECK (state IN (0, 1, 2)), reply BLOB,
    PRIMARY KEY (batch, number), CHECK ((state = 0) = (reply IS NULL))
);
CREATE INDEX lines_pending ON lines (batch, number) WHERE state = 0;
CREATE INDEX lines_by_custom_id ON lines (batch, custom_id);
{_RESPONSES}"""


class DiskError(Exception):
    """The disk is full, fails or is away. Nothing has changed; the same may succeed later."""

    def __init__(self, message: str, *, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full
        """Whether room may be what is missing."""


class NotBegun(DiskError):
    """A transaction could not begin, so it has certainly changed nothing."""


class StoreTaken(ConfigError):
    """Another process owns the store."""


@contextmanager
def disk_errors(*, passing: Collection[int] = ()) -> Iterator[None]:
    """Turn a failure of the disk inside into DiskError; other errors pass.

    What is read and written inside is ours, so no failure of the system is the caller's: a file
    that is not there is on a disk that is away. `passing` has errors that are somebody's mistake.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        code = error.sqlite_errorcode & 0xFF
        if code not in _PASSING:
            raise
        raise DiskError(str(error), is_full=code in _FULL) from error
    except OSError as error:
        if error.errno in passing:
            raise
        message = error.strerror or type(error).__name__
        if error.filename:
            message += f": {error.filename}"
        raise DiskError(message, is_full=error.errno in _FULL_ERRORS) from error


class Database:
    """The open store. Made, used and closed on one thread."""

    def __init__(self, folder: Path) -> None:
        self._lock = _locked(folder)
        try:
            self._connection = _opened(folder / NAME)
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Close the file, and let others have it."""
        self._connection.close()
        self._lock.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes inside are on the disk at the end, or none is. Raises DiskError."""
        connection = self._connection
        try:
            self.execute("BEGIN IMMEDIATE")
        except DiskError as error:
            raise NotBegun(str(error), is_full=error.is_full) from error
        with disk_errors():
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                # A failure of the disk may have ended it already.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def execute(self, query: str, *values: object) -> sqlite3.Cursor:
        """One statement. What it changes belongs into a transaction. Raises DiskError."""
        with disk_errors():
            return self._connection.execute(query, values)

    def execute_many(self, query: str, rows: Iterable[Sequence[object]]) -> None:
        """One statement for each of these rows, within a transaction. Raises DiskError."""
        with disk_errors():
            self._connection.executemany(query, rows)

    def insert(self, table: str, values: Mapping[str, object]) -> int:
        """Add a row with these values, within a transaction; its serial."""
        marks = ", ".join("?" * len(values))
        query = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})"
        serial = self.execute(query, *values.values()).lastrowid
        assert serial is not None, table
        return serial

    def each(self, query: str, *values: object) -> Iterator[sqlite3.Row]:
        """The rows of a query, one by one. Raises DiskError."""
        with disk_errors():
            yield from self._connection.execute(query, values)

    def rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        """All rows of a query. Raises DiskError."""
        return list(self.each(query, *values))

    def row(self, query: str, *values: object) -> sqlite3.Row | None:
        """The first row of a query; None without one. Raises DiskError."""
        return next(iter(self.rows(query, *values)), None)

    def value(self, query: str, *values: object) -> Any:  # Any: a value of SQLite
        """The one value of a query. Raises DiskError."""
        return self.rows(query, *values)[0][0]

    def find(self, table: str, owner: str, id_: str) -> sqlite3.Row | None:
        """The owner's row with this id. Raises DiskError."""
        return self.row(f"SELECT * FROM {table} WHERE owner = ? AND id = ?", owner, id_)

    def page(
        self, table: str, equal: Mapping[str, str], after: str | None, count: int, order: str
    ) -> list[sqlite3.Row] | None:
        """Rows with these values, `owner` among them, at most so many.

        They come in this order (ASC or DESC) behind the row with the id `after`; None if that row
        is not there.
        """
        where, values = [f"{name} = ?" for name in equal], [*equal.values()]
        if after is not None:
            start = self.find(table, equal["owner"], after)
            if start is None:
                return None
            where.append(f"serial {'>' if order == 'ASC' else '<'} ?")
            values.append(start["serial"])
        query = f"SELECT * FROM {table} WHERE {' AND '.join(where)} ORDER BY serial {order} LIMIT ?"
        return self.rows(query, *values, count)

    def used_bytes(self) -> int:
        """The bytes of the file that hold something."""
        pages, free, size = (
            self.value(f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)


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
    except BaseException as error:
        connection.close()
        code = error.sqlite_errorcode & 0xFF if isinstance(error, sqlite3.DatabaseError) else -1
        if code not in _UNUSABLE:
            raise
        raise ConfigError(f"{path} {_UNUSABLE[code]}; give another folder.") from None
    return connection


def _bring_up(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new store; refuse one that a newer version made."""
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    # A damaged file is found here, and not by the first caller.
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    is_ours = tables >= {"files", "batches", "lines"} if found else not tables
    if not is_ours:
        raise ConfigError(f"{path} is not a store of jobs; give another folder.")
    if found == VERSION:
        return
    script = _TABLES if found == 0 else _UPGRADES.get(found)
    if script is None:
        raise ConfigError(
            f"{path} was made by a newer version of jitney (form {found}, and this one knows "
            f"{VERSION}); use that version, or give another folder."
        )
    # One transaction: a process that is killed here leaves the store as it was.
    connection.executescript(f"BEGIN IMMEDIATE;{script}PRAGMA user_version = {VERSION};COMMIT;")
