"""The flight recorder: what it keeps of ticks and requests, and that it never keeps more."""

import threading
from dataclasses import replace
from typing import Any  # Any: what a method is given

import pytest

from jitney.core.request import RequestId
from jitney.records import Record, RequestAccepted
from jitney.server.observe.recorder import MEMBERS_MAX, Recorder, Viewer
from jitney.server.observe.story import Story
from tests.simulation.simulator import Simulation
from tests.simulation.world import draw_world
from tests.unit.server.observe.records_for_tests import (
    accepted,
    done,
    member,
    progressed,
    recorded,
    started,
    story_of,
    tick,
)

LENGTH_MAX = 512


def behind(at: float, name: str) -> RequestAccepted:
    """A background request was accepted."""
    return replace(accepted(at, name, 4), is_background=True)


def test_who_was_there_first_is_counted_on_arrival() -> None:
    """Guards "queued behind 3 requests"."""
    recorder = recorded(
        *(accepted(0.0, name, 4) for name in ("a", "b", "c")),
        started(1.0, "a", 1.0),
        done(1.5, "b", cancelled=True),
        accepted(2.0, "d", 4),
    )
    story = story_of(recorder, "d")
    assert (story.waiting_before, story.running_before) == (1, 1)


def test_a_live_request_is_behind_no_background_one() -> None:
    """Guards the same sentence beside a batch: what sits behind is not what it waits for."""
    background = (behind(0.0, "x"), behind(0.0, "y"), started(0.0, "x", 0.0))
    recorder = recorded(*background, accepted(1.0, "a", 4), behind(1.0, "z"))
    story = story_of(recorder, "a")
    assert (story.waiting_before, story.running_before) == (0, 1)
    assert story_of(recorder, "z").waiting_before == 2


def test_times_of_background_requests_are_in_no_histogram_and_no_percentile() -> None:
    """Guards operators: a line of a batch may wait for hours, and nobody waits for it. Its tokens
    are counted."""
    recorder = Recorder(LENGTH_MAX)
    for name, begin in (("a", accepted(0.0, "a", 4)), ("x", behind(0.0, "x"))):
        recorder.take(begin)
        recorder.take(started(1.0, name, 1.0))
        recorder.take(tick(2.0, 1, member(name, 0, 4, samples=True)))
        recorder.take(tick(3.0, 2, member(name, 4, 1, samples=True)))
        recorder.take(done(3.0, name))
    found = recorder.histograms()
    counts = {name: sum(each.counts) for name, each in found.items()}
    assert {name for name, count in counts.items() if count == 4} == {
        "tick_seconds", "forward_seconds", "tick_tokens",
    }  # fmt: skip
    assert {name for name, count in counts.items() if count == 2} == {
        "request_prompt_tokens", "request_completion_tokens",
        "vllm:request_prefill_kv_computed_tokens", "vllm:request_max_num_generation_tokens",
        "vllm:request_params_n", "vllm:request_params_max_tokens",
    }  # fmt: skip
    assert sorted(counts.values()) == [1] * 8 + [2] * 6 + [4] * 3, "the rest are times"
    assert (found.prefill_s, found.generation_s) == (2.0, 2.0), "llama-server's sums are of all"
    latencies = {name: len(values) for name, values in recorder.latencies().items()}
    assert latencies == {"first_token": 1, "gap": 1, "whole": 1}


def test_times_between_tokens_that_were_made_elsewhere_are_counted() -> None:
    """Guards the latencies of a cluster, whose ticks happen elsewhere; not those of batches."""
    recorder = recorded(accepted(0.0, "a", 4), behind(0.0, "x"))
    for name in ("a", "x"):
        recorder.take(progressed(1.0, name, 1))
        recorder.take(progressed(1.5, name, 3, 0.2, 0.3))
    assert recorder.latencies()["gap"] == [0.2, 0.3]
    token_gap = recorder.histograms()["token_gap_seconds"]
    assert (sum(token_gap.counts), token_gap.total) == (2, 0.5)


def test_only_the_last_ticks_and_requests_are_kept() -> None:
    """Guards memory: a server runs for months."""
    recorder = Recorder(LENGTH_MAX, ticks_max=5, requests_max=3)
    for number in range(1, 21):
        recorder.take(accepted(float(number), str(number), 4))
        recorder.take(tick(float(number), number, member(str(number), 0, 4, samples=True)))
        recorder.take(done(float(number), str(number)))
    assert [each.number for each in recorder.ticks()] == [16, 17, 18, 19, 20]
    assert [each.id for each in recorder.stories()] == ["20", "19", "18"]
    assert recorder.story(RequestId("17")) is None


