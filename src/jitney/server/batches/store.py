"""`BatchStore`: files, batches and lines in one folder, and `StoreThread`, the one that uses it.

Why each line is in the output exactly once:

1. A line is one row. Its result is written by one statement that finds only a pending line
   (`BatchTable.settle`), in a transaction that waits for the disk. So it has one result or none.
2. A process that is killed leaves what it had committed. A line that was running has no result,
   and is run again.
3. When no line is pending, or the rest will not be run, the batch takes no more results. Then the
   output is written from the rows, in order, under a temporary name, and waits for the disk.
4. One transaction notes the files of the output and the end of the batch. Killed before it, the
   files are removed at the next start and written again from the same rows. After it they get their
   final names; killed before that, the next start does it.

The folder has `jobs.sqlite`, `lock`, and `files` with the content of each file under its id.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple, TypeVar

from jitney.server.batches import limits
from jitney.server.batches.batch_input import HeldInput
from jitney.server.batches.batch_table import BatchTable
from jitney.server.batches.database import MISTAKES, Database, DiskError, disk_errors
from jitney.server.batches.rows import LIVE_STATES, StoredBatch, StoredFile, file_of
from jitney.server.batches.store_folder import ContentFolder, prepare
from jitney.server.error_object import Refusal

T = TypeVar("T")

_log = logging.getLogger("jitney.server.batches")


class FileUse(NamedTuple):
    """How many files one owner has stored, their bytes, and those of the whole store."""

    file_count: int
    file_bytes: int
    bytes_of_all: int


class BatchStore:
    """The open store of one folder. Another process gets `StoreTaken`. One thread.

    A file belongs to its owner: for anybody else it is not there. Its content is complete and on
    the disk before its row is noted, and is removed after its row has gone. `inputs` are those that
    are read where they are, by the ids of their files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.content = ContentFolder(folder)
        self.inputs: dict[str, HeldInput] = {}
        with disk_errors(passing=MISTAKES):
            prepare(folder)
            self.database = Database(folder)
            try:
                self.batches = BatchTable(self.database)
                self._open_content()
            except BaseException:
                self.close()
                raise

    def _open_content(self) -> None:
        meta = dict(map(tuple, self.database.rows("SELECT key, value FROM meta")))
        is_new = "is_marked" not in meta
        self.content.open(meta["mark"], self.file_ids(), is_new=is_new)
        if is_new:
            with self.database.transaction():
                self.database.insert("meta", {"key": "is_marked", "value": "1"})

    def close(self) -> None:
        """Close it. Everything is on the disk already."""
        self.content.close()
        self.database.close()

    def used_bytes(self) -> int:
        """What the store takes of the disk."""
        files = self.database.value("SELECT coalesce(sum(bytes), 0) FROM files")
        return int(files) + self.database.used_bytes()

    def shrink(self) -> None:
        """Give back to the disk what ended batches took."""
        self.database.rows("PRAGMA incremental_vacuum")

    def use_of(self, owner: str) -> FileUse:
        """What is stored, of one owner and of all."""
        query = "SELECT count(*), coalesce(sum(bytes), 0) FROM files WHERE owner = ?"
        ((count, size),) = self.database.rows(query, owner)
        return FileUse(count, size, self.used_bytes())

    def file_ids(self) -> set[str]:
        """The ids of all files."""
        return {row["id"] for row in self.database.rows("SELECT id FROM files")}

    def add_file(self, file: StoredFile) -> None:
        """Note a file whose content is complete and on the disk."""
        with self.database.transaction():
            self.database.insert("files", asdict(file))

    def find_file(self, owner: str, file_id: str) -> StoredFile | None:
        """The owner's file with this id."""
        row = self.database.find("files", owner, file_id)
        return None if row is None else file_of(row)

    def list_files(
        self, owner: str, purpose: str | None, after: str | None, count: int, order: str
    ) -> Sequence[StoredFile] | None:
        """The owner's files in this order (asc or desc) behind this one, at most so many; None if
        that one is not there."""
        equal = {"owner": owner} | ({} if purpose is None else {"purpose": purpose})
        rows = self.database.page("files", equal, after, count, order.upper())
        return None if rows is None else [file_of(row) for row in rows]

    def remove_file(self, owner: str, file_id: str) -> StoredFile | None:
        """Remove the owner's file; None if it is not there. Raises Refusal and DiskError.

        A process that ends in between leaves all of it, or content without a row, which the next
        start removes.
        """
        with disk_errors():
            self.content.check_here()
            removed = self._forget(owner, file_id)
            if removed is not None:
                self.content.partial_of(file_id).unlink(missing_ok=True)
        return removed

    def _forget(self, owner: str, file_id: str) -> StoredFile | None:
        """Take the final name from the content, and remove the row. Both, or neither."""
        file = None
        try:
            with self.database.transaction():
                file = self.find_file(owner, file_id)
                if file is None:
                    return None
                query = f"SELECT 1 FROM batches WHERE input_file_id = ? AND status {LIVE_STATES}"
                if self.database.row(query, file_id) is not None:
                    message = (
                        "A batch that has not ended reads this file; cancel it first, or wait."
                    )
                    raise Refusal("file_in_use", message)
                with suppress(FileNotFoundError):
                    self.content.path_of(file_id).replace(self.content.partial_of(file_id))
                self.database.execute("DELETE FROM files WHERE id = ?", file_id)
        except DiskError:
            # Of nobody else's file: its row was found.
            if file is not None:
                self.content.name_content(file_id)
            raise
        return file

    def check_whole(self, batch: StoredBatch, read_bytes: int) -> None:
        """All of an input was read: see that nothing was cut off. Raises DiskError."""
        file = self.find_file(batch.owner, batch.input_file_id)
        if file is not None and file.bytes != read_bytes:
            raise DiskError(f"it has {read_bytes} bytes, and had {file.bytes}")

    @contextmanager
    def input_of(self, batch: StoredBatch) -> Iterator[BufferedReader]:
        """The input of a batch, to be read. A row has its content: raises DiskError without."""
        held = self.inputs.get(batch.input_file_id)
        with disk_errors():
            if held is not None:
                yield held.reader()
                held.check()
            else:
                with self.content.open_content(batch.input_file_id) as file:
                    yield file


class StoreThread:
    """A store and its thread. Event loop; `open` comes first.

    SQLite waits for the disk, and the event loop must not. All calls are done in order.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store: BatchStore | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jitney-batches")

    @property
    def is_open(self) -> bool:
        """Whether calls are taken."""
        return self._store is not None

    @property
    def store(self) -> BatchStore:
        """The store, for paths. Its tables belong to the thread."""
        assert self._store is not None, "The store is open"
        return self._store

    def open(self) -> None:
        """Open the store, and wait for it. Any thread. Raises ConfigError and DiskError."""
        if self._store is None:
            self._store = self._thread.submit(BatchStore, self.folder).result()

    async def call(self, use: Callable[[BatchStore], T]) -> T:
        """What `use` returns for the store. Raises DiskError."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, use, self.store)

    def close(self) -> None:
        """Close the store after all calls. Any thread; no event loop is needed."""
        if self._store is not None:
            self._thread.submit(self._store.close).result()
            self._store = None
        self._thread.shutdown()


async def until_disk_works(do: Callable[[], Awaitable[T]], message: str) -> T:
    """Do this, again and again until the disk takes it; a wait is said once."""
    is_logged = False
    while True:
        try:
            return await do()
        except DiskError as error:
            if not is_logged:
                _log.warning("%s: %s", message, error)
            is_logged = True
            await asyncio.sleep(limits.TROUBLE_S)
