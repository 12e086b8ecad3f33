"""Stored responses: `ResponseTable`. The store's thread.

A response is a row, and what its answer is made of are pieces behind it: the deltas of a chat, from
which events and items are made again (`item_events`). While a background response runs, a piece
also has the text and the tokens of the engine, so that another process can go on from them. A piece
is in the store before anybody sees it, and the end of a response is one transaction with its last
piece: so its events have one order, whatever was killed when.

Every change names the states it starts from. A cancel and an end that cross do no harm: the first
one counts. What is read is given as rows (`stored_rows`): an answer may be long, and all who write
pieces wait for this thread.

Tests: tests/e2e/openai_responses/test_stored.py and test_background.py.
"""

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from jitney.server.batches.database import Database
from jitney.server.batches.store import BatchStore
from jitney.server.error_object import NO_RETRY, Refusal
from jitney.server.openai.replies import Json
from jitney.server.openai_responses import limits
from jitney.server.openai_responses.stored_rows import NewRows, ResponseRows, Rows, bytes_of

T = TypeVar("T")

_UNFINISHED = "IN ('queued', 'in_progress')"
_FORGOTTEN_MAX = 64
"""The most that one new response makes forgotten: it needs the room of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a response ended, and the row of its last piece, if there is one."""

    serial: int
    status: str
    now: int
    usage: str | None = None
    error: str | None = None
    """Both are JSON already."""
    piece: Json | None = None


