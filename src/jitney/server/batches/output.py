"""Writes the two files of a batch's results: `OutputFiles`. Any thread but the event loop's.

They are written under temporary names and wait for the disk. Then the store notes them, and they
get their final names. Until it knows them they are nobody's: the next start removes them.
"""

from collections.abc import Sequence

from jitney.server.batches.file_table import ContentFile
from jitney.server.batches.objects import unrun_line
from jitney.server.batches.rows import Purpose, StoredBatch, StoredFile, StoredLine
from jitney.server.batches.store import BatchStore


class OutputFiles:
    """The output and the errors of one batch. Raises DiskError; `discard` it then."""

    def __init__(self, store: BatchStore, batch: StoredBatch) -> None:
        self._batch = batch
        self._output, self._errors = ContentFile(store.files), ContentFile(store.files)

    def add(self, lines: Sequence[StoredLine]) -> None:
        """Write the next lines, in order."""
        outcome = self._batch.outcome
        assert outcome is not None, self._batch.id
        done: list[bytes] = []
        failed: list[bytes] = []
        for line in lines:
            reply = line.reply or unrun_line(line.number, line.custom_id, outcome)
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

    def _record(self, content: ContentFile, what: str, now: int) -> StoredFile | None:
        if not content.bytes:
            return None
        name = f"{self._batch.id}_{what}.jsonl"
        return content.record(self._batch.owner, name, Purpose.OUTPUT, now)
