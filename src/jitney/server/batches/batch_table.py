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

from jitney.server.batches import limits
from jitney.server.batches.database import DONE, FAILED, PENDING, Database
from jitney.server.batches.message_lines import MESSAGES
from jitney.server.batches.rows import (
    ERRORED,
    LIVE_STATES,
    BatchStatus,
    LineResult,
    NewBatch,
    Purpose,
    StoredBatch,
    StoredFile,
    StoredLine,
    batch_of,
)
from jitney.server.error_object import NO_RETRY, Refusal

_LINES = (
    f"SELECT number, start, length, custom_id, state = {DONE} AS is_done, reply FROM lines "
    "WHERE batch = ? AND number > ?"
)
_ENDABLE = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)


class BatchTable:
    """All batches; the lines of those that have not ended, and of ended ones until they are swept.

    `used_at_open` has the tokens that keys have used for their batches, by their names, as an
    earlier process left them. Any thread may read it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        used = database.rows("SELECT owner, used FROM allowances")
        self.used_at_open: Mapping[str, float] = dict(map(tuple, used))

    def create(self, new: NewBatch) -> StoredBatch:
        """A new batch; with the idempotency key of an earlier one, that one.

        The input is compared by its content. Raises Refusal.
        """
        with self._database.transaction():
            earlier = self._earlier(new)
            if earlier is not None and earlier.input_file_id == new.input_file_id:
                # It may have been deleted since; its content was this one.
                digest = earlier.input_sha256
            else:
                digest = self._input_digest(new)
            if earlier is not None:
                _check_same(earlier, new, digest)
                return earlier
            self._check_count(new.owner)
            self._forget_oldest(new.owner)
            values = {
                **asdict(new),
                "id": f"{'msgbatch' if new.endpoint == MESSAGES else 'batch'}_{uuid.uuid4().hex}",
                "input_sha256": digest,
                "metadata": None if new.metadata is None else json.dumps(dict(new.metadata)),
                "status": BatchStatus.VALIDATING,
            }
            return self.get(self._database.insert("batches", values))

    def _earlier(self, new: NewBatch) -> StoredBatch | None:
        """The owner's batch with the same idempotency key. No key is equal to none."""
        query = "SELECT * FROM batches WHERE owner = ? AND idempotency_key = ?"
        row = self._database.row(query, new.owner, new.idempotency_key)
        return None if row is None else batch_of(row)

    def _input_digest(self, new: NewBatch) -> str:
        row = self._database.find("files", new.owner, new.input_file_id)
        if row is None or row["purpose"] != Purpose.BATCH:
            message = "There is no file for a batch with this id; upload one with purpose batch."
            raise Refusal("file_not_found", message, param="input_file_id")
        return str(row["sha256"])

    def _check_count(self, owner: str) -> None:
        """Refuse one more batch where there are as many live ones as the owner may have."""
        query = f"SELECT count(*) FROM batches WHERE owner = ? AND status {LIVE_STATES}"
        if self._database.value(query, owner) >= limits.BATCHES_LIVE_MAX:
            raise Refusal(
                "too_many_batches",
                f"{limits.BATCHES_LIVE_MAX} batches of this key have not ended, as many as may be; "
                "wait for one, or cancel it.",
                headers=NO_RETRY,
            )

    def _forget_oldest(self, owner: str) -> None:
        """Make room for one more, if there are as many as are kept."""
        self._database.execute(
            "DELETE FROM batches WHERE owner = ? AND is_swept = 1 AND serial <= "
            "(SELECT serial FROM batches WHERE owner = ? ORDER BY serial DESC LIMIT 1 OFFSET ?)",
            *(owner, owner, limits.BATCHES_KEPT_MAX - 1),
        )

    def find(self, owner: str, batch_id: str) -> StoredBatch | None:
        """The owner's batch with this id."""
        row = self._database.find("batches", owner, batch_id)
        return None if row is None else batch_of(row)

    def get(self, serial: int) -> StoredBatch:
        """The batch as it is now."""
        row = self._database.row("SELECT * FROM batches WHERE serial = ?", serial)
        assert row is not None, serial
        return batch_of(row)

    def listed(self, owner: str, after: str | None, count: int) -> Sequence[StoredBatch] | None:
        """The owner's batches, newest first, behind this one; None if that one is not there."""
        rows = self._database.page("batches", {"owner": owner}, after, count, "DESC")
        return None if rows is None else [batch_of(row) for row in rows]

    def listed_messages(
        self, owner: str, after: str | None, before: str | None, count: int
    ) -> Sequence[StoredBatch] | None:
        """The owner's batches of messages, newest first: those behind one, or just before one; None
        if that one is not there."""
        equal = {"owner": owner, "endpoint": MESSAGES}
        order = "DESC" if before is None else "ASC"
        rows = self._database.page("batches", equal, before or after, count, order)
        found = None if rows is None else [batch_of(row) for row in rows]
        return found if found is None or before is None else found[::-1]

    def remove(self, serial: int) -> None:
        """Forget a batch that has ended, and what is left of its lines."""
        assert not self.get(serial).status.is_live, serial
        with self._database.transaction():
            self._database.execute("DELETE FROM lines WHERE batch = ?", serial)
            self._database.execute("DELETE FROM batches WHERE serial = ?", serial)

    def live(self) -> Sequence[StoredBatch]:
        """All batches that have not ended, oldest first."""
        query = f"SELECT * FROM batches WHERE status {LIVE_STATES} ORDER BY serial"
        return [batch_of(row) for row in self._database.rows(query)]

    def counts(self) -> dict[str, int]:
        """How many batches are in each state."""
        rows = self._database.rows("SELECT status, count(*) FROM batches GROUP BY status")
        return dict.fromkeys(map(str, BatchStatus), 0) | dict(map(tuple, rows))

    def age(self, seconds: float) -> None:
        """So much time has passed for all batches that have not ended."""
        query = f"UPDATE batches SET passed_s = passed_s + ? WHERE status {LIVE_STATES}"
        with self._database.transaction():
            self._database.execute(query, seconds)

    def begin(self, serial: int, now: int) -> bool:
        """Its input is checked: run its lines."""
        with self._database.transaction():
            return self._move(serial, (BatchStatus.VALIDATING,), BatchStatus.IN_PROGRESS, now)

    def fail(self, serial: int, now: int, code: str, message: str) -> bool:
        """Its input cannot be used as a whole."""
        error = {"code": code, "message": message, "param": "input_file_id", "line": None}
        starts, errors = (BatchStatus.VALIDATING,), json.dumps([error])
        with self._database.transaction():
            return self._move(serial, starts, BatchStatus.FAILED, now, errors=errors)

    def finalize(self, serial: int, now: int, outcome: BatchStatus) -> bool:
        """From here on it takes no more results; it will end as completed, or as expired."""
        assert outcome in (BatchStatus.COMPLETED, BatchStatus.EXPIRED), outcome
        starts = _ENDABLE if outcome is BatchStatus.EXPIRED else (BatchStatus.IN_PROGRESS,)
        with self._database.transaction():
            return self._move(serial, starts, BatchStatus.FINALIZING, now, outcome=outcome)

    def cancel(self, owner: str, batch_id: str, now: int) -> tuple[StoredBatch, bool] | None:
        """From here on it takes no more results. The batch, and whether it is being cancelled; None
        if it is not there."""
        to, outcome = BatchStatus.CANCELLING, BatchStatus.CANCELLED
        with self._database.transaction():
            batch = self.find(owner, batch_id)
            if batch is None:
                return None
            self._move(batch.serial, _ENDABLE, to, now, outcome=outcome)
            batch = self.get(batch.serial)
        return batch, batch.status in (to, outcome)

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
        with self._database.transaction():
            if not self._move(batch.serial, starts, batch.outcome, now, **files):
                return False
            for file in (output, errors):
                if file is not None:
                    self._database.insert("files", asdict(file))
            if batch.endpoint == MESSAGES:
                self._note_errored(batch.serial)
            query = "UPDATE batches SET failed = total - completed WHERE serial = ?"
            self._database.execute(query, batch.serial)
        return True

    def _note_errored(self, serial: int) -> None:
        """Keep apart how many lines had an error: the others are not asked any more."""
        batch = self.get(serial)
        noted = json.dumps({**(batch.metadata or {}), ERRORED: str(batch.failed)})
        query = "UPDATE batches SET metadata = ? WHERE serial = ?"
        self._database.execute(query, noted, serial)

    def _move(
        self,
        serial: int,
        starts: tuple[BatchStatus, ...],
        to: BatchStatus,
        now: int,
        **others: str | None,
    ) -> bool:
        """Move a batch, if it is in one of these states, and set other columns; whether it was."""
        columns = {"status": to, f"{to.value}_at": now, **others}
        query = (
            f"UPDATE batches SET {', '.join(f'{name} = ?' for name in columns)} "
            f"WHERE serial = ? AND status IN ({', '.join('?' * len(starts))})"
        )
        return self._database.execute(query, *columns.values(), serial, *starts).rowcount == 1

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
        with self._database.transaction():
            changed = self._database.execute(
                "UPDATE batches SET read_bytes = ?, read_lines = ?, total = total + ?, "
                "failed = failed + ? WHERE serial = ? AND status = ? AND read_bytes = ?",
                *(read_bytes, read_lines, len(rows), failed),
                *(batch.serial, BatchStatus.VALIDATING, batch.read_bytes),
            )
            if changed.rowcount == 1:
                query = "INSERT INTO lines VALUES (?, ?, ?, ?, ?, ?, ?)"
                self._database.execute_many(query, rows)

    def pending_lines(self, batch: int, after: int, count: int) -> Sequence[StoredLine]:
        """Lines behind this number that have no result, in order."""
        # The number itself, and no parameter: so the index of pending lines is used.
        query = f"{_LINES} AND state = {PENDING} ORDER BY number LIMIT ?"
        return [StoredLine(**row) for row in self._database.rows(query, batch, after, count)]

    def settle(
        self, results: Sequence[LineResult], used: Mapping[str, float] | None = None
    ) -> Sequence[LineResult]:
        """Write the results of pending lines, in one transaction; those that were written.

        A result is left out where its line has one, and where its batch takes no more. `used` are
        tokens that keys have used for their batches, by their names; they are noted with them.
        """
        with self._database.transaction():
            self._database.execute_many(
                "INSERT INTO allowances VALUES (?, ?) "
                "ON CONFLICT (owner) DO UPDATE SET used = excluded.used",
                (used or {}).items(),
            )
            self._database.execute("DELETE FROM allowances WHERE used <= 0")
            return [each for each in results if self._settle_one(each)]

    def _settle_one(self, result: LineResult) -> bool:
        """Write one result, and count it; whether its line was pending."""
        changed = self._database.execute(
            "UPDATE lines SET state = ?, reply = ? WHERE batch = ? AND number = ? AND state = ? "
            "AND EXISTS (SELECT 1 FROM batches WHERE serial = ? AND status = ?)",
            *(DONE if result.is_done else FAILED, result.reply, result.batch, result.number),
            *(PENDING, result.batch, BatchStatus.IN_PROGRESS),
        )
        if changed.rowcount != 1:
            return False
        usage = result.usage
        self._database.execute(
            "UPDATE batches SET completed = completed + ?, failed = failed + ?, "
            "prompt_tokens = prompt_tokens + ?, cached_tokens = cached_tokens + ?, "
            "completion_tokens = completion_tokens + ? WHERE serial = ?",
            *(int(result.is_done), int(not result.is_done)),
            *(usage.prompt_count, usage.cached_count, usage.completion_count, result.batch),
        )
        return True

    def written_lines(self, batch: int, after: int) -> Sequence[StoredLine]:
        """Lines behind this number for the output, in order: a few of them, within a bound."""
        found: list[StoredLine] = []
        size = 0
        query = f"{_LINES} ORDER BY number LIMIT ?"
        for row in self._database.each(query, batch, after, limits.OUTPUT_LINES):
            found.append(StoredLine(**row))
            size += len(found[-1].reply or b"")
            if size >= limits.OUTPUT_BYTES:
                break
        return found

    def sweep(self) -> int:
        """Remove lines of one batch that has ended: a few of them; how many."""
        with self._database.transaction():
            ended = self._database.row(
                f"SELECT serial FROM batches WHERE is_swept = 0 AND status NOT {LIVE_STATES} "
                "ORDER BY serial LIMIT 1"
            )
            if ended is None:
                return 0
            removed = self._database.execute(
                "DELETE FROM lines WHERE rowid IN "
                "(SELECT rowid FROM lines WHERE batch = ? LIMIT ?)",
                *(ended["serial"], limits.SWEEP_LINES),
            ).rowcount
            if removed < limits.SWEEP_LINES:
                self._database.execute("UPDATE batches SET is_swept = 1 WHERE serial = ?", *ended)
        return removed


def _check_same(earlier: StoredBatch, new: NewBatch, digest: str) -> None:
    """Refuse a batch whose idempotency key is that of another batch."""
    of_earlier = (earlier.input_sha256, earlier.endpoint, earlier.metadata or {})
    if of_earlier != (digest, new.endpoint, new.metadata or {}):
        message = "This Idempotency-Key was used for another batch; use a new one."
        raise Refusal("idempotency_key_reused", message)