def test_wide_batches_make_fewer_ticks_kept() -> None:
    """Guards memory against batches of hundreds of sequences."""
    width = 1024
    members = [member(f"r{at}", 5, 1, samples=True, slot=at) for at in range(width)]
    count = MEMBERS_MAX // width + 20
    ticks = recorded(*(tick(float(at), at, *members) for at in range(1, count + 1))).ticks()
    assert sum(len(each.members) for each in ticks) <= MEMBERS_MAX
    assert ticks[-1].number == count


def test_ticks_after_a_number_are_those_a_page_has_not_seen() -> None:
    """Guards the page against ticks that are drawn twice."""
    recorder = recorded(*(tick(float(number), number) for number in range(1, 11)))
    assert [each.number for each in recorder.ticks(after=7)] == [8, 9, 10]
    assert [each.number for each in recorder.ticks(after=0, count_max=2)] == [9, 10]


def test_each_viewer_gets_its_own_stories_and_the_times_of_all() -> None:
    """Guards tenants against each other, and percentiles against what they may not read."""
    recorder = Recorder(LENGTH_MAX)
    for number, tenant in enumerate(("one", "two", "one", "two")):
        recorder.take(accepted(float(number), str(number), 4, tenant=tenant))
        recorder.take(started(float(number), str(number), 0.0))
        recorder.take(tick(number + 0.5, number + 1, member(str(number), 0, 4, samples=True)))
    recorder.take(done(10.0, "0"))
    recorder.take(done(11.0, "1", cancelled=True))
    assert [each.id for each in recorder.stories(viewer=Viewer("one"))] == ["2", "0"]
    assert [each.id for each in recorder.stories(1, Viewer("two"))] == ["3"]
    assert [each.id for each in recorder.stories()] == ["3", "2", "1", "0"]
    known = [recorder.find(RequestId(name)) for name in ("0", "3", "none")]
    accepted_records = [each and each.accepted for each in known]
    facts = [
        each and (each.tenant, each.prompt_tokens, each.max_tokens) for each in accepted_records
    ]
    assert facts == [("one", 4, 64), ("two", 4, 64), None]
    assert sorted(recorder.latencies()["first_token"]) == [0.5] * 4
    assert recorder.latencies()["whole"] == [10.0]


def test_reading_while_the_engine_writes_gives_whole_stories() -> None:
    """Guards readers of other threads: a story that is copied does not change under them."""
    recorder = Recorder(LENGTH_MAX, ticks_max=64, requests_max=8)
    stopping = threading.Event()

    def write() -> None:
        for number in range(1, 2001):
            name = str(number)
            recorder.take(accepted(float(number), name, 4))
            recorder.take(started(float(number), name, 0.0))
            recorder.take(tick(float(number), number, member(name, 0, 4, samples=True)))
            recorder.take(done(float(number), name))
        stopping.set()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    seen = 0
    while not stopping.is_set():
        stories = recorder.stories()
        assert len(stories) <= 9
        assert all(story.completion_tokens == len(story.progress) for story in stories)
        seen += len(recorder.ticks())
    writer.join(30)
    assert len(recorder.stories()) == 8


def records_of(seed: int) -> list[Record]:
    """What an engine of the simulation records: it preempts, pauses and loses its backend."""
    simulation = Simulation(draw_world(seed))
    records: list[Record] = []
    simulation._tick._observers.add(records.append)
    simulation.run()
    return records


@pytest.mark.parametrize("seed", [0, 2, 3, 8])
def test_the_short_way_of_a_token_tells_the_same_story(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards what most tokens pass: they only go on."""
    records = records_of(seed)
    gone_on: list[bool] = []
    usual = Story.goes_on

    def watched(*given: Any) -> bool:
        gone_on.append(usual(*given))
        return gone_on[-1]

    monkeypatch.setattr(Story, "goes_on", watched)
    short = recorded(*records)
    monkeypatch.setattr(Story, "goes_on", lambda *_: False)
    whole = recorded(*records)
    assert short.stories() == whole.stories()
    assert sorted(short.latencies()["gap"]) == sorted(whole.latencies()["gap"])
    for name, histogram in short.histograms().items():
        other = whole.histograms()[name]
        assert histogram.counts == other.counts
        assert histogram.total == pytest.approx(other.total)
    assert any(gone_on), "some only go on"
