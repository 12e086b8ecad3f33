"""Writes the two files of a batch's results: `OutputFiles`. Any thread but the event loop's.

They are written under temporary names and wait for the disk. Then the store notes them, and they
get their final names. Until it knows them they are nobody's: the next start removes them.
"""

import uuid
from collections.abc import Sequence

from jitney.server.batches.content_file import ContentFile
from jitney.server.batches.database import disk_troubles
from jitney.server.batches.objects import unrun_line
from jitney.server.batches.store import JobStore
from jitney.server.batches.stored import BatchStatus, Purpose, StoredBatch, StoredFile, WrittenLine


class _Written:
    """One file on its way. It is there from its first line on."""

    def __init__(self, store: JobStore) -> None:
        self.id = f"file-{uuid.uuid4().hex}"
        self.content = ContentFile(store.partial_of(self.id))
        self._store = store

    def add(self, lines: Sequence[bytes]) -> None:
        if lines:
            self.content.write(b"".join(b"%b\n" % line for line in lines))

    def sync(self) -> None:
        self.content.close()
        if self.content.bytes:
            self._store.sync_partial(self.id)

    def name(self) -> None:
        if self.content.bytes:
            self._store.name_content(self.id)


class OutputFiles:
    """The output and the errors of one batch. Raises DiskTrouble; `discard` it then."""

    def __init__(self, store: JobStore, batch: StoredBatch) -> None:
        assert batch.outcome is not None, batch.id
        self._batch = batch
        self._outcome: BatchStatus = batch.outcome
        self._output, self._errors = _Written(store), _Written(store)

    def add(self, lines: Sequence[WrittenLine]) -> None:
        """Write the next lines, in order."""
        done: list[bytes] = []
        failed: list[bytes] = []
        for line in lines:
            if line.reply is None:
                failed.append(unrun_line(line.number, line.custom_id, self._outcome))
            else:
                (done if line.is_done else failed).append(line.reply)
        with disk_troubles():
            self._output.add(done)
            self._errors.add(failed)

    def sync(self) -> None:
        """Both are complete: wait for the disk."""
        with disk_troubles():
            self._output.sync()
            self._errors.sync()

    def name(self) -> None:
        """The store knows them: give both their final names."""
        self._output.name()
        self._errors.name()

    def records(self, now: int) -> tuple[StoredFile | None, StoredFile | None]:
        """What the store is to know of them; None for one without lines."""
        return (
            self._record(self._output, "output", now),
            self._record(self._errors, "error", now),
        )

    def discard(self) -> None:
        """Remove what was written."""
        self._output.content.discard()
        self._errors.content.discard()

    def _record(self, written: _Written, what: str, now: int) -> StoredFile | None:
        if not written.content.bytes:
            return None
        return StoredFile(
            id=written.id,
            owner=self._batch.owner,
            filename=f"{self._batch.id}_{what}.jsonl",
            purpose=Purpose.OUTPUT,
            bytes=written.content.bytes,
            sha256=written.content.sha256,
            created_at=now,
        )
