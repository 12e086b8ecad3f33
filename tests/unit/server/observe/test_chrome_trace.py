"""The trace: valid Chrome trace events, lanes that do not overlap, and the words of requests."""

import json
from typing import Any

import pytest

from jitney.server import limits
from jitney.server.observe.chrome_trace import ENGINE, REQUESTS, trace_slices
from jitney.server.observe.recorder import (
    EVERYONE,
    MEMBERS_MAX,
    REQUESTS_MAX,
    TICKS_MAX,
    Recorder,
    Viewer,
)
from tests.unit.server.observe.records_for_tests import (
    accepted,
    done,
    member,
    moved,
    progressed,
    recorded,
    started,
    tick,
)


def two_runs() -> Recorder:
    return recorded(
        accepted(0.0, "a", 4, tenant="one"),
        started(0.5, "a", 0.5),
        tick(1.0, 1, member("a", 0, 4, samples=True, slot=2), took_s=0.4),
        accepted(1.0, "b", 2, tenant="two"),
        started(1.0, "b", 0.0),
        tick(
            1.5,
            2,
            member("a", 4, 1, samples=True, slot=2),
            member("b", 0, 2, samples=True, slot=5),
            took_s=0.5,
        ),
        done(1.5, "a"),
    )


# Any: as JSON has it
def events(recorder: Recorder, viewer: Viewer = EVERYONE) -> list[dict[str, Any]]:
    document = json.loads(b"".join(trace_slices(recorder, 3.0, viewer, is_whole=True)))
    assert document["displayTimeUnit"] == "ms"
    found: list[dict[str, Any]] = document["traceEvents"]
    return found


def test_every_event_has_what_the_format_demands() -> None:
    """Guards the file against viewers that drop what they do not understand."""
    for event in events(two_runs()):
        assert {"ph", "name", "pid", "tid", "args"} <= event.keys()
        assert event["ph"] in ("M", "X", "C")
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0


def test_slices_of_a_slot_stand_where_its_ticks_were() -> None:
    """Guards lanes against slices that are shifted or overlap."""
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events(two_runs())
        if event["name"] == "thread_name"
    }
    slices = [each for each in events(two_runs()) if each["ph"] == "X" and each["pid"] == ENGINE]
    lane = [each for each in slices if names[ENGINE, each["tid"]] == "slot 2"]
    assert [(each["name"], each["ts"], each["dur"]) for each in lane] == [
        ("a prefill 4", 600000.0, 400000.0),
        ("a decode", 1000000.0, 500000.0),
    ]
    ticks = [each for each in slices if names[ENGINE, each["tid"]] == "ticks"]
    assert [each["args"]["batch_size"] for each in ticks] == [1, 2]


def test_every_request_has_a_row_with_its_words_and_phases() -> None:
    """Guards the answer to why a request was slow, inside the trace."""
    rows = [each for each in events(two_runs()) if each["ph"] == "X" and each["pid"] == REQUESTS]
    whole = {each["name"]: each for each in rows if "why" in each["args"]}
    assert whole["a"]["dur"] == 1.5e6
    assert whole["a"]["args"]["why"].startswith("Queued 500 ms")
    assert whole["b"]["dur"] == 2.0e6
    assert {each["name"] for each in rows} == {"a", "b", "queued", "prefill", "generating"}


def test_a_tenants_trace_names_no_request_of_another() -> None:
    """Guards tenants against each other: of the other one there are numbers only."""
    found = events(two_runs(), Viewer("two"))
    rows = [each for each in found if each["ph"] == "X" and each["pid"] == REQUESTS]
    assert [each["name"] for each in rows if "why" in each["args"]] == ["b"]
    members = [each for each in found if each["ph"] == "X" and "request" in each["args"]]
    assert [(each["name"], each["args"]["request"]) for each in members] == [
        ("another key prefill 4", None),
        ("another key decode", None),
        ("b prefill 2", "b"),
    ]
    assert [each["name"] for each in found if each["name"].startswith("tick ")]


