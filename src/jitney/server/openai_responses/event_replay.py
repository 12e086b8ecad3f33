"""Events of a stored response, from any number on: `EventReplay`.

Between two turns it holds a number, a place in the stored pieces, and the head of the item that is
open. Events that have a whole item, or the whole response, are made from rows when their turn
comes. A turn has two steps: rows are read on the store's thread, and a worker thread makes events.

Tests: tests/e2e/openai_responses/test_stored.py, test_feeds.py and test_background.py.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from jitney.server.batches.store import BatchStore
from jitney.server.openai_responses import limits
from jitney.server.openai_responses.item_events import DONE, Content, ItemWriter
from jitney.server.openai_responses.item_list import Atom, atoms_of
from jitney.server.openai_responses.response_table import ResponseTable
from jitney.server.openai_responses.stored_rows import (
    MALFORMED,
    UNREADABLE,
    Damaged,
    Rows,
    StoredResponse,
    pieces_from,
    response_of,
)

_DELETED = "The response was deleted, or has expired, while it was read; no more of it comes."
_AtomPlace = tuple[int, int]
"""A piece, and an atom in it."""

_ALL = 1 << 32
_LAST_EVENTS = 6
"""At most: an empty message begins and ends, and the response ends."""

_DELTAS_FACTOR, _WHOLE_FACTOR = 8, 3
"""Bytes that are held for each one that is stored. The event of a delta has 200 for a token of
four, which is 25 in the store; the events of an end have the same bytes."""

_QUERY_ROW = (
    "SELECT serial, id, owner, status, is_background, asked, usage, error, created_at, "
    "completed_at, '[]' AS input, NULL AS task FROM responses WHERE serial = ?"
)
_QUERY_ASKED = "SELECT length(asked) FROM responses WHERE serial = ?"
_QUERY_SIZES = (
    "SELECT length(deltas) AS size FROM response_pieces "
    "WHERE response = ? AND number >= ? ORDER BY number LIMIT ?"
)
_QUERY_SIZE = (
    "SELECT sum(length(deltas)) FROM response_pieces "
    "WHERE response = ? AND number >= ? AND number < ?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTurn:
    """What is done next, and what there is for it."""

    kind: Literal["gone", "opening", "deltas", "closing", "last", "wait"]
    size: int = 0
    """What it takes, about, in bytes: rows and events."""
    progress: sqlite3.Row | None = None
    row: sqlite3.Row | None = None
    """The response, if events have all of it."""
    first: int = 1
    """The number of the first piece."""
    pieces: Rows = ()
    is_short: bool = False
    """Whether there is too little room for it: nothing was read."""
    has_more: bool = True
    """Whether more can be read at once."""


class EventReplay:
    """The events of one stored response behind a number, as far as they are."""

    def __init__(self, found: StoredResponse, after: int) -> None:
        self.serial = found.serial
        self._id = found.state.id
        self._is_background = found.state.is_background
        self._after = after
        self._writer = ItemWriter(self._id, after, keeps=False)
        self._told: list[str] = []
        """Kinds of the first events that were told."""
        self._next: _AtomPlace = (1, 0)
        self._begun: _AtomPlace = (1, 0)
        """Where the open item begins."""
        self._is_closing = False
        """Whether the open item ends before what is next."""
        self.has_more = True
        """Whether there was more to read at once."""
        self.is_over = False

    def turn(self, store: BatchStore, room: int) -> ReplayTurn:
        """What is next, with rows from the store if there is room for them. Its thread."""
        progress = ResponseTable(store.database).progress(self.serial)
        if progress is None:
            return ReplayTurn(kind="gone")
        if openings := self._openings(progress):
            if not self._writer.wants(len(openings)):
                return ReplayTurn(kind="opening", progress=progress)
            return self._rows(store, room, ReplayTurn(kind="opening", progress=progress))
        if self._is_closing:
            count = self._next[0] - self._begun[0] + 1
            closing = ReplayTurn(kind="closing", progress=progress, first=self._begun[0])
            return self._rows(store, room, closing, count)
        return self._deltas_turn(store, room, progress)

    def _deltas_turn(self, store: BatchStore, room: int, progress: sqlite3.Row) -> ReplayTurn:
        first = self._next[0]
        sizes = store.database.rows(_QUERY_SIZES, self.serial, first, limits.READ_PIECES)
        is_ended = progress["status"] not in ("queued", "in_progress")
        if not sizes and is_ended:
            last = ReplayTurn(kind="last", progress=progress)
            if not self._writer.wants(self._writer.closing_count + _LAST_EVENTS):
                return last
            return self._rows(store, room, last, _ALL)
        if not sizes:
            return ReplayTurn(kind="wait", progress=progress, has_more=False)
        size = count = 0
        for each in sizes:
            if count and size + each["size"] > limits.READ_CHARACTERS:
                break
            size, count = size + each["size"], count + 1
        has_more = is_ended or count < len(sizes) or count == limits.READ_PIECES
        deltas = ReplayTurn(kind="deltas", progress=progress, first=first, has_more=has_more)
        return self._rows(store, room, deltas, count)

    def _rows(self, store: BatchStore, room: int, turn: ReplayTurn, count: int = 0) -> ReplayTurn:
        """The same turn with its rows, if there is room."""
        database, last = store.database, turn.first + count
        size = database.value(_QUERY_SIZE, self.serial, turn.first, last) or 0
        if turn.kind in ("opening", "last"):
            size += database.value(_QUERY_ASKED, self.serial)
        size *= _DELTAS_FACTOR if turn.kind == "deltas" else _WHOLE_FACTOR
        if size > room:
            return replace(turn, size=size, is_short=True)
        row = None
        if turn.kind in ("opening", "last"):
            row = database.row(_QUERY_ROW, self.serial)
        pieces = ResponseTable(database).pieces(self.serial, turn.first - 1, count)
        return replace(turn, size=size, row=row, pieces=pieces)

    def read(self, turn: ReplayTurn) -> list[bytes]:
        """Its events, in parts; the last is an error if rows are gone, or cannot be read. A worker
        thread."""
        self.has_more = turn.has_more
        try:
            if turn.kind != "gone":
                return list(self._events(turn))
        except (Damaged, *MALFORMED):
            self.is_over = True
            return self._writer.error("server_error", UNREADABLE)
        finally:
            self._writer.forget()
        self.is_over = True
        return self._writer.error("response_not_found", _DELETED)

    def _events(self, turn: ReplayTurn) -> Iterable[bytes]:
        match turn.kind:
            case "opening":
                return self._opening(turn)
            case "deltas":
                return [b"".join(self._deltas(turn))]
            case "closing":
                return self._closing(turn)
            case "last":
                self.is_over = True
                return self._last(turn) if turn.row is not None else [DONE]
        return []

    def _openings(self, progress: sqlite3.Row) -> list[str]:
        """The first events that were not told yet."""
        queued = ["response.queued"] if self._is_background else []
        started = ["response.in_progress"] if progress["is_started"] else []
        return ["response.created", *queued, *started][len(self._told) :]

    def _opening(self, turn: ReplayTurn) -> list[bytes]:
        """The first events, with the response as it was then."""
        assert turn.progress is not None, "it is there"
        kinds = self._openings(turn.progress)
        self._told += kinds
        if turn.row is None:
            self._writer.event_count += len(kinds)
            return []
        events: list[bytes] = []
        told = response_of(turn.row).state
        told.usage = told.error = told.completed_at = None
        for kind in kinds:
            is_queued = self._is_background and kind != "response.in_progress"
            told.status = "queued" if is_queued else "in_progress"
            events += self._writer.tell(told.object(), kind)
        return events

    def _deltas(self, turn: ReplayTurn) -> Iterator[bytes]:
        """Events up to the end of an item that did not begin here."""
        for place, atom in _atoms(turn, self._next):
            if self._writer.begins(atom):
                self._next = place
                self._is_closing = self._writer.misses_content
                if self._is_closing:
                    self.has_more = True
                    return
                self._begun = place
            yield from self._writer.take(atom)
        self._next = (turn.first + len(turn.pieces), 0)

    def _closing(self, turn: ReplayTurn) -> list[bytes]:
        """Events of the end of the open item."""
        content, item = Content(), self._writer.open
        assert item is not None, "it is closed"
        for place, atom in _atoms(turn, self._begun):
            if place < self._next and item.takes(atom):
                content.add(atom)
        self._is_closing = False
        return self._writer.end_item(content=content)

    def _last(self, turn: ReplayTurn) -> list[bytes]:
        """The rest, by a writer that keeps what is in the items."""
        assert turn.row is not None, "it was read"
        state = response_of(turn.row).state
        writer = ItemWriter(self._id, max(self._after, self._writer.event_count - 1))
        writer.event_count = len(self._told)
        for _, atom in _atoms(turn, (1, 0)):
            writer.take(atom)
        events = writer.close("completed" if state.status == "completed" else "incomplete")
        return events + writer.end(state.object())


def _atoms(turn: ReplayTurn, begin: _AtomPlace) -> Iterator[tuple[_AtomPlace, Atom]]:
    """What is in the pieces of a turn from this place on, piece by piece. Raises Damaged."""
    for number, row in enumerate(turn.pieces, turn.first):
        (piece,) = pieces_from([row], number - 1)
        atoms = (atom for delta in piece.deltas for atom in atoms_of(delta))
        for place, atom in enumerate(atoms):
            if (number, place) >= begin:
                yield (number, place), atom
