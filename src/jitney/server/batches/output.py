"""Writes the two files of a batch's results: `OutputFiles`. Any thread but the event loop's.

They are written under temporary names and wait for the disk. Then the store notes them, and they
get their final names. Until it knows them they are nobody's: the next start removes them.
"""

import uuid
from collections.abc import Sequence

from jitney.server.batches.database import disk_errors
from jitney.server.batches.file_table import ContentFile
from jitney.server.batches.objects import unrun_line
from jitney.server.batches.rows import BatchStatus, Purpose, StoredBatch, StoredFile, StoredLine
from jitney.server.batches.store import BatchStore


class OutputFiles:
    """The output and the errors of one batch. Raises DiskError; `discard` it then."""

    def __init__(self, store: BatchStore, batch: StoredBatch) -> None:
        assert batch.outcome is not None, batch.id
        self._batch = batch
        self._outcome: BatchStatus = batch.outcome
        self._files = store.files
        self._ids = (f"file-{uuid.uuid4().hex}", f"file-{uuid.uuid4().hex}")
        # Each is there from its first line on.
        self._contents = [ContentFile(store.files.partial_of(each)) for each in self._ids]

    def add(self, lines: Sequence[StoredLine]) -> None:
        """Write the next lines, in order."""
        done: list[bytes] = []
        failed: list[bytes] = []
        for line in lines:
            if line.reply is None:
                failed.append(unrun_line(line.number, line.custom_id, self._outcome))
            else:
                (done if line.is_done else failed).append(line.reply)
        with disk_errors():
            for content, added in zip(self._contents, (done, failed), strict=True):
                if added:
                    content.write(b"".join(b"%b\n" % line for line in added))

    def sync(self) -> None:
        """Both are complete: wait for the disk."""
        with disk_errors():
            for content in self._contents:
                content.close()
            for file_id in self._written_ids():
                self._files.sync_partial(file_id)

    def name(self) -> None:
        """The store knows them: give both their final names."""
        for file_id in self._written_ids():
            self._files.name_content(file_id)

    def records(self, now: int) -> tuple[StoredFile | None, StoredFile | None]:
        """What the store is to know of them; None for one without lines."""
        return self._record(0, "output", now), self._record(1, "error", now)

    def discard(self) -> None:
        """Remove what was written."""
        for content in self._contents:
            content.discard()

    def _written_ids(self) -> list[str]:
        both = zip(self._ids, self._contents, strict=True)
        return [file_id for file_id, content in both if content.bytes]

    def _record(self, place: int, what: str, now: int) -> StoredFile | None:
        content = self._contents[place]
        if not content.bytes:
            return None
        return StoredFile(
            id=self._ids[place],
            owner=self._batch.owner,
            filename=f"{self._batch.id}_{what}.jsonl",
            purpose=Purpose.OUTPUT,
            bytes=content.bytes,
            sha256=content.sha256,
            created_at=now,
        )