class ResponseTable:
    """All stored responses and their pieces. A view of an open store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, new: NewRows) -> None:
        """Keep a response. Raises Refusal if too many run."""
        owner = new.values["owner"]
        with self._database.transaction():
            if new.values.get("task") is not None:
                self._check_unfinished(owner, new.values["bytes"])
            serial = self._database.insert("responses", new.values)
            for piece in new.pieces:
                self._database.insert("response_pieces", {"response": serial, **piece})
            self._forget_oldest(owner, serial)

    def _check_unfinished(self, owner: str, new_bytes: int) -> None:
        """They are not forgotten to make room, so they are refused."""
        query = (
            "SELECT count(*), coalesce(sum(bytes), 0) FROM responses "
            f"WHERE owner = ? AND status {_UNFINISHED}"
        )
        ((count, size),) = self._database.rows(query, owner)
        if count >= limits.LIVE_MAX or size + new_bytes > limits.KEPT_BYTES_MAX:
            message = (
                f"Background responses of this key have not ended: {count} of {limits.LIVE_MAX}, "
                f"with {size} of {limits.KEPT_BYTES_MAX} bytes; wait for one, or cancel it."
            )
            raise Refusal("too_many_responses", message, headers=NO_RETRY)

    def _forget_oldest(self, owner: str, kept: int) -> None:
        """Make room: the oldest that have ended go first."""
        query = "SELECT count(*), sum(bytes) FROM responses WHERE owner = ?"
        ((count, size),) = self._database.rows(query, owner)
        oldest = self._database.rows(
            f"SELECT serial, bytes FROM responses WHERE owner = ? AND NOT status {_UNFINISHED} "
            "AND serial != ? ORDER BY serial LIMIT ?",
            *(owner, kept, _FORGOTTEN_MAX),
        )
        for row in oldest:
            if count <= limits.KEPT_MAX and size <= limits.KEPT_BYTES_MAX:
                return
            count, size = count - 1, size - row["bytes"]
            self._remove(row["serial"])

    def find(self, owner: str, response_id: str) -> sqlite3.Row | None:
        """The row of the owner's response with this id."""
        return self._database.find("responses", owner, response_id)

    def find_whole(self, owner: str, response_id: str) -> ResponseRows | None:
        """The owner's response with this id, with its answer so far."""
        row = self.find(owner, response_id)
        return None if row is None else ResponseRows(row, self.pieces(row["serial"]))

    def progress(self, serial: int) -> sqlite3.Row | None:
        """How far a response is, for `progress_of`; None if it was removed."""
        query = (
            "SELECT status, is_started, usage, error, completed_at FROM responses WHERE serial = ?"
        )
        return self._database.row(query, serial)

    def pieces(self, serial: int, after: int = 0, count: int = -1) -> Rows:
        """Pieces behind this number, at most so many, for `pieces_from`."""
        query = (
            "SELECT * FROM response_pieces WHERE response = ? AND number > ? "
            "ORDER BY number LIMIT ?"
        )
        return self._database.rows(query, serial, after, count)

    def links(self, owner: str, response_id: str) -> list[ResponseRows]:
        """A response and those before it, newest first, as many as are read in one go; the last may
        have one before it that is not there."""
        found: list[ResponseRows] = []
        size, next_id = 0, response_id
        while next_id is not None and size < limits.LINK_BYTES:
            rows = self.find_whole(owner, next_id)
            if rows is None:
                break
            found.append(rows)
            size, next_id = size + rows.row["bytes"], rows.row["previous_id"]
        return found

    def unfinished(self, after: int, count: int) -> list[tuple[int, str, str]]:
        """Responses behind this one that have not ended: serial, owner and model."""
        query = (
            f"SELECT serial, owner, model FROM responses WHERE status {_UNFINISHED} AND serial > ? "
            "ORDER BY serial LIMIT ?"
        )
        return [tuple(row) for row in self._database.rows(query, after, count)]

    def begin(self, serial: int) -> ResponseRows | None:
        """It runs now: the response and what it has; None if it has ended."""
        with self._database.transaction():
            changed = self._database.execute(
                "UPDATE responses SET status = 'in_progress', is_started = 1 "
                f"WHERE serial = ? AND status {_UNFINISHED}",
                serial,
            )
            if not changed.rowcount:
                return None
            row = self._database.row("SELECT * FROM responses WHERE serial = ?", serial)
            assert row is not None, serial
        return ResponseRows(row, self.pieces(serial))

    def keep(self, pieces: Iterable[tuple[int, Json]], ends: Iterable[Ended] = ()) -> None:
        """Add rows of pieces to responses that have not ended, and end others. All in one
        transaction."""
        with self._database.transaction():
            for serial, piece in pieces:
                if self._is_unfinished(serial):
                    self._add_piece(serial, piece)
            for end in ends:
                self._end(end)

    def cancel(self, owner: str, response_id: str, now: int) -> ResponseRows | None:
        """End a background response, unless it has ended; as it is then. Raises Refusal."""
        row = self.find(owner, response_id)
        if row is None:
            return None
        if not row["is_background"]:
            message = "Only background responses can be cancelled; end the call of another one."
            raise Refusal("invalid_value", message)
        with self._database.transaction():
            self._end(Ended(serial=row["serial"], status="cancelled", now=now))
        return self.find_whole(owner, response_id)

    def remove(self, owner: str, response_id: str) -> int | None:
        """Remove the owner's response: its serial; None if it is not there."""
        with self._database.transaction():
            row = self._database.find("responses", owner, response_id)
            if row is None:
                return None
            self._remove(row["serial"])
        return int(row["serial"])

    def sweep(self, now: int) -> int:
        """Remove some of the responses that are expired, until so many rows are gone; how many. One
        that has not ended stays, as where room is made: a clock may be wrong at a start."""
        query = (
            f"SELECT serial FROM responses WHERE created_at < ? AND NOT status {_UNFINISHED} "
            "ORDER BY created_at LIMIT ?"
        )
        removed = 0
        with self._database.transaction():
            for row in self._database.rows(query, now - limits.EXPIRY_S, limits.SWEEP_ROWS):
                removed += self._remove(row["serial"])
                if removed >= limits.SWEEP_ROWS:
                    break
        return removed

    def _is_unfinished(self, serial: int) -> bool:
        query = f"SELECT 1 FROM responses WHERE serial = ? AND status {_UNFINISHED}"
        return self._database.row(query, serial) is not None

    def _add_piece(self, serial: int, piece: Json) -> None:
        self._database.insert("response_pieces", {"response": serial, **piece})
        query = "UPDATE responses SET bytes = bytes + ? WHERE serial = ?"
        self._database.execute(query, bytes_of(piece), serial)

    def _end(self, end: Ended) -> None:
        if not self._is_unfinished(end.serial):
            return
        if end.piece is not None:
            self._add_piece(end.serial, end.piece)
        self._database.execute(
            "UPDATE responses SET status = ?, completed_at = ?, usage = ?, error = ?, task = NULL "
            "WHERE serial = ?",
            *(end.status, end.now, end.usage, end.error, end.serial),
        )
        query = "UPDATE response_pieces SET text = NULL, tokens = NULL WHERE response = ?"
        self._database.execute(query, end.serial)

    def _remove(self, serial: int) -> int:
        """How many rows went."""
        query = "DELETE FROM response_pieces WHERE response = ?"
        pieces = self._database.execute(query, serial)
        self._database.execute("DELETE FROM responses WHERE serial = ?", serial)
        return 1 + pieces.rowcount


def on_table(use: Callable[[ResponseTable], T]) -> Callable[[BatchStore], T]:
    """The same for a store, for its thread."""
    return lambda store: use(ResponseTable(store.database))
