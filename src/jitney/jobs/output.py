"""Writes the two files of a batch's results: `OutputFiles`. Any thread but the event loop's.

They are written under temporary names, wait for the disk, and get their final names when both are
complete. Until the store knows them they are nobody's: the next start removes them.
"""

import hashlib
import uuid
from collections.abc import Sequence

from jitney.jobs.database import disk_troubles
from jitney.jobs.objects import unrun_line
from jitney.jobs.store import JobStore
from jitney.jobs.stored import BatchStatus, Purpose, StoredBatch, StoredFile, WrittenLine
from jitney.models.files import publish


class _Written:
    """One file on its way. It is there from its first line on."""

    def __init__(self, store: JobStore) -> None:
        self.id = f"file-{uuid.uuid4().hex}"
        self.partial = store.new_path()
        self.path = store.path_of(self.id)
        self.bytes = 0
        self.digest = hashlib.sha256()

    def add(self, lines: Sequence[bytes]) -> None:
        if lines:
            content = b"".join(b"%b\n" % line for line in lines)
            with self.partial.open("ab") as file:
                file.write(content)
            self.bytes += len(content)
            self.digest.update(content)

    def publish(self) -> None:
        if self.bytes:
            publish(self.partial, self.path)

    def discard(self) -> None:
        for path in (self.partial, self.path):
            path.unlink(missing_ok=True)


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

    def publish(self) -> None:
        """Give both their final names."""
        with disk_troubles():
            self._output.publish()
            self._errors.publish()

    def records(self, now: int) -> tuple[StoredFile | None, StoredFile | None]:
        """What the store is to know of them; None for one without lines."""
        return (
            self._record(self._output, "output", now),
            self._record(self._errors, "error", now),
        )

    def discard(self) -> None:
        """Remove what was written."""
        self._output.discard()
        self._errors.discard()

    def _record(self, written: _Written, what: str, now: int) -> StoredFile | None:
        if not written.bytes:
            return None
        return StoredFile(
            id=written.id,
            owner=self._batch.owner,
            filename=f"{self._batch.id}_{what}.jsonl",
            purpose=Purpose.OUTPUT,
            bytes=written.bytes,
            sha256=written.digest.hexdigest(),
            created_at=now,
        )
