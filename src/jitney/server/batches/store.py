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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

from jitney.server.batches.batch_input import HeldInput
from jitney.server.batches.batch_table import BatchTable
from jitney.server.batches.database import MISTAKES, Database, DiskError, disk_errors
from jitney.server.batches.file_table import FileTable
from jitney.server.batches.rows import StoredBatch
from jitney.server.batches.store_folder import ContentFolder, prepare

T = TypeVar("T")


class BatchStore:
    """The open store of one folder. Another process gets `StoreTaken`. One thread.

    `held` are inputs that are read where they are, by the ids of their files.
    """

    def __init__(self, folder: Path, held: Mapping[str, HeldInput] | None = None) -> None:
        self.folder = folder
        self._held = held or {}
        self._content = ContentFolder(folder)
        with disk_errors(passing=MISTAKES):
            prepare(folder)
            database = self._database = Database(folder)
            try:
                self.files = FileTable(database, self._content)
                self.batches = BatchTable(database)
                self._content.check_mark(database.mark, is_new=not database.is_marked)
                self._content.hold()
                self._content.settle(self.files.ids())
                if not database.is_marked:
                    database.note_marked()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close it. Everything is on the disk already."""
        self._content.close()
        self._database.close()

    def check_whole(self, batch: StoredBatch, read_bytes: int) -> None:
        """All of an input was read: see that nothing was cut off. Raises DiskError."""
        file = self.files.find(batch.owner, batch.input_file_id)
        if file is not None and file.bytes != read_bytes:
            raise DiskError(f"it has {read_bytes} bytes, and had {file.bytes}")

    @contextmanager
    def input_of(self, batch: StoredBatch) -> Iterator[BufferedReader]:
        """The input of a batch, to be read. A row has its content: raises DiskError without."""
        held = self._held.get(batch.input_file_id)
        with disk_errors():
            if held is not None:
                yield held.reader()
                held.check()
            else:
                with self.files.open_content(batch.input_file_id) as file:
                    yield file

    def used_bytes(self) -> int:
        """What the store takes of the disk."""
        return self.files.total_bytes() + self._database.used_bytes()

    def shrink(self) -> None:
        """Give back to the disk what ended batches took."""
        self._database.shrink()


class StoreThread:
    """A store and its thread. Event loop; `open` comes first.

    SQLite waits for the disk, and the event loop must not. All calls are done in order.
    """

    def __init__(self, folder: Path, held: Mapping[str, HeldInput] | None = None) -> None:
        self.folder = folder
        self._held = held
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
            self._store = self._thread.submit(BatchStore, self.folder, self._held).result()

    async def call(self, use: Callable[[BatchStore], T]) -> T:
        """What `use` returns for the store. Raises DiskError."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, use, self.store)

    def close(self) -> None:
        """Close the store after all calls. Any thread; no event loop is needed."""
        if self._store is not None:
            self._thread.submit(self._store.close).result()
            self._store = None
        self._thread.shutdown()
