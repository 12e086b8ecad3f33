"""The rows of files: `FileTable`. The store's thread.

A file belongs to its owner: for anybody else it is not there. Content is on the disk before its row
is noted, and is removed after that has gone, so a row always has its content.

Tests: tests/unit/server/batches/test_store.py.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jitney.server.batches.database import Database
from jitney.server.batches.stored import LIVE, Purpose, StoredFile, file_of


@dataclass(frozen=True, slots=True)
class FileUse:
    """How much one owner has stored, and everybody together."""

    count: int
    bytes: int
    bytes_of_all: int


class FileInUse(Exception):
    """A batch that has not ended reads this file."""


class FileTable:
    """All files."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def ids(self) -> set[str]:
        """The ids of all files."""
        with self._database.reading() as connection:
            return {row["id"] for row in connection.execute("SELECT id FROM files")}

    def total_bytes(self) -> int:
        """The bytes of all files."""
        return self._sum("SELECT coalesce(sum(bytes), 0) FROM files")

    def use(self, owner: str) -> FileUse:
        """What is stored."""
        count = self._sum("SELECT count(*) FROM files WHERE owner = ?", owner)
        size = self._sum("SELECT coalesce(sum(bytes), 0) FROM files WHERE owner = ?", owner)
        return FileUse(count, size, self.total_bytes())

    def add(self, file: StoredFile) -> None:
        """Note a file whose content is complete and on the disk."""
        with self._database.transaction() as connection:
            insert_file(connection, file)

    def find(self, owner: str, file_id: str) -> StoredFile | None:
        """The owner's file with this id."""
        with self._database.reading() as connection:
            row = _row_of(connection, owner, file_id)
        return None if row is None else file_of(row)

    def listed(
        self,
        owner: str,
        purpose: str | None,
        after: str | None,
        count: int,
        *,
        is_oldest_first: bool,
    ) -> Sequence[StoredFile] | None:
        """The owner's files behind this one, at most so many; None if that one is not there."""
        start = None
        with self._database.reading() as connection:
            if after is not None:
                row = _row_of(connection, owner, after)
                if row is None:
                    return None
                start = row["serial"]
            order, beyond = ("ASC", ">") if is_oldest_first else ("DESC", "<")
            rows = connection.execute(
                "SELECT * FROM files WHERE owner = ? AND (? IS NULL OR purpose = ?) "
                f"AND (? IS NULL OR serial {beyond} ?) ORDER BY serial {order} LIMIT ?",
                (owner, purpose, purpose, start, start, count),
            ).fetchall()
        return [file_of(row) for row in rows]

    def remove(
        self, owner: str, file_id: str, before: Callable[[], None] = lambda: None
    ) -> StoredFile | None:
        """Forget the owner's file, after `before`. None if it is not there.

        Its content is to be removed then. Raises FileInUse.
        """
        with self._database.transaction() as connection:
            row = _row_of(connection, owner, file_id)
            if row is None:
                return None
            states = ", ".join(f"'{status}'" for status in LIVE)
            used = connection.execute(
                f"SELECT 1 FROM batches WHERE input_file_id = ? AND status IN ({states})",
                (file_id,),
            ).fetchone()
            if used is not None:
                raise FileInUse
            before()
            connection.execute("DELETE FROM files WHERE id = ?", (file_id,))
        return file_of(row)

    def _sum(self, question: str, *values: str) -> int:
        with self._database.reading() as connection:
            found: int = connection.execute(question, values).fetchone()[0]
        return found


def insert_file(connection: sqlite3.Connection, file: StoredFile) -> None:
    """Add the row of a file, within a transaction."""
    assert file.purpose in set(Purpose), file.purpose
    connection.execute(
        "INSERT INTO files (id, owner, filename, purpose, bytes, sha256, created_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            *(file.id, file.owner, file.filename, file.purpose),
            *(file.bytes, file.sha256, file.created_at),
        ),
    )


def _row_of(connection: sqlite3.Connection, owner: str, file_id: str) -> sqlite3.Row | None:
    found: sqlite3.Row | None = connection.execute(
        "SELECT * FROM files WHERE owner = ? AND id = ?", (owner, file_id)
    ).fetchone()
    return found
