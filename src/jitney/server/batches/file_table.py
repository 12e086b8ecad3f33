"""Files: their rows, and their content on the disk. `FileTable`: the store's thread.

A file belongs to its owner: for anybody else it is not there. Content is complete and on the disk
before its row is noted, under a temporary name until then. It is removed after its row has gone. So
a row always has its content. `ContentFile` writes content, on any thread but the event loop's.

Tests: tests/unit/server/batches/test_store.py and tests/e2e/batches/test_uploads.py.
"""

import hashlib
import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from io import BufferedReader, FileIO
from pathlib import Path
from sqlite3 import Connection

from jitney.models.files import sync
from jitney.server.batches.database import Database, DiskError, disk_errors, insert
from jitney.server.batches.rows import LIVE_STATES, Purpose, StoredFile, file_of
from jitney.server.batches.store_folder import PARTIAL, ContentFolder
from jitney.server.error_object import Refusal

_OF_OWNER = "SELECT * FROM files WHERE owner = ? AND id = ?"


class ContentFile:
    """The content of a new file, written once: `write`, `sync`, and after its row is noted `name`.

    It is there from its first write on, for its user only, and is held open: in a folder that was
    moved away meanwhile, a second file of the same name would lack what the first has. Raises
    DiskError.
    """

    def __init__(self, files: "FileTable") -> None:
        self.id = f"file-{uuid.uuid4().hex}"
        self._files = files
        self._path = files.partial_of(self.id)
        self._file: FileIO | None = None
        self._digest = hashlib.sha256()
        self.bytes = 0

    def write(self, content: bytes) -> None:
        """Write all of it."""
        with disk_errors():
            if self._file is None:
                descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                # Without a buffer: what a full disk refused must not be tried again by a close.
                self._file = FileIO(descriptor, "wb")
            rest = memoryview(content)
            while rest:
                rest = rest[self._file.write(rest) :]
        self._digest.update(content)
        self.bytes += len(content)

    def sync(self) -> None:
        """It is complete: wait until it is on the disk."""
        if self._file is not None:
            with disk_errors():
                self._file.close()
            self._files.sync_partial(self.id)

    def name(self) -> None:
        """The row is noted: give it its final name."""
        if self._file is not None:
            self._files.name_content(self.id)

    def discard(self) -> None:
        """Remove it. What is away now is removed at the next start."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        with suppress(OSError):
            self._path.unlink()

    def record(self, owner: str, filename: str, purpose: Purpose, now: int) -> StoredFile:
        """The row of the file."""
        return StoredFile(
            id=self.id,
            owner=owner,
            filename=filename,
            purpose=purpose,
            bytes=self.bytes,
            sha256=self._digest.hexdigest(),
            created_at=now,
        )


class FileTable:
    """All files."""

    def __init__(self, database: Database, content: ContentFolder) -> None:
        self._database = database
        self._content = content

    def path_of(self, file_id: str) -> Path:
        """Where the content of a file is. Any thread."""
        return self._content.path / file_id

    def partial_of(self, file_id: str) -> Path:
        """Where the content of a file is before its row is noted. Any thread."""
        return self._content.path / (file_id + PARTIAL)

    def sync_partial(self, file_id: str) -> None:
        """Content is complete: wait until it is on the disk, under this name. Any thread."""
        with disk_errors():
            sync(self.partial_of(file_id))
            sync(self._content.path)
            self._content.check_here()

    def name_content(self, file_id: str) -> None:
        """The row is noted: give its content the final name. Any thread.

        Without waiting for the disk, and without effect where that fails: the content is found
        under both names, and the next start does it.
        """
        with suppress(OSError):
            self.partial_of(file_id).replace(self.path_of(file_id))

    def open_content(self, file_id: str) -> BufferedReader:
        """The content of a file, to be read, whichever name it has now. Any thread.

        Raises OSError.
        """
        for path in (self.path_of(file_id), self.partial_of(file_id)):
            with suppress(FileNotFoundError):
                return path.open("rb")
        return self.path_of(file_id).open("rb")

    def ids(self) -> set[str]:
        """The ids of all files."""
        return {row["id"] for row in self._database.rows("SELECT id FROM files")}

    def total_bytes(self) -> int:
        """The bytes of all files."""
        return int(self._database.value("SELECT coalesce(sum(bytes), 0) FROM files"))

    def use(self, owner: str) -> tuple[int, int]:
        """How many files one owner has, and their bytes."""
        query = "SELECT count(*), coalesce(sum(bytes), 0) FROM files WHERE owner = ?"
        ((count, size),) = self._database.rows(query, owner)
        return count, size

    def add(self, file: StoredFile) -> None:
        """Note a file whose content is complete and on the disk."""
        with self._database.transaction() as connection:
            insert_file(connection, file)

    def find(self, owner: str, file_id: str) -> StoredFile | None:
        """The owner's file with this id."""
        row = self._database.row(_OF_OWNER, owner, file_id)
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
        if after is not None:
            row = self._database.row(_OF_OWNER, owner, after)
            if row is None:
                return None
            start = row["serial"]
        order, beyond = ("ASC", ">") if is_oldest_first else ("DESC", "<")
        rows = self._database.rows(
            "SELECT * FROM files WHERE owner = ? AND (? IS NULL OR purpose = ?) "
            f"AND (? IS NULL OR serial {beyond} ?) ORDER BY serial {order} LIMIT ?",
            *(owner, purpose, purpose, start, start, count),
        )
        return [file_of(row) for row in rows]

    def remove(self, owner: str, file_id: str) -> StoredFile | None:
        """Remove the owner's file; None if it is not there. Raises Refusal and DiskError.

        A process that ends in between leaves all of it, or content without a row, which the next
        start removes.
        """
        with disk_errors():
            self._content.check_here()
            removed = self._forget(owner, file_id)
            if removed is not None:
                self.partial_of(file_id).unlink(missing_ok=True)
        return removed

    def _forget(self, owner: str, file_id: str) -> StoredFile | None:
        """Take the final name from the content, and remove the row. Both, or neither."""
        is_found = False
        try:
            with self._database.transaction() as connection:
                row = connection.execute(_OF_OWNER, (owner, file_id)).fetchone()
                if row is None:
                    return None
                query = f"SELECT 1 FROM batches WHERE input_file_id = ? AND status {LIVE_STATES}"
                if connection.execute(query, (file_id,)).fetchone() is not None:
                    message = (
                        "A batch that has not ended reads this file; cancel it first, or wait."
                    )
                    raise Refusal("file_in_use", message)
                is_found = True
                with suppress(FileNotFoundError):
                    self.path_of(file_id).replace(self.partial_of(file_id))
                connection.execute("DELETE FROM files WHERE id = ?", (file_id,))
        except DiskError:
            # Of nobody else's file: its row was found.
            if is_found:
                self.name_content(file_id)
            raise
        return file_of(row)


def insert_file(connection: Connection, file: StoredFile) -> None:
    """Add the row of a file, within a transaction."""
    assert file.purpose in set(Purpose), file.purpose
    insert(connection, "files", asdict(file))
