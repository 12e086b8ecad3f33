"""`JobStore`: files, batches and lines in one folder. The store's thread.

Why each line is in the output exactly once:

1. A line is one row. Its result is written by one statement that finds only a pending line
   (`LineTable.settle`), in a transaction that waits for the disk. So it has one result or none.
2. A process that is killed leaves what it had committed. A line that was running has no result,
   and is run again.
3. When no line is pending, or the rest will not be run, the batch takes no more results. Then the
   output is written from the rows, in order, under a temporary name, and waits for the disk.
4. One transaction notes the files of the output and the end of the batch. Killed before it, the
   files are removed at the next start and written again from the same rows. After it they get their
   final names; killed before that, the next start does it.

The folder has `jobs.sqlite`, `lock`, and `files` with the content of each file under its id.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from jitney.models.files import sync
from jitney.server.batches.allowance_table import AllowanceTable
from jitney.server.batches.batch_input import HeldInput
from jitney.server.batches.batch_table import BatchTable
from jitney.server.batches.database import MISTAKES, Database, DiskTrouble, disk_troubles
from jitney.server.batches.file_table import FileTable
from jitney.server.batches.line_table import LineTable
from jitney.server.batches.store_folder import PARTIAL, ContentFolder, prepare
from jitney.server.batches.stored import StoredBatch, StoredFile


class JobStore:
    """The open store of one folder. Another process gets `StoreTaken`.

    `held` are inputs that are read where they are, by the ids of their files.
    """

    def __init__(self, folder: Path, held: Mapping[str, HeldInput] | None = None) -> None:
        self.folder = folder
        self._held = held or {}
        self._content = ContentFolder(folder)
        with disk_troubles(passing=MISTAKES):
            prepare(folder)
            self._database = Database(folder)
            self.files = FileTable(self._database)
            self.batches = BatchTable(self._database)
            self.lines = LineTable(self._database)
            try:
                self.allowances = AllowanceTable(self._database)
                self._open_content()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close it. Everything is on the disk already."""
        self._content.close()
        self._database.close()

    def check_whole(self, batch: StoredBatch, read_bytes: int) -> None:
        """All of an input was read: see that nothing was cut off. Raises DiskTrouble."""
        file = self.files.find(batch.owner, batch.input_file_id)
        if file is not None and file.bytes != read_bytes:
            raise DiskTrouble(f"it has {read_bytes} bytes, and had {file.bytes}")

    def path_of(self, file_id: str) -> Path:
        """Where the content of a file is. Any thread."""
        return self._content.path / file_id

    def partial_of(self, file_id: str) -> Path:
        """Where the content of a file is before its row is noted. Any thread."""
        return self._content.path / (file_id + PARTIAL)

    def sync_partial(self, file_id: str) -> None:
        """Content is complete: wait until it is on the disk, under this name. Any thread."""
        with disk_troubles():
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

    def remove_file(self, owner: str, file_id: str) -> StoredFile | None:
        """Remove the owner's file; None if it is not there. Raises FileInUse and DiskTrouble.

        A process that ends in between leaves all of it, or content without a row, which the next
        start removes.
        """
        with disk_troubles():
            self._content.check_here()
            taken: list[Path] = []

            def take_name() -> None:
                taken.append(self.partial_of(file_id))
                with suppress(FileNotFoundError):
                    self.path_of(file_id).replace(taken[0])

            try:
                removed = self.files.remove(owner, file_id, take_name)
            except DiskTrouble:
                if taken:
                    self.name_content(file_id)
                raise
            # Of nobody else's file: its row was found.
            for path in taken:
                path.unlink(missing_ok=True)
        return removed

    @contextmanager
    def input_of(self, batch: StoredBatch) -> Iterator[BufferedReader]:
        """The input of a batch, to be read. A row has its content: raises DiskTrouble without."""
        held = self._held.get(batch.input_file_id)
        with disk_troubles():
            if held is not None:
                yield held.reader()
                held.check()
            else:
                with self.open_content(batch.input_file_id) as file:
                    yield file

    def open_content(self, file_id: str) -> BufferedReader:
        """The content of a file, to be read, whichever name it has now. Any thread.

        Raises OSError.
        """
        for path in (self.path_of(file_id), self.partial_of(file_id)):
            with suppress(FileNotFoundError):
                return path.open("rb")
        return self.path_of(file_id).open("rb")

    def used_bytes(self) -> int:
        """What the store takes of the disk."""
        return self.files.total_bytes() + self._database.used_bytes()

    def shrink(self) -> None:
        """Give back to the disk what ended batches took."""
        self._database.shrink()

    def _open_content(self) -> None:
        self._content.check_mark(self._database.mark, is_new=not self._database.is_marked)
        self._content.hold()
        self._content.settle(self.files.ids())
        if not self._database.is_marked:
            self._database.note_marked()
