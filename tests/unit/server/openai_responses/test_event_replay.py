"""Tests of `EventReplay`: what it holds between two turns, and that its events are those of the
writer."""

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jitney.server.batches.store import BatchStore
from jitney.server.openai_responses import limits
from jitney.server.openai_responses.event_replay import EventReplay
from jitney.server.openai_responses.item_list import output_of
from jitney.server.openai_responses.response_object import ResponseState
from jitney.server.openai_responses.response_table import ResponseTable
from jitney.server.openai_responses.stored_rows import NewResponse, response_of, rows_of

ASKED = {"model": "fake", "previous_response_id": None, "instructions": "x" * 300_000}
ROW = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}
ALL = 1 << 40
HELD_MAX = 20_000


def deltas() -> list[dict[str, Any]]:
    """A thought, a message with logprobs, calls in one delta and over several, and a message."""
    calls = [
        {"index": at, "id": f"call{at}", "function": {"name": "go", "arguments": "{}" * 50}}
        for at in range(3)
    ]
    more = {"index": 2, "function": {"arguments": " " * 200}}
    return [
        *[{"delta": {"reasoning_content": f"so {at} "}} for at in range(1000)],
        *[{"delta": {"content": "a"}, "logprobs": [ROW]} for at in range(1500)],
        {"delta": {"tool_calls": calls}, "logprobs": [ROW]},
        *[{"delta": {"tool_calls": [more]}} for _ in range(600)],
        *[{"delta": {"content": "bus "}, "logprobs": [ROW]} for at in range(600)],
    ]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BatchStore]:
    opened = BatchStore(tmp_path / "jobs")
    yield opened
    opened.close()


def replay_of(store: BatchStore, after: int = -1) -> EventReplay:
    """The events of the one stored response."""
    table = ResponseTable(store.database)
    row = table.find("", "resp_1")
    if row is None:
        state = ResponseState(id="resp_1", asked=ASKED, created_at=0, status="completed")
        table.add(rows_of(NewResponse(owner="", state=state, input=[], deltas=deltas())))
        row = table.find("", "resp_1")
        assert row is not None
    return EventReplay(response_of(row), after)


def held_bytes(holder: object) -> int:
    """What an object keeps alive, without classes and modules."""
    seen, found, size = {id(holder)}, [holder], 0
    while found:
        each = found.pop()
        size += sys.getsizeof(each)
        for inner in gc.get_referents(each):
            if id(inner) not in seen and not isinstance(inner, type | ModuleType):
                seen.add(id(inner))
                found.append(inner)
    return size


def read_again(store: BatchStore, after: int) -> list[dict[str, Any]]:
    """All events behind a number."""
    replay, sent = replay_of(store, after), b""
    while not replay.is_over:
        sent += b"".join(replay.read(replay.turn(store, ALL)))
        assert replay.has_more or replay.is_over, "its reader would wait for news of what has ended"
    *blocks, last, rest = sent.decode().split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return [json.loads(each.split("\n")[1].removeprefix("data: ")) for each in blocks]


@pytest.mark.parametrize("after", [-1, 1003, 2550, 1 << 53])
def test_a_reader_holds_nothing_of_the_answer(store: BatchStore, after: int) -> None:
    """Guards memory: a key may have hundreds of readers of its longest answers."""
    replay = replay_of(store, after)
    while not replay.is_over:
        replay.read(replay.turn(store, ALL))
        assert held_bytes(replay) < HELD_MAX


def test_its_events_are_those_of_the_writer(store: BatchStore) -> None:
    """Guards whoever reads an answer again: from any number on, whatever a turn has."""
    events = read_again(store, -1)
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    output = output_of("resp_1", deltas(), "completed")
    assert events[-1]["response"]["output"] == output
    done = [each["item"] for each in events if each["type"] == "response.output_item.done"]
    assert done == output
    for after in range(0, len(events), 97):
        assert read_again(store, after) == events[after + 1 :]


def test_nothing_is_read_without_room(store: BatchStore) -> None:
    """Guards memory: what a turn needs is known before it is read, and each turn is short of it or
    takes no more."""
    replay = replay_of(store)
    short, parts = 0, []
    while not replay.is_over:
        turn = replay.turn(store, limits.FEED_FREE_BYTES)
        if turn.is_short:
            short += 1
            assert (turn.row, len(turn.pieces)) == (None, 0)
            turn = replay.turn(store, turn.size)
        assert not turn.is_short
        parts = replay.read(turn)
        own = {id(part): len(part) for part in parts}
        assert sum(own.values()) <= max(turn.size, limits.FEED_FREE_BYTES), turn.kind
    assert short > 2


def test_a_reader_that_wants_nothing_reads_no_end(store: BatchStore) -> None:
    """Guards the processor: who asks from behind the end has it at no cost."""
    replay = replay_of(store, 1 << 53)
    while not replay.is_over:
        turn = replay.turn(store, ALL)
        assert turn.row is None
        assert turn.kind != "closing"
        parts = replay.read(turn)
    assert parts == [b"data: [DONE]\n\n"]
