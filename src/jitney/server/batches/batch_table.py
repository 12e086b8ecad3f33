"""Batches and their lines: `BatchTable`. The store's thread.

Each move from state to state is one transaction that names the states it starts from. A move whose
batch has left those states changes nothing, so a cancel and an end that cross do no harm. `settle`
is the only statement that gives a pending line its result, and it finds only pending lines of
batches that still take results. See `batches/store.py` for what follows from that.

Tests: tests/unit/server/batches/test_store.py and test_kills.py.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from sqlite3 import Connection, Row
from typing import Any

from jitney.server.batches import limits
from jitney.server.batches.database import DONE, FAILED, PENDING, Database, insert
from jitney.server.batches.file_table import insert_file
from jitney.server.batches.rows import (
    LIVE_STATES,
    BatchStatus,
    LineResult,
    NewBatch,
    StoredBatch,
    StoredFile,
    StoredLine,
    batch_of,
)
from jitney.server.error_object import NO_RETRY, Refusal

_ENDABLE = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
_OF_OWNER = "SELECT * FROM batches WHERE owner = ? AND id = ?"


class BatchTable:
    """All batches; the lines of those that have not ended, and of ended ones until they are swept.

    `used_at_open` has the tokens that keys have used for their batches, by their names, as an
    earlier process left them. Any thread may read it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        used = database.rows("SELECT owner, used FROM allowances")
        self.used_at_open: Mapping[str, float] = {row["owner"]: row["used"] for row in used}

    def create(self, new: NewBatch) -> StoredBatch:
        """A new batch; with the idempotency key of an earlier one, that one.

        The input is compared by its content. Raises Refusal.
        """
        with self._database.transaction() as connection:
            earlier = _earlier(connection, new)
            if earlier is not None and earlier.input_file_id == new.input_file_id:
                # It may have been deleted since; its content was this one.
                digest = earlier.input_sha256
            else:
                digest = _input_digest(connection, new)
            if earlier is not None:
                _check_same(earlier, new, digest)
                return earlier
            _check_count(connection, new.owner)
            _forget_oldest(connection, new.owner)
            metadata = None if new.metadata is None else json.dumps(dict(new.metadata))
            values = {
                **asdict(new),
                "id": f"batch_{uuid.uuid4().hex}",
                "input_sha256": digest,
                "metadata": metadata,
                "status": BatchStatus.VALIDATING,
            }
            return _one(connection, insert(connection, "batches", values))

    def find(self, owner: str, batch_id: str) -> StoredBatch | None:
        """The owner's batch with this id."""
        row = self._database.row(_OF_OWNER, owner, batch_id)
        return None if row is None else batch_of(row)

    def get(self, serial: int) -> StoredBatch:
        """The batch as it is now."""
        with self._database.reading() as connection:
            return _one(connection, serial)

    def listed(self, owner: str, after: str | None, count: int) -> Sequence[StoredBatch] | None:
        """The owner's batches, newest first, behind this one; None if that one is not there."""
        start = None if after is None else self.find(owner, after)
        if after is not None and start is None:
            return None
        serial = None if start is None else start.serial
        rows = self._database.rows(
            "SELECT * FROM batches WHERE owner = ? AND (? IS NULL OR serial < ?) "
            "ORDER BY serial DESC LIMIT ?",
            *(owner, serial, serial, count),
        )
        return [batch_of(row) for row in rows]

    def live(self) -> Sequence[StoredBatch]:
        """All batches that have not ended, oldest first."""
        query = f"SELECT * FROM batches WHERE status {LIVE_STATES} ORDER BY serial"
        return [batch_of(row) for row in self._database.rows(query)]

    def counts(self) -> dict[str, int]:
        """How many batches are in each state."""
        rows = self._database.rows("SELECT status, count(*) FROM batches GROUP BY status")
        found = dict(map(tuple, rows))
        return {status.value: found.get(status, 0) for status in BatchStatus}

    def age(self, seconds: float) -> None:
        """So much time has passed for all batches that have not ended."""
        with self._database.transaction() as connection:
            connection.execute(
                f"UPDATE batches SET passed_s = passed_s + ? WHERE status {LIVE_STATES}", (seconds,)
            )

    def note_used(self, used: Mapping[str, float]) -> None:
        """Keys have used so many tokens for their batches, by their names."""
        with self._database.transaction() as connection:
            _note_used(connection, used)

    def begin(self, serial: int, now: int) -> bool:
        """Its input is checked: run its lines."""
        with self._database.transaction() as connection:
            starts = (BatchStatus.VALIDATING,)
            return _moved(connection, serial, starts, BatchStatus.IN_PROGRESS, now)

    def fail(self, serial: int, now: int, error: dict[str, Any]) -> bool:  # Any: a JSON value
        """Its input cannot be used as a whole."""
        with self._database.transaction() as connection:
            starts, errors = (BatchStatus.VALIDATING,), json.dumps([error])
            return _moved(connection, serial, starts, BatchStatus.FAILED, now, errors=errors)

    def finalize(self, serial: int, now: int, outcome: BatchStatus) -> bool:
        """From here on it takes no more results; it will end as completed, or as expired."""
        assert outcome in (BatchStatus.COMPLETED, BatchStatus.EXPIRED), outcome
        starts = _ENDABLE if outcome is BatchStatus.EXPIRED else (BatchStatus.IN_PROGRESS,)
        with self._database.transaction() as connection:
            return _moved(connection, serial, starts, BatchStatus.FINALIZING, now, outcome=outcome)

    def cancel(self, owner: str, batch_id: str, now: int) -> tuple[StoredBatch, bool] | None:
        """From here on it takes no more results. The batch, and whether it is being cancelled; None
        if it is not there."""
        with self._database.transaction() as connection:
            row = connection.execute(_OF_OWNER, (owner, batch_id)).fetchone()
            if row is None:
                return None
            to, outcome = BatchStatus.CANCELLING, BatchStatus.CANCELLED
            _moved(connection, row["serial"], _ENDABLE, to, now, outcome=outcome)
            batch = _one(connection, row["serial"])
        return batch, batch.status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED)

    def end(
        self, batch: StoredBatch, now: int, output: StoredFile | None, errors: StoredFile | None
    ) -> bool:
        """Its output is complete and on the disk: note the files and the end, in one transaction.

        False, with nothing changed, if it has ended already.
        """
        assert batch.outcome is not None, batch.id
        starts = (BatchStatus.FINALIZING, BatchStatus.CANCELLING)
        files = {
            "output_file_id": None if output is None else output.id,
            "error_file_id": None if errors is None else errors.id,
        }
        with self._database.transaction() as connection:
            if not _moved(connection, batch.serial, starts, batch.outcome, now, **files):
                return False
            for file in (output, errors):
                if file is not None:
                    insert_file(connection, file)
            query = "UPDATE batches SET failed = total - completed WHERE serial = ?"
            connection.execute(query, (batch.serial,))
        return True

    def has_custom_id(self, batch: int, custom_id: str) -> bool:
        """Whether a line of the batch has this id already."""
        query = "SELECT 1 FROM lines WHERE batch = ? AND custom_id = ? LIMIT 1"
        return self._database.row(query, batch, custom_id) is not None

    def add_lines(
        self, batch: StoredBatch, checked: Sequence[StoredLine], read_bytes: int, read_lines: int
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

    def pending_lines(self, batch: int, after: int, count: int) -> Sequence[StoredLine]:
        """Lines behind this number that have no result, in order."""
        rows = self._database.rows(
            "SELECT * FROM lines WHERE batch = ? AND state = 0 AND number > ? "
            "ORDER BY number LIMIT ?",
            *(batch, after, count),
        )
        return [_line_of(row) for row in rows]

    def settle(
        self, results: Sequence[LineResult], used: Mapping[str, float] | None = None
    ) -> Sequence[LineResult]:
        """Write the results of pending lines, in one transaction; those that were written.

        A result is left out where its line has one, and where its batch takes no more. `used` are
        tokens of keys, which are noted with them.
        """
        with self._database.transaction() as connection:
            _note_used(connection, used or {})
            return [each for each in results if _settled(connection, each)]

    def written_lines(self, batch: int, after: int) -> Sequence[StoredLine]:
        """Lines behind this number for the output, in order: a few of them, within a bound."""
        found: list[StoredLine] = []
        size = 0
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT * FROM lines WHERE batch = ? AND number > ? ORDER BY number LIMIT ?",
                (batch, after, limits.OUTPUT_LINES),
            )
            for row in rows:
                found.append(_line_of(row))
                size += len(row["reply"] or b"")
                if size >= limits.OUTPUT_BYTES:
                    break
        return found

    def sweep(self) -> int:
        """Remove lines of one batch that has ended: a few of them; how many."""
        with self._database.transaction() as connection:
            ended = connection.execute(
                f"SELECT serial FROM batches WHERE is_swept = 0 AND status NOT {LIVE_STATES} "
                "ORDER BY serial LIMIT 1"
            ).fetchone()
            if ended is None:
                return 0
            removed = connection.execute(
                "DELETE FROM lines WHERE rowid IN "
                "(SELECT rowid FROM lines WHERE batch = ? LIMIT ?)",
                (ended["serial"], limits.SWEEP_LINES),
            ).rowcount
            if removed < limits.SWEEP_LINES:
                connection.execute("UPDATE batches SET is_swept = 1 WHERE serial = ?", tuple(ended))
        return removed


