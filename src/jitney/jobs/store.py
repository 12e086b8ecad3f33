"""`JobStore`: files, batches and lines in one folder. The store's thread.

Why each line is in the output exactly once:

1. A line is one row. Its result is written by one statement that finds only a pending line
   (`LineTable.settle`), in a transaction that waits for the disk. So it has one result or none.
2. A process that is killed leaves what it had committed. A line that was running has no result,
   and is run again.
3. When no line is pending, or the rest will not be run, the batch takes no more results. Then the
   output is written from the rows, in order, under a temporary name, and given its final name.
4. One transaction notes the files of the output and the end of the batch. Killed before it, the
   files are removed at the next start and written again from the same rows.

The folder has `jobs.sqlite`, `lock`, and `files` with the content of each file under its id.
"""

import logging
import uuid
from pathlib import Path

from jitney.jobs.allowance_table import AllowanceTable
from jitney.jobs.batch_table import BatchTable
from jitney.jobs.database import Database, disk_troubles
from jitney.jobs.file_table import FileTable
from jitney.jobs.line_table import LineTable
from jitney.jobs.stored import StoredBatch

FILES = "files"
PARTIAL = ".partial"
"""The ending of a file that is not complete."""

_log = logging.getLogger("jitney.jobs")


class JobStore:
    """The open store of one folder. Another process gets `StoreTaken`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with disk_troubles():
            (folder / FILES).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._database = Database(folder)
        self.files = FileTable(self._database)
        self.batches = BatchTable(self._database)
        self.lines = LineTable(self._database)
        self.allowances = AllowanceTable(self._database)
        self._remove_strangers()

    def close(self) -> None:
        """Close it. Everything is on the disk already."""
        self._database.close()

    def path_of(self, file_id: str) -> Path:
        """Where the content of a file is. Any thread."""
        return self.folder / FILES / file_id

    def new_path(self) -> Path:
        """A place for content that is not complete yet. Any thread."""
        return self.folder / FILES / (uuid.uuid4().hex + PARTIAL)

    def input_of(self, batch: StoredBatch) -> Path:
        """The input of a batch."""
        return self.path_of(batch.input_file_id)

    def used_bytes(self) -> int:
        """What the store takes of the disk."""
        return self.files.total_bytes() + self._database.used_bytes()

    def shrink(self) -> None:
        """Give back to the disk what ended batches took."""
        self._database.shrink()

    def _remove_strangers(self) -> None:
        """Remove what a process that ended left behind: content without a row, and the reverse."""
        known = self.files.ids()
        there = {path.name for path in (self.folder / FILES).iterdir()}
        for name in sorted(there - known):
            _log.info("Removing %s, which was not complete", name)
            self.path_of(name).unlink(missing_ok=True)
        if lost := known - there:
            _log.warning("%d files are gone from the store, and are forgotten", len(lost))
            self.files.forget(lost)
