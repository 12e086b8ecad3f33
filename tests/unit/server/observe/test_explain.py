"""Explanations: the words for what was recorded, and phases that add up to a life."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from jitney.core.events import PreemptReason
from jitney.core.request import Priority, RequestId
from jitney.server.observe.explain import duration_text, explain, phases
from jitney.server.observe.story import Gap, Loss, Story
from tests.unit.server.observe.records_for_tests import (
    accepted,
    done,
    member,
    moved,
    preempted,
    progressed,
    recorded,
    started,
    story_of,
    tick,
)

ACCEPTED = replace(accepted(100.0, "a", 1000), max_tokens=None)


def story(**changes: Any) -> Story:  # Any: whatever a Story takes
    """A request that ran for two seconds without incident."""
    names = ("arrived_at", "completions")
    accepted_changes = {name: changes.pop(name) for name in names if name in changes}
    one = Story(replace(ACCEPTED, **accepted_changes), changes.pop("waiting_before", 0), 0)
    started_at = changes.pop("started_at", 100.0)
    if started_at is not None:
        one.start(started(started_at, "a", 0.0, cached=changes.pop("cached_tokens", 0)))
    usual: dict[str, Any] = {
        "prefill_ticks": 2,
        "prefill_tokens": 1000,
        "first_token_at": 100.5,
        "last_token_at": 102.0,
        "completion_tokens": 31,
        "ended_at": 102.0,
        "ending": "stop",
    }
    for name, value in {**usual, **changes}.items():
        setattr(one, name, value)
    return one


def test_a_smooth_request_says_only_what_it_did() -> None:
    """Guards against explanations that mention what did not happen."""
    assert explain(story(), 200.0) == (
        "Started at once, prefilled in 2 ticks (1,000 tokens), generated 31 tokens at 20 tok/s."
    )


def test_a_hard_life_is_told_in_full() -> None:
    """Guards the sentence that answers: why was my request slow?"""
    words = explain(
        story(
            started_at=100.12,
            waiting_before=3,
            cached_tokens=512,
            prefill_ticks=4,
            prefill_tokens=1830,
            recomputed_tokens=214,
            preempted_count=1,
            losses=[Loss(100.8, 0, PreemptReason.RECOMPUTED, RequestId("b"))],
            gap=Gap(0.31, 2, 400, 6, lost_slot=False),
        ),
        200.0,
    )
    assert words == (
        "Queued 120 ms behind 3 requests, prefilled in 4 ticks (1,830 tokens, 512 more from the "
        "cache), preempted once (memory ran out; recomputed 214 tokens), generated 31 tokens at "
        "20 tok/s; the slowest gap was 310 ms while 2 prompts (400 tokens) were prefilled beside "
        "it."
    )


DISPLACED = Loss(101.0, 0, PreemptReason.DISPLACED, RequestId("b"), Priority.CRITICAL)
SAVED = Loss(101.0, 0, PreemptReason.SAVED)
LOST = Loss(101.0, 0, None)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (
            "preempted once (displaced by a request of critical priority)",
            {"preempted_count": 1, "losses": [DISPLACED]},
        ),
        (
            "preempted twice (memory ran out; its own was saved and restored)",
            {"preempted_count": 2, "losses": [SAVED, SAVED]},
        ),
        (
            "interrupted once by a failure of the backend (recomputed 9 tokens)",
            {"failure_count": 1, "recomputed_tokens": 9, "losses": [LOST]},
        ),
        (
            "the slowest gap was 500 ms while it had no slot",
            {"gap": Gap(0.5, 0, 0, 1, lost_slot=True)},
        ),
        (
            "the slowest gap was 500 ms in a batch of 7",
            {"gap": Gap(0.5, 0, 0, 7, lost_slot=False)},
        ),
        ("it stopped at its limit of tokens.", {"ending": "length"}),
        ("it was cancelled.", {"ending": "abort"}),
        ("it failed: The backend broke.", {"ending": "error", "message": "The backend broke."}),
        ("generated 31 tokens in 3 completions", {"completions": 3}),
        ("Queued 200 ms beside 1 running request", {"started_at": 100.2, "running_before": 1}),
    ],
)
def test_each_cause_has_its_words(words: str, changes: dict[str, object]) -> None:
    """Guards against causes that are recorded and never told."""
    assert words in explain(story(**changes), 200.0)


def test_time_at_the_door_is_told_apart_from_waiting() -> None:
    """Guards a request that was slow to read: it is not said to have been quick, or queued."""
    slow = story(arrived_at=82.8, started_at=100.02)
    words = explain(slow, 200.0)
    assert words.startswith("Read and tokenised in 17.2 s, queued 20 ms, prefilled")
    kinds = [(kind, round(end_s, 2)) for kind, _, end_s in phases(slow, 200.0)]
    assert kinds[:2] == [("reading", 17.2), ("queued", 17.22)]
    unstarted = story(arrived_at=90.0, started_at=None, first_token_at=None, last_token_at=None)
    assert [kind for kind, _, _ in phases(unstarted, 200.0)] == ["reading", "queued"]
    brief = story(arrived_at=99.998)
    assert explain(brief, 200.0).startswith("Started at once")
    assert phases(brief, 200.0)[0][0] == "queued"


def test_a_gap_like_all_the_others_is_not_worth_a_word() -> None:
    """Guards against every explanation ending in the same remark."""
    usual = Gap(0.06, 1, 100, 4, lost_slot=False)
    assert "gap" not in explain(story(gap=usual), 200.0)


def test_a_request_that_waits_or_runs_is_told_in_the_present() -> None:
    """Guards the words about requests that have not ended."""
    waiting = story(
        started_at=None, first_token_at=None, last_token_at=None, ended_at=None, ending=None,
        waiting_before=2,
    )  # fmt: skip
    assert explain(waiting, 103.0) == "Has been waiting 3.0 s behind 2 requests."
    running = story(ended_at=None, ending=None)
    assert "has generated 31 tokens" in explain(running, 103.0)


def test_a_request_that_never_ran_says_so() -> None:
    """Guards against a prefill that is told of a request that had none."""
    never = story(
        started_at=None, first_token_at=None, last_token_at=None, ending="deadline", prefill_ticks=0
    )
    assert explain(never, 200.0) == "Never ran: waited 2.0 s; it ran into its time limit."


def test_phases_follow_one_another_and_fill_the_whole_life() -> None:
    """Guards the bar of a request: no hole, no overlap, from arrival to the end."""
    hard = story_of(
        recorded(
            ACCEPTED,
            started(100.2, "a", 0.2),
            tick(100.5, 1, member("a", 0, 1000, samples=True)),
            tick(100.9, 2, member("a", 1000, 1, samples=True)),
            preempted(101.0, "a", PreemptReason.RECOMPUTED, "b"),
            tick(101.5, 3, member("a", 0, 500, samples=False), took_s=0.1),
            tick(101.6, 4, member("a", 500, 502, samples=True), took_s=0.1),
            tick(101.9, 5, member("a", 1002, 1, samples=True)),
            done(102.0, "a"),
        )
    )
    found = phases(hard, 200.0)
    assert [kind for kind, _, _ in found] == [
        "queued", "prefill", "generating", "preempted", "prefill", "generating",
    ]  # fmt: skip
    assert found[0][1] == 0.0
    assert found[-1][2] == pytest.approx(2.0)
    for before, after in itertools.pairwise(found):
        assert before[2] == after[1]
    ends = [round(end_s, 3) for _, _, end_s in found]
    assert ends == [0.2, 0.5, 1.0, 1.4, 1.6, 2.0]


def test_memory_that_was_restored_is_no_prefill() -> None:
    """Guards the bar of a request whose memory was saved: it generates as soon as it runs again."""
    live = story_of(
        recorded(
            ACCEPTED,
            started(100.0, "a", 0.0),
            tick(100.5, 1, member("a", 0, 1000, samples=True)),
            preempted(101.0, "a", PreemptReason.SAVED, "b"),
            tick(101.5, 2, member("a", 1000, 1, samples=True), took_s=0.1),
        )
    )
    kinds = [(kind, round(end_s, 3)) for kind, _, end_s in phases(live, 102.0)]
    assert kinds == [("prefill", 0.5), ("generating", 1.0), ("preempted", 1.4), ("generating", 2.0)]


def test_the_phase_of_a_live_request_ends_now() -> None:
    """Guards bars that stand still while their request runs."""
    waiting = story(started_at=None, first_token_at=None, ended_at=None, ending=None)
    assert phases(waiting, 104.0) == [("queued", 0.0, 4.0)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0004, "0.4 ms"), (0.12, "120 ms"), (2.44, "2.4 s"), (200.0, "3 min 20 s")],
)
def test_times_are_written_for_people(seconds: float, text: str) -> None:
    """Guards readability."""
    assert duration_text(seconds) == text


def test_a_moved_request_says_how_often_why_and_how_long_nothing_came() -> None:
    """Guards the answer to a pause in a stream: its replica was lost, not the model slow."""
    live = story_of(
        recorded(
            ACCEPTED,
            started(100.0, "a", 0.0, replica="r1"),
            progressed(100.5, "a", 1),
            moved(101.5, "a", 20, away_s=0.5),
            progressed(102.5, "a", 21),
            moved(103.0, "a", 30, away_s=0.2),
            progressed(103.2, "a", 31),
        )
    )
    assert explain(live, 104.0) == (
        "Started at once, moved twice to another replica (its replica was lost; 1.9 s without "
        "progress), has generated 31 tokens at 11 tok/s."
    )


def test_a_request_that_moved_before_it_ran_waits_on() -> None:
    live = story_of(recorded(ACCEPTED, moved(101.0, "a", 0, away_s=0.5)))
    assert explain(live, 102.0) == (
        "Has been waiting 2.0 s, moved once to another replica (its replica was lost; 500 ms "
        "without progress)."
    )