def _moved(
    connection: Connection,
    serial: int,
    starts: tuple[BatchStatus, ...],
    to: BatchStatus,
    now: int,
    **others: str | None,
) -> bool:
    """Move a batch, if it is in one of these states, and set other columns; whether it was."""
    columns = {"status": to, f"{to.value}_at": now, **others}
    changed = connection.execute(
        f"UPDATE batches SET {', '.join(f'{name} = ?' for name in columns)} "
        f"WHERE serial = ? AND status IN ({', '.join('?' * len(starts))})",
        (*columns.values(), serial, *starts),
    )
    return changed.rowcount == 1


def _settled(connection: Connection, result: LineResult) -> bool:
    """Write one result, and count it; whether its line was pending."""
    changed = connection.execute(
        "UPDATE lines SET state = ?, reply = ? WHERE batch = ? AND number = ? AND state = ? "
        "AND EXISTS (SELECT 1 FROM batches WHERE serial = ? AND status = ?)",
        (
            *(DONE if result.is_done else FAILED, result.reply, result.batch, result.number),
            *(PENDING, result.batch, BatchStatus.IN_PROGRESS),
        ),
    )
    if changed.rowcount != 1:
        return False
    usage = result.usage
    connection.execute(
        "UPDATE batches SET completed = completed + ?, failed = failed + ?, "
        "prompt_tokens = prompt_tokens + ?, cached_tokens = cached_tokens + ?, "
        "completion_tokens = completion_tokens + ? WHERE serial = ?",
        (
            *(int(result.is_done), int(not result.is_done)),
            *(usage.prompt_count, usage.cached_count, usage.completion_count, result.batch),
        ),
    )
    return True


