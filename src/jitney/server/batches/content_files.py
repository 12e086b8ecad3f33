"""Writes the content of files: `ContentFile`, and `OutputFiles` for the results of a batch.

Any thread but the event loop's. Content is written under a temporary name and waits for the disk.
Then the store notes its row, and it gets its final name. Until the store knows it, it is nobody's:
the next start removes it. So a row always has its content.
"""

import hashlib
import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from threading import Lock

from jitney.models.files import sync
from jitney.server.batches.database import disk_errors
from jitney.server.batches.message_lines import MESSAGES, unrun_message
from jitney.server.batches.rows import (
    BatchStatus,
    Purpose,
    StoredBatch,
    StoredFile,
    StoredLine,
    unrun_line,
)
from jitney.server.batches.store_folder import ContentFolder


class ContentFile:
    """The content of a new file, written once: `write`, `sync`, and after its row is noted `name`.

    It is there from its first write on, for its user only, and is held open: in a folder that was
    moved away meanwhile, a second file of the same name would lack what the first has. A task that
    is cancelled may discard it before the thread that writes for it begins: then nothing is
    written. Raises DiskError.
    """

    def __init__(self, folder: ContentFolder) -> None:
        self.id = f"file-{uuid.uuid4().hex}"
        self._folder = folder
        self._path = folder.partial_of(self.id)
        self._file: FileIO | None = None
        self._lock = Lock()
        self._is_discarded = False
        self._digest = hashlib.sha256()
        self.bytes = 0

    def write(self, content: bytes) -> None:
        """Write all of it."""
        with self._lock, disk_errors():
            if self._is_discarded:
                return
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
        with self._lock, disk_errors():
            if self._file is not None and not self._is_discarded:
                self._file.close()
                sync(self._path)
                sync(self._folder.path)
                self._folder.check_here()

    def name(self) -> None:
        """The row is noted: give it its final name."""
        if self._file is not None:
            self._folder.name_content(self.id)

    def discard(self) -> None:
        """Remove it. What is away now is removed at the next start."""
        with self._lock:
            self._is_discarded = True
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


class OutputFiles:
    """The output and the errors of one batch. Raises DiskError; `discard` it then."""

    def __init__(self, folder: ContentFolder, batch: StoredBatch) -> None:
        self._batch = batch
        self._output, self._errors = ContentFile(folder), ContentFile(folder)

    def add(self, lines: Sequence[StoredLine]) -> None:
        """Write the next lines, in order."""
        outcome = self._batch.outcome
        assert outcome is not None, self._batch.id
        done: list[bytes] = []
        failed: list[bytes] = []
        for line in lines:
            reply = line.reply or self._unrun(line, outcome)
            (done if line.is_done else failed).append(reply)
        for content, added in ((self._output, done), (self._errors, failed)):
            if added:
                content.write(b"".join(b"%b\n" % line for line in added))

    def sync(self) -> None:
        """Both are complete: wait for the disk."""
        self._output.sync()
        self._errors.sync()

    def name(self) -> None:
        """The store knows them: give both their final names."""
        self._output.name()
        self._errors.name()

    def records(self, now: int) -> tuple[StoredFile | None, StoredFile | None]:
        """What the store is to know of them; None for one without lines."""
        return self._record(self._output, "output", now), self._record(self._errors, "error", now)

    def discard(self) -> None:
        """Remove what was written."""
        self._output.discard()
        self._errors.discard()

    def _unrun(self, line: StoredLine, outcome: BatchStatus) -> bytes:
        if self._batch.endpoint == MESSAGES:
            return unrun_message(line.custom_id, outcome)
        return unrun_line(line.number, line.custom_id, outcome)

    def _record(self, content: ContentFile, what: str, now: int) -> StoredFile | None:
        if not content.bytes:
            return None
        name = f"{self._batch.id}_{what}.jsonl"
        return content.record(self._batch.owner, name, Purpose.OUTPUT, now)
