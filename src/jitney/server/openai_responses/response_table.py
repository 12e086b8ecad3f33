"""Stored responses: `ResponseTable`. The store's thread.

A response is a row, and what its answer is made of are pieces behind it: the deltas of a chat, from
which events and items are made again (`item_events`). While a background response runs, a piece
also has the text and the tokens of the engine, so that another process can go on from them. A piece
is in the store before anybody sees it, and the end of a response is one transaction with its last
piece: so its events have one order, whatever was killed when.

Every change names the states it starts from. A cancel and an end that cross do no harm: the first
one counts. What cannot be read any more is damaged, and says so; the others are not touched.

Tests: tests/e2e/openai_responses/test_stored.py and test_background.py.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jitney.server.batches.database import Database
from jitney.server.batches.store import BatchStore
from jitney.server.error_object import NO_RETRY, Refusal
from jitney.server.openai.replies import Json, dump_json
from jitney.server.openai_responses import limits
from jitney.server.openai_responses.item_events import output_of
from jitney.server.openai_responses.response_object import ResponseState

T = TypeVar("T")

_LIVE = "IN ('queued', 'in_progress')"
_ENDED_WELL = ("completed", "incomplete")
_FORGOTTEN_MAX = 64
"""The most that one new response makes forgotten: it needs the room of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewResponse:
    """A response to be kept. `task` is the body of its chat, if it is still to be answered."""

    owner: str
    state: ResponseState
    input: list[Json]
    task: Json | None = None


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """A part of an answer: deltas of a chat and, while it runs, what the engine made."""

    number: int
    deltas: list[Json]
    text: str | None = None
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """One response, without its answer."""

    serial: int
    owner: str
    model: str
    is_started: bool
    previous_id: str | None
    state: ResponseState
    input: list[Json]
    task: Json | None


