"""The rows of lines: `LineTable`. The store's thread.

`settle` is the only statement that gives a pending line its result, and it finds only pending
lines of batches that still take results. See `batches/store.py` for what follows from that.

Tests: tests/unit/server/batches/test_store.py and test_kills.py.
"""

from collections.abc import Mapping, Sequence

from jitney.server.batches import limits
from jitney.server.batches.allowance_table import note_used
from jitney.server.batches.database import Database
from jitney.server.batches.schema import DONE, FAILED, PENDING
from jitney.server.batches.stored import (
    LIVE,
    BatchStatus,
    CheckedLine,
    LineResult,
    PendingLine,
    StoredBatch,
    WrittenLine,
)

_LIVE_STATES = ", ".join(f"'{status}'" for status in LIVE)


class LineTable:
    """The lines of all batches that have not ended, and of ended ones until they are swept."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def has_custom_id(self, batch: int, custom_id: str) -> bool:
        """Whether a line of the batch has this id already."""
        with self._database.reading() as connection:
            found = connection.execute(
                "SELECT 1 FROM lines WHERE batch = ? AND custom_id = ? LIMIT 1", (batch, custom_id)
            ).fetchone()
        return found is not None

    def add(
        self, batch: StoredBatch, checked: Sequence[CheckedLine], read_bytes: int, read_lines: int
    ) -> None:
        """Note checked lines, and how much of the input has been checked, in one transaction.

        No effect where another position of the input was reached, or the batch was cancelled.
        """
        rows = [
            (
                *(batch.serial, line.number, line.start, line.length, line.custom_id),
                *(PENDING if line.reply is None else FAILED, line.reply),
            )
            for line in checked
        ]
        failed = sum(line.reply is not None for line in checked)
        with self._database.transaction() as connection:
            changed = connection.execute(
                "UPDATE batches SET read_bytes = ?, read_lines = ?, total = total + ?, "
                "failed = failed + ? WHERE serial = ? AND status = ? AND read_bytes = ?",
                (
                    *(read_bytes, read_lines, len(rows), failed),
                    *(batch.serial, BatchStatus.VALIDATING, batch.read_bytes),
                ),
            )
            if changed.rowcount == 1:
                connection.executemany("INSERT INTO lines VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def pending(self, batch: int, after: int, count: int) -> Sequence[PendingLine]:
        """Lines behind this number that have no result, in order."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT number, start, length, custom_id FROM lines "
                "WHERE batch = ? AND state = 0 AND number > ? ORDER BY number LIMIT ?",
                (batch, after, count),
            ).fetchall()
        return [PendingLine(*row) for row in rows]

    def settle(
        self, results: Sequence[LineResult], used: Mapping[str, float] | None = None
    ) -> Sequence[LineResult]:
        """Write the results of pending lines, in one transaction; those that were written.

        A result is left out where its line has one, and where its batch takes no more. `used` are
        tokens of keys, which are noted with them.
        """
        written: list[LineResult] = []
        with self._database.transaction() as connection:
            if used:
                note_used(connection, used)
            for result in results:
                changed = connection.execute(
                    "UPDATE lines SET state = ?, reply = ? WHERE batch = ? AND number = ? "
                    "AND state = ? AND EXISTS "
                    "(SELECT 1 FROM batches WHERE serial = ? AND status = ?)",
                    (
                        *(DONE if result.is_done else FAILED, result.reply),
                        *(
                            result.batch,
                            result.number,
                            PENDING,
                            result.batch,
                            BatchStatus.IN_PROGRESS,
                        ),
                    ),
                )
                if changed.rowcount != 1:
                    continue
                written.append(result)
                connection.execute(
                    "UPDATE batches SET completed = completed + ?, failed = failed + ?, "
                    "prompt_tokens = prompt_tokens + ?, cached_tokens = cached_tokens + ?, "
                    "completion_tokens = completion_tokens + ? WHERE serial = ?",
                    (
                        *(int(result.is_done), int(not result.is_done)),
                        *(result.tokens.prompt, result.tokens.cached, result.tokens.completion),
                        result.batch,
                    ),
                )
        return written

    def written(self, batch: int, after: int) -> Sequence[WrittenLine]:
        """Lines behind this number for the output, in order: a few of them, within a bound."""
        found: list[WrittenLine] = []
        size = 0
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT number, custom_id, state, reply FROM lines "
                "WHERE batch = ? AND number > ? ORDER BY number LIMIT ?",
                (batch, after, limits.OUTPUT_LINES),
            )
            for number, custom_id, state, reply in rows:
                found.append(WrittenLine(number, custom_id, state == DONE, reply))
                size += len(reply or b"")
                if size >= limits.OUTPUT_BYTES:
                    break
        return found

    def sweep(self) -> int:
        """Remove lines of one batch that has ended: a few of them; how many."""
        with self._database.transaction() as connection:
            ended = connection.execute(
                "SELECT serial FROM batches WHERE is_swept = 0 "
                f"AND status NOT IN ({_LIVE_STATES}) ORDER BY serial LIMIT 1"
            ).fetchone()
            if ended is None:
                return 0
            serial = ended["serial"]
            removed = connection.execute(
                "DELETE FROM lines WHERE rowid IN "
                "(SELECT rowid FROM lines WHERE batch = ? LIMIT ?)",
                (serial, limits.SWEEP_LINES),
            ).rowcount
            if removed < limits.SWEEP_LINES:
                connection.execute("UPDATE batches SET is_swept = 1 WHERE serial = ?", (serial,))
        return removed
