"""Rows of stored responses, and what is made of them. Pure. An answer may be long, so not on the
store's thread and not on the event loop. What cannot be read any more is `Damaged`.

Tests: tests/e2e/openai_responses/test_stored.py and test_store_thread.py.
"""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jitney.server.openai.replies import Json, dump_json, dump_slices
from jitney.server.openai_responses import limits
from jitney.server.openai_responses.item_list import output_of
from jitney.server.openai_responses.response_object import ResponseState

ENDED_WELL = ("completed", "incomplete")

UNREADABLE = "What was stored of this response cannot be read any more."
MALFORMED = (LookupError, TypeError, AttributeError)
"""What a writer of events raises for deltas that are none."""

Rows = Sequence[sqlite3.Row]


class Damaged(Exception):
    """A row that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewResponse:
    """A response to be kept. `task` is the body of its chat, if it is still to be answered."""

    owner: str
    state: ResponseState
    input: list[Json]
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
        "model": state.asked["model"],
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
        state=state,
        input=_read(row["input"]),
        task=_read(row["task"]),
    )


def progress_of(row: sqlite3.Row) -> ResponseProgress:
    """Raises Damaged."""
    told = _read(row["usage"]), _read(row["error"])
    return ResponseProgress(row["status"], bool(row["is_started"]), *told, row["completed_at"])


def pieces_from(rows: Rows, after: int = 0) -> list[AnswerPiece]:
    """The pieces behind this number. Raises Damaged."""
    found: list[AnswerPiece] = []
    for number, row in enumerate(rows, after + 1):
        if row["number"] != number:
            raise Damaged
        tokens = tuple(_read(row["tokens"]) or ())
        found.append(AnswerPiece(number, _read(row["deltas"]), row["text"], tokens))
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