@dataclass(frozen=True, slots=True)
class ResponseProgress:
    """What changes of a response, without its answer."""

    status: str
    is_started: bool
    usage: Json | None
    error: Json | None
    completed_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a response ended, and its last piece, if there is one."""

    serial: int
    status: str
    now: int
    usage: Json | None = None
    error: Json | None = None
    piece: AnswerPiece | None = None


class Damaged(Exception):
    """A row that cannot be read."""


class ResponseTable:
    """All stored responses and their pieces. A view of an open store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, new: NewResponse, deltas: Sequence[Json] | None = None) -> None:
        """Keep a response; with its deltas, if it has ended. Raises Refusal if too many run."""
        state = new.state
        asked, given = dump_json(state.asked), dump_json(new.input)
        task = None if new.task is None else dump_json(new.task)
        values = {
            "id": state.id,
            "owner": new.owner,
            "status": state.status,
            "is_background": state.is_background,
            "is_started": not state.is_background,
            "model": state.asked["model"],
            "previous_id": state.asked["previous_response_id"],
            "asked": asked,
            "input": given,
            "task": task,
            "usage": None if state.usage is None else dump_json(state.usage),
            "bytes": sum(len(each.encode()) for each in (asked, given, task or "")),
            "created_at": state.created_at,
            "completed_at": state.completed_at,
        }
        with self._database.transaction():
            self._check_live(new, values["bytes"])
            serial = self._database.insert("responses", values)
            for number, start in enumerate(range(0, len(deltas or ()), limits.PIECE_DELTAS), 1):
                part = list((deltas or ())[start : start + limits.PIECE_DELTAS])
                self._add_piece(serial, AnswerPiece(number, part))
            self._forget_oldest(new.owner, serial)

    def _check_live(self, new: NewResponse, new_bytes: int) -> None:
        """They are not forgotten to make room, so they are refused."""
        if new.task is None:
            return
        query = (
            "SELECT count(*), coalesce(sum(bytes), 0) FROM responses "
            f"WHERE owner = ? AND status {_LIVE}"
        )
        ((count, size),) = self._database.rows(query, new.owner)
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
            f"SELECT serial, bytes FROM responses WHERE owner = ? AND NOT status {_LIVE} "
            "AND serial != ? ORDER BY serial LIMIT ?",
            *(owner, kept, _FORGOTTEN_MAX),
        )
        for row in oldest:
            if count <= limits.KEPT_MAX and size <= limits.KEPT_BYTES_MAX:
                return
            count, size = count - 1, size - row["bytes"]
            self._remove(row["serial"])

    def find(self, owner: str, response_id: str) -> StoredResponse | None:
        """The owner's response with this id, with its answer so far. Raises Refusal."""
        row = self._database.find("responses", owner, response_id)
        if row is None:
            return None
        try:
            found = _response_of(row)
            self._read_output(found)
        except Damaged:
            message = "What was stored of this response cannot be read any more."
            raise Refusal("response_damaged", message, headers=NO_RETRY) from None
        return found

    def _read_output(self, found: StoredResponse) -> None:
        state = found.state
        deltas = [delta for piece in self.pieces(found.serial) for delta in piece.deltas]
        if not deltas and state.status not in _ENDED_WELL:
            return
        try:
            state.output = output_of(state.id, deltas, state.status)
        except (LookupError, TypeError, AttributeError):
            raise Damaged from None

    def progress(self, serial: int) -> ResponseProgress | None:
        """How far a response is; None if it was removed. Raises Damaged."""
        query = (
            "SELECT status, is_started, usage, error, completed_at FROM responses WHERE serial = ?"
        )
        row = self._database.row(query, serial)
        if row is None:
            return None
        told = _read(row["usage"]), _read(row["error"])
        return ResponseProgress(row["status"], bool(row["is_started"]), *told, row["completed_at"])

    def pieces(self, serial: int, after: int = 0, count: int = -1) -> list[AnswerPiece]:
        """Pieces behind this number, at most so many. Raises Damaged."""
        query = (
            "SELECT * FROM response_pieces WHERE response = ? AND number > ? "
            "ORDER BY number LIMIT ?"
        )
        found: list[AnswerPiece] = []
        for row in self._database.each(query, serial, after, count):
            if row["number"] != after + len(found) + 1:
                raise Damaged
            tokens = tuple(_read(row["tokens"]) or ())
            found.append(AnswerPiece(row["number"], _read(row["deltas"]), row["text"], tokens))
        return found

    def conversation(self, owner: str, response_id: str, bytes_max: int) -> list[Json]:
        """The items of a response and of all before it: input and answer of each. Raises
        Refusal."""
        parts: list[list[Json]] = []
        next_id: str | None = response_id
        while next_id is not None:
            found = self.find(owner, next_id)
            if found is None:
                raise _not_found(is_first=next_id == response_id)
            if found.state.status not in _ENDED_WELL:
                message = f"The response is {found.state.status}; wait until it is completed."
                raise Refusal("invalid_value", message, param="previous_response_id")
            parts.append([*found.input, *found.state.output])
            bytes_max -= sum(len(dump_json(each)) for each in parts[-1])
            if bytes_max < 0 or len(parts) > limits.LINKS_MAX:
                message = "The conversation is too long; begin a new one."
                raise Refusal("invalid_value", message, param="previous_response_id")
            next_id = found.previous_id
        items = [item for part in reversed(parts) for item in part]
        if len(items) > limits.ITEMS_MAX:
            message = f"The conversation has more than {limits.ITEMS_MAX} items; begin a new one."
            raise Refusal("invalid_value", message, param="previous_response_id")
        return items

    def live(self, after: int, count: int) -> list[tuple[int, str, str]]:
        """Responses behind this one that have not ended: serial, owner and model."""
        query = (
            f"SELECT serial, owner, model FROM responses WHERE status {_LIVE} AND serial > ? "
            "ORDER BY serial LIMIT ?"
        )
        return [tuple(row) for row in self._database.rows(query, after, count)]

    def begin(self, serial: int) -> tuple[StoredResponse, list[AnswerPiece]] | None:
        """It runs now: the response and what it has; None if it has ended. Raises Damaged."""
        with self._database.transaction():
            changed = self._database.execute(
                "UPDATE responses SET status = 'in_progress', is_started = 1 "
                f"WHERE serial = ? AND status {_LIVE}",
                serial,
            )
            if not changed.rowcount:
                return None
            row = self._database.row("SELECT * FROM responses WHERE serial = ?", serial)
            assert row is not None, serial
        return _response_of(row), self.pieces(serial)

    def keep(self, pieces: Iterable[tuple[int, AnswerPiece]], ends: Iterable[Ended] = ()) -> None:
        """Add pieces to responses that have not ended, and end others. All in one transaction."""
        with self._database.transaction():
            for serial, piece in pieces:
                if self._is_live(serial):
                    self._add_piece(serial, piece)
            for end in ends:
                self._end(end)

    def cancel(self, owner: str, response_id: str, now: int) -> StoredResponse | None:
        """End a background response, unless it has ended; as it is then."""
        found = self.find(owner, response_id)
        if found is None:
            return None
        if not found.state.is_background:
            message = "Only background responses can be cancelled; end the call of another one."
            raise Refusal("invalid_value", message)
        with self._database.transaction():
            self._end(Ended(serial=found.serial, status="cancelled", now=now))
        return self.find(owner, response_id)

    def remove(self, owner: str, response_id: str) -> int | None:
        """Remove the owner's response: its serial; None if it is not there."""
        with self._database.transaction():
            row = self._database.find("responses", owner, response_id)
            if row is None:
                return None
            self._remove(row["serial"])
        return int(row["serial"])

    def sweep(self, now: int) -> int:
        """Remove some of the responses that are expired; how many."""
        query = "SELECT serial FROM responses WHERE created_at < ? ORDER BY created_at LIMIT ?"
        with self._database.transaction():
            rows = self._database.rows(query, now - limits.EXPIRY_S, limits.SWEEP_RESPONSES)
            for row in rows:
                self._remove(row["serial"])
        return len(rows)

    def counts(self) -> dict[str, int]:
        """How many responses are in each state."""
        rows = self._database.rows("SELECT status, count(*) FROM responses GROUP BY status")
        return dict(map(tuple, rows))

    def _is_live(self, serial: int) -> bool:
        query = f"SELECT 1 FROM responses WHERE serial = ? AND status {_LIVE}"
        return self._database.row(query, serial) is not None

    def _add_piece(self, serial: int, piece: AnswerPiece) -> None:
        tokens = dump_json(piece.tokens) if piece.tokens else None
        deltas = dump_json(piece.deltas)
        values = {"deltas": deltas, "text": piece.text, "tokens": tokens}
        place = {"response": serial, "number": piece.number}
        self._database.insert("response_pieces", {**place, **values})
        size = len(deltas.encode()) + len((piece.text or "").encode())
        query = "UPDATE responses SET bytes = bytes + ? WHERE serial = ?"
        self._database.execute(query, size + len(tokens or ""), serial)

    def _end(self, end: Ended) -> None:
        if not self._is_live(end.serial):
            return
        if end.piece is not None and end.piece.deltas:
            self._add_piece(end.serial, end.piece)
        usage = None if end.usage is None else dump_json(end.usage)
        error = None if end.error is None else dump_json(end.error)
        self._database.execute(
            "UPDATE responses SET status = ?, completed_at = ?, usage = ?, error = ?, task = NULL "
            "WHERE serial = ?",
            *(end.status, end.now, usage, error, end.serial),
        )
        query = "UPDATE response_pieces SET text = NULL, tokens = NULL WHERE response = ?"
        self._database.execute(query, end.serial)

    def _remove(self, serial: int) -> None:
        self._database.execute("DELETE FROM response_pieces WHERE response = ?", serial)
        self._database.execute("DELETE FROM responses WHERE serial = ?", serial)