def _note_used(connection: Connection, used: Mapping[str, float]) -> None:
    if used:
        connection.executemany(
            "INSERT INTO allowances VALUES (?, ?) "
            "ON CONFLICT (owner) DO UPDATE SET used = excluded.used",
            used.items(),
        )
        connection.execute("DELETE FROM allowances WHERE used <= 0")


def _one(connection: Connection, serial: int) -> StoredBatch:
    row = connection.execute("SELECT * FROM batches WHERE serial = ?", (serial,)).fetchone()
    assert row is not None, serial
    return batch_of(row)


def _line_of(row: Row) -> StoredLine:
    return StoredLine(
        number=row["number"],
        start=row["start"],
        length=row["length"],
        custom_id=row["custom_id"],
        is_done=row["state"] == DONE,
        reply=row["reply"],
    )


def _input_digest(connection: Connection, new: NewBatch) -> str:
    row = connection.execute(
        "SELECT sha256 FROM files WHERE owner = ? AND id = ? AND purpose = 'batch'",
        (new.owner, new.input_file_id),
    ).fetchone()
    if row is None:
        message = "There is no file for a batch with this id; upload one with purpose batch."
        raise Refusal("file_not_found", message, param="input_file_id")
    return str(row["sha256"])


def _earlier(connection: Connection, new: NewBatch) -> StoredBatch | None:
    """The owner's batch with the same idempotency key. No key is equal to none."""
    row = connection.execute(
        "SELECT * FROM batches WHERE owner = ? AND idempotency_key = ?",
        (new.owner, new.idempotency_key),
    ).fetchone()
    return None if row is None else batch_of(row)


def _check_same(earlier: StoredBatch, new: NewBatch, digest: str) -> None:
    """Refuse a batch whose idempotency key is that of another batch."""
    of_earlier = (earlier.input_sha256, earlier.endpoint, earlier.metadata or {})
    if of_earlier != (digest, new.endpoint, new.metadata or {}):
        message = "This Idempotency-Key was used for another batch; use a new one."
        raise Refusal("idempotency_key_reused", message)


def _check_count(connection: Connection, owner: str) -> None:
    """Refuse one more batch where there are as many live ones as the owner may have."""
    query = f"SELECT count(*) FROM batches WHERE owner = ? AND status {LIVE_STATES}"
    if connection.execute(query, (owner,)).fetchone()[0] >= limits.BATCHES_LIVE_MAX:
        raise Refusal(
            "too_many_batches",
            f"{limits.BATCHES_LIVE_MAX} batches of this key have not ended, as many as may be; "
            "wait for one, or cancel it.",
            headers=NO_RETRY,
        )


def _forget_oldest(connection: Connection, owner: str) -> None:
    """Make room for one more, if there are as many as are kept."""
    connection.execute(
        "DELETE FROM batches WHERE owner = ? AND is_swept = 1 AND serial <= "
        "(SELECT serial FROM batches WHERE owner = ? ORDER BY serial DESC LIMIT 1 OFFSET ?)",
        (owner, owner, limits.BATCHES_KEPT_MAX - 1),
    )