def test_counters_show_memory_queue_and_batch() -> None:
    """Guards the counters beside the lanes."""
    counters = [each for each in events(two_runs()) if each["ph"] == "C"]
    assert {each["name"] for each in counters} == {"kv tokens", "queue", "batch tokens"}
    batches = [each["args"] for each in counters if each["name"] == "batch tokens"]
    assert batches == [{"decode": 0, "prefill": 4}, {"decode": 1, "prefill": 2}]


def test_an_empty_recorder_is_still_a_trace() -> None:
    """Guards a server that was asked before its first request."""
    assert all(event["ph"] == "M" for event in events(Recorder(512)))


def test_a_move_is_a_moment_in_the_row_of_its_request() -> None:
    """Guards the trace of a cluster: one row for a request, whoever ran it."""
    recorder = recorded(
        accepted(0.0, "a", 4),
        started(1.0, "a", 1.0, replica="r1"),
        progressed(2.0, "a", 1),
        moved(4.0, "a", 37),
        progressed(5.0, "a", 38),
        done(6.0, "a"),
    )
    row = [event for event in events(recorder) if event["pid"] == REQUESTS and event["tid"] == 1]
    names = [event["name"] for event in row if event["ph"] == "X"]
    assert names == ["a", "queued", "prefill", "generating", "moved", "generating"]
    (move,) = [event for event in row if event["ph"] == "i"]
    assert (move["name"], move["ts"]) == ("moved from r1 to r2", 4e6)
    assert move["args"] == {"from": "r1", "to": "r2", "tokens": 37, "reason": "lost"}


def full(wide: int) -> Recorder:
    """A recorder that has all it can hold, with batches of so many."""
    recorder = Recorder(512)
    for number in range(REQUESTS_MAX):
        recorder.take(accepted(0.0, f"r{number}", 4))
        recorder.take(done(1.0, f"r{number}"))
    members = [member(f"r{slot}", 4, 1, samples=True, slot=slot) for slot in range(wide)]
    # One more than is held, so that the oldest is dropped.
    for number in range(ticks_held(wide) + 1):
        recorder.take(tick(1.0 + number, number + 1, *members))
    return recorder


def ticks_held(wide: int) -> int:
    return min(TICKS_MAX, MEMBERS_MAX // wide)


@pytest.fixture(scope="module", params=[1, 8, 512])
def wide(request: pytest.FixtureRequest) -> int:
    """Members of a batch."""
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def full_recorder(wide: int) -> Recorder:
    """One that is only read."""
    return full(wide)


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_trace_is_made_in_slices_and_is_short_unless_all_is_wanted(
    full_recorder: Recorder, wide: int, is_whole: bool
) -> None:
    """Guards everyone else: written out in one go, a full recorder stopped every other thread for
    300 ms, for whoever had a key and asked again and again."""
    head, *slices, tail = trace_slices(full_recorder, 5000.0, EVERYONE, is_whole=is_whole)
    sizes = [len(json.loads(b"[" + each.removeprefix(b",") + b"]")) for each in slices]
    assert max(sizes) == limits.TRACE_SLICE_EVENTS
    found = json.loads(b"".join((head, *slices, tail)))["traceEvents"]
    of_ticks = [each for each in found if each["pid"] == ENGINE and each["ph"] != "M"]
    requests = [each for each in found if "why" in each["args"]]
    assert of_ticks[-1]["ts"] == 1e6 * (1 + ticks_held(wide)), "the last tick is there"
    if is_whole:
        assert len(of_ticks) == ticks_held(wide) * (wide + 4)
        assert len(requests) == REQUESTS_MAX
    else:
        assert limits.TRACE_EVENTS - wide - 4 < len(of_ticks) <= limits.TRACE_EVENTS
        assert len(requests) == limits.TRACE_REQUESTS