def on_table(use: Callable[[ResponseTable], T]) -> Callable[[BatchStore], T]:
    """The same for a store, for its thread."""
    return lambda store: use(ResponseTable(store.database))


def _not_found(*, is_first: bool) -> Refusal:
    message = "There is no response with this id."
    if not is_first:
        message = "An earlier response of this conversation was deleted, or has expired."
    return Refusal("response_not_found", message, param="previous_response_id")


def _response_of(row: Any) -> StoredResponse:
    """Raises Damaged."""
    state = ResponseState(
        id=row["id"],
        asked=_read(row["asked"]),
        created_at=row["created_at"],
        status=row["status"],
        completed_at=row["completed_at"],
        usage=_read(row["usage"]),
        error=_read(row["error"]),
        is_stored=True,
        is_background=bool(row["is_background"]),
    )
    if not isinstance(state.asked, dict):
        raise Damaged
    return StoredResponse(
        serial=row["serial"],
        owner=row["owner"],
        model=row["model"],
        is_started=bool(row["is_started"]),
        previous_id=row["previous_id"],
        state=state,
        input=_read(row["input"]),
        task=_read(row["task"]),
    )


def _read(text: str | None) -> Any:  # Any: a JSON value
    try:
        return None if text is None else json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise Damaged from None
