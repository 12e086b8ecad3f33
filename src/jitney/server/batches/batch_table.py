"""The rows of batches, and their moves from state to state: `BatchTable`. The store's thread.

Each move is one transaction that names the states it starts from. A move whose batch has left
those states changes nothing, so a cancel and an end that cross do no harm.

Tests: tests/unit/server/batches/test_store.py.
"""

import json
import sqlite3
import uuid
from collections.abc import Sequence
from typing import Any

from jitney.server.batches import limits
from jitney.server.batches.database import Database
from jitney.server.batches.file_table import insert_file
from jitney.server.batches.stored import (
    LIVE,
    BatchStatus,
    NewBatch,
    StoredBatch,
    StoredFile,
    batch_of,
)

_LIVE_STATES = ", ".join(f"'{status}'" for status in LIVE)
_ENDABLE = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)


class InputMissing(Exception):
    """The owner has no such file for a batch."""


class KeyReused(Exception):
    """The idempotency key belongs to another batch."""


class TooManyBatches(Exception):
    """The owner has as many live batches as it may have."""


class BatchTable:
    """All batches."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, new: NewBatch) -> StoredBatch:
        """The batch that was asked for; with the idempotency key of an earlier one, that one.

        The input is compared by its content. Raises InputMissing, KeyReused and TooManyBatches.
        """
        with self._database.transaction() as connection:
            earlier = _earlier(connection, new)
            if earlier is not None and earlier.input_file_id == new.input_file_id:
                # It may have been deleted since; its content was this one.
                digest = earlier.input_sha256
            else:
                digest = _input_digest(connection, new)
            if earlier is not None:
                if not _is_same(earlier, new, digest):
                    raise KeyReused
                return earlier
            count = connection.execute(
                f"SELECT count(*) FROM batches WHERE owner = ? AND status IN ({_LIVE_STATES})",
                (new.owner,),
            ).fetchone()[0]
            if count >= limits.BATCHES_LIVE_MAX:
                raise TooManyBatches
            _forget_oldest(connection, new.owner)
            metadata = None if new.metadata is None else json.dumps(dict(new.metadata))
            cursor = connection.execute(
                "INSERT INTO batches (id, owner, endpoint, model, input_file_id, input_sha256, "
                "metadata, idempotency_key, status, created_at, expires_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(f"batch_{uuid.uuid4().hex}", new.owner, new.endpoint, new.model),
                    *(new.input_file_id, digest, metadata, new.idempotency_key),
                    *(BatchStatus.VALIDATING, new.created_at, new.expires_at),
                ),
            )
            return _one(connection, cursor.lastrowid)

    def find(self, owner: str, batch_id: str) -> StoredBatch | None:
        """The owner's batch with this id."""
        with self._database.reading() as connection:
            row = _row_of(connection, owner, batch_id)
        return None if row is None else batch_of(row)

    def get(self, serial: int) -> StoredBatch:
        """The batch as it is now."""
        with self._database.reading() as connection:
            return _one(connection, serial)

    def listed(self, owner: str, after: str | None, count: int) -> Sequence[StoredBatch] | None:
        """The owner's batches, newest first, behind this one; None if that one is not there."""
        start = None
        with self._database.reading() as connection:
            if after is not None:
                row = _row_of(connection, owner, after)
                if row is None:
                    return None
                start = row["serial"]
            rows = connection.execute(
                "SELECT * FROM batches WHERE owner = ? AND (? IS NULL OR serial < ?) "
                "ORDER BY serial DESC LIMIT ?",
                (owner, start, start, count),
            ).fetchall()
        return [batch_of(row) for row in rows]

    def live(self) -> Sequence[StoredBatch]:
        """All batches that have not ended, oldest first."""
        with self._database.reading() as connection:
            rows = connection.execute(
                f"SELECT * FROM batches WHERE status IN ({_LIVE_STATES}) ORDER BY serial"
            ).fetchall()
        return [batch_of(row) for row in rows]

    def counts(self) -> dict[str, int]:
        """How many batches are in each state."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT status, count(*) FROM batches GROUP BY status")
            found = dict(map(tuple, rows.fetchall()))
        return {status.value: found.get(status, 0) for status in BatchStatus}

    def age(self, seconds: float) -> None:
        """So much time has passed for all batches that have not ended."""
        with self._database.transaction() as connection:
            connection.execute(
                f"UPDATE batches SET passed_s = passed_s + ? WHERE status IN ({_LIVE_STATES})",
                (seconds,),
            )

    def begin(self, serial: int, now: int) -> bool:
        """Its input is checked: run its lines."""
        return self._move(serial, (BatchStatus.VALIDATING,), BatchStatus.IN_PROGRESS, now)

    def fail(self, serial: int, now: int, error: dict[str, Any]) -> bool:  # Any: a JSON value
        """Its input cannot be used as a whole."""
        with self._database.transaction() as connection:
            moved = _moved(connection, serial, (BatchStatus.VALIDATING,), BatchStatus.FAILED, now)
            if moved:
                connection.execute(
                    "UPDATE batches SET errors = ? WHERE serial = ?",
                    (json.dumps([error]), serial),
                )
        return moved

    def finalize(self, serial: int, now: int, outcome: BatchStatus) -> bool:
        """From here on it takes no more results; it will end as completed, or as expired."""
        assert outcome in (BatchStatus.COMPLETED, BatchStatus.EXPIRED), outcome
        starts = _ENDABLE if outcome is BatchStatus.EXPIRED else (BatchStatus.IN_PROGRESS,)
        with self._database.transaction() as connection:
            moved = _moved(connection, serial, starts, BatchStatus.FINALIZING, now)
            if moved:
                _decide(connection, serial, outcome)
        return moved

    def cancel(self, owner: str, batch_id: str, now: int) -> tuple[StoredBatch, bool] | None:
        """From here on it takes no more results. The batch, and whether it is being cancelled; None
        if it is not there."""
        with self._database.transaction() as connection:
            row = _row_of(connection, owner, batch_id)
            if row is None:
                return None
            serial = row["serial"]
            if _moved(connection, serial, _ENDABLE, BatchStatus.CANCELLING, now):
                _decide(connection, serial, BatchStatus.CANCELLED)
            batch = _one(connection, serial)
        return batch, batch.status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED)

    def end(
        self, batch: StoredBatch, now: int, output: StoredFile | None, errors: StoredFile | None
    ) -> bool:
        """Its output is complete and on the disk: note the files and the end, in one transaction.

        False, with nothing changed, if it has ended already.
        """
        assert batch.outcome is not None, batch.id
        with self._database.transaction() as connection:
            starts = (BatchStatus.FINALIZING, BatchStatus.CANCELLING)
            if not _moved(connection, batch.serial, starts, batch.outcome, now):
                return False
            for file in (output, errors):
                if file is not None:
                    insert_file(connection, file)
            connection.execute(
                "UPDATE batches SET output_file_id = ?, error_file_id = ?, failed = total - "
                "completed WHERE serial = ?",
                (
                    None if output is None else output.id,
                    None if errors is None else errors.id,
                    batch.serial,
                ),
            )
        return True

    def _move(
        self, serial: int, starts: tuple[BatchStatus, ...], to: BatchStatus, now: int
    ) -> bool:
        with self._database.transaction() as connection:
            return _moved(connection, serial, starts, to, now)


def _moved(
    connection: sqlite3.Connection,
    serial: int,
    starts: tuple[BatchStatus, ...],
    to: BatchStatus,
    now: int,
) -> bool:
    """Move a batch, if it is in one of these states; whether it was."""
    places = ", ".join("?" * len(starts))
    changed = connection.execute(
        f"UPDATE batches SET status = ?, {to.value}_at = ? "
        f"WHERE serial = ? AND status IN ({places})",
        (to, now, serial, *starts),
    )
    return changed.rowcount == 1


def _decide(connection: sqlite3.Connection, serial: int, outcome: BatchStatus) -> None:
    connection.execute("UPDATE batches SET outcome = ? WHERE serial = ?", (outcome, serial))


def _one(connection: sqlite3.Connection, serial: int | None) -> StoredBatch:
    row = connection.execute("SELECT * FROM batches WHERE serial = ?", (serial,)).fetchone()
    assert row is not None, serial
    return batch_of(row)


def _row_of(connection: sqlite3.Connection, owner: str, batch_id: str) -> sqlite3.Row | None:
    found: sqlite3.Row | None = connection.execute(
        "SELECT * FROM batches WHERE owner = ? AND id = ?", (owner, batch_id)
    ).fetchone()
    return found


def _input_digest(connection: sqlite3.Connection, new: NewBatch) -> str:
    row = connection.execute(
        "SELECT sha256 FROM files WHERE owner = ? AND id = ? AND purpose = 'batch'",
        (new.owner, new.input_file_id),
    ).fetchone()
    if row is None:
        raise InputMissing
    digest: str = row["sha256"]
    return digest


def _earlier(connection: sqlite3.Connection, new: NewBatch) -> StoredBatch | None:
    if new.idempotency_key is None:
        return None
    row = connection.execute(
        "SELECT * FROM batches WHERE owner = ? AND idempotency_key = ?",
        (new.owner, new.idempotency_key),
    ).fetchone()
    return None if row is None else batch_of(row)


def _is_same(earlier: StoredBatch, new: NewBatch, digest: str) -> bool:
    return (
        earlier.input_sha256 == digest
        and earlier.endpoint == new.endpoint
        and (earlier.metadata or {}) == (new.metadata or {})
    )


def _forget_oldest(connection: sqlite3.Connection, owner: str) -> None:
    """Make room for one more, if there are as many as are kept."""
    connection.execute(
        "DELETE FROM batches WHERE owner = ? AND is_swept = 1 AND serial <= "
        "(SELECT serial FROM batches WHERE owner = ? ORDER BY serial DESC LIMIT 1 OFFSET ?)",
        (owner, owner, limits.BATCHES_KEPT_MAX - 1),
    )
