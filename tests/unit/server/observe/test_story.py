"""Stories: what is kept of one request, and that it is never too much."""

from jitney.core.events import PreemptReason
from jitney.core.request import Priority
from jitney.errors import BackendFailed, DeadlineExceeded
from jitney.records import BackendLost
from jitney.server.observe.story import LOSSES_MAX, SPANS_MAX
from tests.unit.server.observe.records_for_tests import (
    accepted,
    done,
    failed,
    member,
    moved,
    preempted,
    progressed,
    recorded,
    started,
    story_of,
    tick,
)


def test_a_request_is_followed_from_arrival_to_its_end() -> None:
    """Guards the numbers that an explanation is made of."""
    recorder = recorded(
        accepted(0.0, "a", 10),
        started(1.0, "a", 1.0, cached=2),
        tick(2.0, 1, member("a", 2, 5, samples=False, slot=3)),
        tick(3.0, 2, member("a", 7, 3, samples=True, slot=3)),
        tick(5.0, 3, member("a", 10, 1, samples=True, slot=3)),
    )
    live = story_of(recorder, "a")
    assert (live.slot, live.ended_at) == (3, None)
    recorder.take(done(5.5, "a"))
    story = story_of(recorder, "a")
    assert story.started is not None
    assert (story.started.at, story.cached_tokens, story.prefill_ticks) == (1.0, 2, 2)
    assert (story.prefill_tokens, story.recomputed_tokens) == (8, 0)
    assert [(span.tick, span.start, span.length) for span in story.spans] == [(1, 2, 5), (2, 7, 3)]
    assert (story.first_token_at, story.last_token_at) == (3.0, 5.0)
    assert (story.completion_tokens, story.ending, story.slot) == (2, "stop", None)


def test_a_preempted_request_remembers_why_by_whom_and_what_was_recomputed() -> None:
    """Guards the words about a preemption."""
    recorder = recorded(
        accepted(0.0, "a", 4),
        started(0.0, "a", 0.0),
        accepted(0.5, "b", 4, Priority.HIGH),
        tick(1.0, 1, member("a", 0, 4, samples=True)),
        tick(2.0, 2, member("a", 4, 1, samples=True)),
        preempted(2.5, "a", PreemptReason.DISPLACED, "b"),
        tick(6.0, 3, member("a", 0, 6, samples=True), took_s=1.0),
    )
    story = story_of(recorder, "a")
    (loss,) = story.losses
    assert (loss.reason, loss.by, loss.by_priority) == (PreemptReason.DISPLACED, "b", Priority.HIGH)
    assert (story.preempted_count, story.recomputed_tokens, story.resumed_at) == (1, 5, [5.0])
    assert story.gap is not None
    assert (story.gap.seconds, story.gap.lost_slot) == (4.0, True)
    assert (story.prefill_ticks, story.prefill_tokens) == (1, 4)


def test_a_lost_backend_interrupts_those_who_ran_and_no_others() -> None:
    """Guards against failures that are blamed on requests that waited."""
    recorder = recorded(
        *(accepted(0.0, name, 4) for name in ("a", "b")),
        started(0.0, "a", 0.0),
        tick(1.0, 1, member("a", 0, 4, samples=True)),
        BackendLost(at=2.0, error="gone", restarts_failed=0),
        BackendLost(at=3.0, error="still gone", restarts_failed=1),
    )
    assert story_of(recorder, "a").failure_count == 1
    assert story_of(recorder, "b").failure_count == 0


def test_the_slowest_gap_knows_what_was_prefilled_beside_it() -> None:
    """Guards the answer to: who made my stream stutter?"""
    beside = (member("b", 0, 256, samples=False, slot=1), member("c", 0, 100, samples=True, slot=2))
    recorder = recorded(
        accepted(0.0, "a", 1),
        started(0.0, "a", 0.0),
        tick(1.0, 1, member("a", 0, 1, samples=True)),
        tick(1.1, 2, member("a", 1, 1, samples=True)),
        tick(1.5, 3, member("a", 2, 1, samples=True), *beside),
        tick(1.6, 4, member("a", 3, 1, samples=True)),
    )
    gap = story_of(recorder, "a").gap
    assert gap is not None
    assert (round(gap.seconds, 3), gap.prompts_beside, gap.prompt_tokens_beside) == (0.4, 2, 356)
    assert len(recorder.latencies()["gap"]) == 3


def test_errors_and_deadlines_end_a_story_with_their_message() -> None:
    """Guards the difference between a failure and a request that came too late."""
    recorder = recorded(
        *(accepted(0.0, name, 4) for name in ("a", "b")),
        failed(1.0, "a", BackendFailed("broken")),
        failed(1.0, "b", DeadlineExceeded("late")),
    )
    failure = story_of(recorder, "a")
    assert failure.ending == "error"
    # What a backend says is for the log; a story is shown to callers.
    assert failure.message == "The model failed while it ran this request; try again."
    assert (story_of(recorder, "b").ending, story_of(recorder, "b").message) == ("deadline", "late")


def test_a_long_prompt_keeps_a_bounded_number_of_spans_and_counts_the_rest() -> None:
    """Guards memory against one request with ten thousand spans."""
    spans = SPANS_MAX + 50
    ticks = (tick(float(at), at + 1, member("a", at, 1, samples=False)) for at in range(spans))
    story = story_of(recorded(accepted(0.0, "a", spans), started(0.0, "a", 0.0), *ticks))
    assert len(story.spans) == SPANS_MAX
    assert (story.prefill_ticks, story.prefill_tokens) == (spans, spans)


def test_tokens_made_elsewhere_are_told_now_and_then() -> None:
    """Guards the story of a request that a replica runs: there are no ticks to follow."""
    recorder = recorded(
        accepted(0.0, "a", 10),
        started(1.0, "a", 1.0, replica="r1"),
        progressed(2.0, "a", 1),
        progressed(3.0, "a", 30),
    )
    live = story_of(recorder, "a")
    assert (live.first_token_at, live.last_token_at, live.completion_tokens) == (2.0, 3.0, 30)
    assert recorder.histograms()["first_token_seconds"].total == 2.0
    recorder.take(done(3.5, "a"))
    story = story_of(recorder, "a")
    assert (story.completion_tokens, story.last_token_at) == (2, 3.5), "as the end has it"
    assert [phase for _, phase in story.phases] == ["queued", "prefill", "generating"]
    longest = recorder.histograms()["vllm:request_max_num_generation_tokens"]
    assert longest.total == 2


def test_a_move_lasts_until_the_next_token() -> None:
    """Guards the bar of a request: the pause that its caller saw is seen."""
    recorder = recorded(
        accepted(0.0, "a", 10),
        started(1.0, "a", 1.0, replica="r1"),
        progressed(2.0, "a", 1),
        moved(4.0, "a", 20, away_s=0.5),
        progressed(6.0, "a", 21),
        accepted(0.0, "b", 10),
        moved(4.0, "b", 0, away_s=1.0),
    )
    phases = story_of(recorder, "a").phases
    assert phases[2:] == [(2.0, "generating"), (3.5, "moved"), (6.0, "generating")]
    waits = story_of(recorder, "b")
    assert waits.phases == [(0.0, "queued"), (3.0, "moved"), (4.0, "queued")]
    assert waits.replica == "r2"


def test_moves_without_end_are_only_counted() -> None:
    moves = (moved(1.0 + at, "a", 0) for at in range(LOSSES_MAX + 5))
    story = story_of(recorded(accepted(0.0, "a", 10), *moves))
    assert (story.move_count, len(story.moves)) == (LOSSES_MAX + 5, LOSSES_MAX)
