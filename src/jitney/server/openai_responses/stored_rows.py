"""Rows of stored responses, and what is made of them. Pure. An answer may be long, so not on the
store's thread and not on the event loop. What cannot be read any more is `Damaged`.

Tests: tests/e2e/openai_responses/test_stored.py and test_store_thread.py.
"""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from jitney.server.openai.replies import Json, dump_json, dump_slices
from jitney.server.openai_responses import limits
from jitney.server.openai_responses.item_list import output_of
from jitney.server.openai_responses.response_object import ResponseState

ENDED_WELL = ("completed", "incomplete")

UNREADABLE = "What was stored of this response cannot be read any more."
MALFORMED = (LookupError, TypeError, AttributeError)
"""What a writer of events raises for deltas that are none."""

Rows = Sequence[sqlite3.Row]
T = TypeVar("T")


class Damaged(Exception):
    """A row that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewResponse:
    """A response to be kept. `task` is the body of its chat, if it is still to be answered."""

    owner: str
    state: ResponseState
    input: list[Json]
    model: str = ""
    """The one that goes on with it."""
    task: Json | None = None
    deltas: Sequence[Json] = ()
    """Its answer, if it has ended."""


class NewRows(NamedTuple):
    """The values of a row to be, and those of its pieces, without the number of the row."""

    values: Json
    pieces: list[Json]


class ResponseRows(NamedTuple):
    """The row of a response, and those of its pieces."""

    row: sqlite3.Row
    pieces: Rows


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


def rows_of(new: NewResponse) -> NewRows:
    """The rows of a response that is kept."""
    state, count = new.state, limits.PIECE_DELTAS
    parts = [list(new.deltas[start : start + count]) for start in range(0, len(new.deltas), count)]
    pieces = [piece_row(AnswerPiece(number, part)) for number, part in enumerate(parts, 1)]
    texts = {"asked": dump_slices(state.asked), "input": dump_slices(new.input)}
    if new.task is not None:
        texts["task"] = dump_slices(new.task)
    values = {
        "id": state.id,
        "owner": new.owner,
        "status": state.status,
        "is_background": state.is_background,
        "is_started": not state.is_background,
        "model": new.model,
        "previous_id": state.asked["previous_response_id"],
        **texts,
        "usage": None if state.usage is None else dump_json(state.usage),
        "bytes": sum(map(bytes_of, (texts, *pieces))),
        "created_at": state.created_at,
        "completed_at": state.completed_at,
    }
    return NewRows(values, pieces)


def piece_row(piece: AnswerPiece) -> Json:
    """The values of its row."""
    tokens = dump_json(piece.tokens) if piece.tokens else None
    deltas = dump_json(piece.deltas)
    return {"number": piece.number, "deltas": deltas, "text": piece.text, "tokens": tokens}


def bytes_of(values: Json) -> int:
    """The bytes of all texts in a row."""
    return sum(len(each.encode()) for each in values.values() if isinstance(each, str))


def response_of(row: sqlite3.Row) -> StoredResponse:
    """Raises Damaged."""
    told = {name: _read(row[name]) for name in ("asked", "usage", "error")}
    plain = {name: row[name] for name in ("id", "created_at", "status", "completed_at")}
    state = {**told, **plain, "is_stored": True, "is_background": bool(row["is_background"])}
    values = {name: _read(row[name]) for name in ("input", "task")}
    values |= {"serial": row["serial"], "owner": row["owner"], "state": state}
    return _checked(values, StoredResponse)


def progress_of(row: sqlite3.Row) -> ResponseProgress:
    """Raises Damaged."""
    told = {name: _read(row[name]) for name in ("usage", "error")}
    return _checked({**dict(row), **told, "is_started": bool(row["is_started"])}, ResponseProgress)


def pieces_from(rows: Rows, after: int = 0) -> list[AnswerPiece]:
    """The pieces behind this number. Raises Damaged."""
    found = [
        _checked(
            {
                "number": row["number"],
                "deltas": _read(row["deltas"]),
                "text": row["text"],
                "tokens": _read(row["tokens"] or "[]"),
            },
            AnswerPiece,
        )
        for row in rows
    ]
    if any(piece.number != number for number, piece in enumerate(found, after + 1)):
        raise Damaged
    return found


def answered(rows: ResponseRows) -> StoredResponse:
    """The response with its answer so far. Raises Damaged."""
    found = response_of(rows.row)
    state = found.state
    deltas = [delta for piece in pieces_from(rows.pieces) for delta in piece.deltas]
    if deltas or state.status in ENDED_WELL:
        try:
            state.output = output_of(state.id, deltas, state.status)
        except MALFORMED:
            raise Damaged from None
    return found


def object_bytes(rows: ResponseRows) -> bytes:
    """What a caller gets, as JSON. Raises Damaged."""
    return dump_slices(answered(rows).state.object()).encode()


def _read(text: str | None) -> Any:  # Any: a JSON value
    try:
        return None if text is None else json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise Damaged from None


def _checked(values: Json, kind: type[T]) -> T:
    """The value of this kind. A row is from a disk: what it says may be anything."""
    try:
        return msgspec.convert(values, kind)
    except (msgspec.ValidationError, RecursionError):
        raise Damaged from None
