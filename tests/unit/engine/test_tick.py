"""One turn of the engine, by hand: order, verdicts, faults, records."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from jitney.core import limits
from jitney.core.events import FinishReason
from jitney.core.request import Priority, RequestId
from jitney.core.scheduler_settings import Policy, Strategy
from jitney.core.snapshot import Snapshot
from jitney.engine.answer import Ending
from jitney.engine.collector import Collector
from jitney.engine.mailbox import Mailbox
from jitney.errors import (
    BackendCrashed,
    BackendFailed,
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineStopped,
    InvalidRequest,
    QueueFull,
)
from jitney.records import (
    BackendLost,
    RequestAccepted,
    RequestDone,
    RequestFailed,
    RequestPreempted,
    RequestRefused,
    RequestStarted,
    TickRecord,
)
from tests.unit.engine.worlds import World, answer_of, make_request, make_world, texts_alone


def cancel_all(world: World, names: str) -> None:
    for name in names:
        world.tick.cancel(RequestId(name))


def test_requests_run_together_give_what_they_give_alone() -> None:
    """Guards invariant 4 through text, stop strings and counting."""
    requests = [make_request(f"prompt {number}", max_tokens=20) for number in range(6)]
    world = make_world(max_num_seqs=4, prefill_chunk=3)
    assert world.texts(requests) == texts_alone(requests)
    world.tick.check()


def test_a_stop_string_ends_the_sequence_in_the_tick_that_finds_it() -> None:
    """Guards against tokens computed for a completion that is over."""
    (text,) = texts_alone([make_request("abc", max_tokens=20)])
    stop = text[4:7]
    world = make_world()
    mailbox = world.submit(make_request("abc", max_tokens=20, stop=stop))
    turns = 0
    while mailbox.ending is None:
        assert world.tick.run()
        turns += 1
    completion = answer_of(mailbox).completions[0]
    assert completion.text == text[: text.index(stop)]
    assert completion.stop_reason == stop
    assert completion.usage.completion_count == len(completion.tokens) == turns
    assert not world.tick.run()
    assert world.backend.executed_count == turns


def test_a_cancel_that_comes_during_the_forward_pass_is_taken_before_its_outcome() -> None:
    """Guards against tokens handed out after the caller said stop."""
    world = make_world()
    mailbox = world.submit(make_request(id="a", max_tokens=50))
    world.tick.run()
    world.tick.run(lambda: world.tick.cancel(RequestId("a")))
    completion = answer_of(mailbox).completions[0]
    assert completion.finish_reason is FinishReason.CANCELLED
    assert len(completion.tokens) == 1
    assert not world.tick.has_work
    world.tick.check()


def test_cancelling_twice_or_nobody_is_no_mistake() -> None:
    """Guards against a second ending, and against errors for a race that nobody can avoid."""
    world = make_world()
    mailbox = world.submit(make_request(id="a"))
    for name in ("a", "a", "nobody"):
        world.tick.cancel(RequestId(name))
    world.tick.run()
    assert answer_of(mailbox).was_cancelled
    assert world.stats.cancelled_requests == 1


def test_a_turn_is_measured_a_few_times_however_many_leave_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the time of a turn: every measure walks those who run, who may be a thousand."""
    world = make_world()
    taken: list[int] = []
    snapshot: Callable[[], Snapshot] = world.scheduler.snapshot

    def counted() -> Snapshot:
        taken.append(1)
        return snapshot()

    monkeypatch.setattr(world.scheduler, "snapshot", counted)
    mailboxes = [world.submit(make_request(id=name, max_tokens=50)) for name in "abcd"]
    for leaving in ("", "ab", "cd"):
        taken.clear()
        world.tick.run(partial(cancel_all, world, leaving))
        assert len(taken) <= 4
    assert all(answer_of(mailbox).was_cancelled for mailbox in mailboxes)
    assert world.tick.statistics.snapshot.running_count == 0


def test_what_planning_changed_is_seen_during_the_pass() -> None:
    """Guards what operators see: a forward pass may take long, and as many run as before."""
    world = make_world(max_num_seqs=1, policy=Policy.PRIORITY)
    seen: list[tuple[int, int]] = []

    def look() -> None:
        snapshot = world.tick.statistics.snapshot
        seen.append((snapshot.counters["displaced"], snapshot.waiting_count))

    world.backend.look = look
    world.submit(make_request(id="low", max_tokens=9, priority=Priority.LOW))
    world.tick.run()
    high = make_request(id="high", max_tokens=9, priority=Priority.HIGH)
    world.tick.run(lambda: world.tick.submit(high, Mailbox()))
    world.tick.run()
    assert seen == [(0, 0), (0, 0), (1, 1)]


def test_a_start_is_told_before_the_first_pass() -> None:
    """Guards a fleet: a request that kills this process in its first pass must be known to run."""
    world = make_world()
    seen: list[int] = []
    world.backend.look = lambda: seen.append(len(world.records_of(RequestStarted)))
    for name in "ab":
        world.submit(make_request(id=name, max_tokens=9))
        world.tick.run()
    assert seen == [1, 2]


@pytest.mark.parametrize(
    "fault", [BackendFailed("bad batch"), BackendCrashed("gone", 9), MemoryError()]
)
def test_a_lost_backend_costs_a_reset_and_no_text(fault: Exception) -> None:
    """Guards invariants 4 and 10: streams go on where they were."""
    requests = [make_request(f"prompt {number}", max_tokens=12) for number in range(3)]
    world = make_world()
    world.backend.execute_faults = [None, None, None, fault]
    assert world.texts(requests) == texts_alone(requests)
    assert (world.backend.reset_count, world.stats.backend_failure_count) == (1, 1)
    assert world.records_of(BackendLost)


def test_a_request_that_always_breaks_the_backend_fails_with_the_reason() -> None:
    """Guards against one request that keeps the engine restarting for ever."""
    world = make_world()
    mailbox = world.submit(make_request())
    world.backend.execute_faults = [BackendFailed("poison")] * 50
    world.run_dry()
    assert mailbox.ending is not None
    assert isinstance(mailbox.ending.error, BackendFailed)
    assert "poison" in str(mailbox.ending.error)
    assert world.tick.stopped is None


def test_an_idle_backend_that_is_gone_is_brought_back() -> None:
    """Guards a backend that dies while nothing runs: it is noticed before somebody needs it."""
    world = make_world()
    world.backend.check_faults = [None, BackendCrashed("gone")]
    world.backend.reset_faults = [BackendCrashed("no memory")]
    world.tick.check_backend()
    assert world.tick.is_backend_ready
    world.tick.check_backend()
    assert not world.tick.is_backend_ready
    assert [type(record) for record in world.records] == [BackendLost, BackendLost]
    world.tick.check_backend()
    assert world.backend.checked_count == 2
    world.run_dry()
    world.clock.moment = world.tick.wake_at(world.clock.now()) or 0.0
    world.tick.run()
    assert world.tick.is_backend_ready


def test_a_backend_that_cannot_be_started_stops_the_engine_and_everyone_is_told_once() -> None:
    """Guards against callers who wait for an engine that has given up (invariant 1)."""
    world = make_world()
    mailboxes = [world.submit(make_request()) for _ in range(3)]
    world.backend.execute_faults = [BackendCrashed("gone")]
    world.backend.reset_faults = [BackendCrashed("no memory")] * 100
    world.run_dry()
    assert limits.GIVE_UP_ATTEMPTS <= world.backend.reset_count < 100
    assert isinstance(world.tick.stopped, EngineStopped)
    for mailbox in mailboxes:
        assert isinstance(mailbox.ending, Ending)
        assert isinstance(mailbox.ending.error, EngineStopped)
        assert "no memory" in str(mailbox.ending.error)
    with pytest.raises(EngineStopped):
        world.submit(make_request())
    assert world.stats.live_requests == 0


def test_a_deadline_passes_while_the_backend_is_away() -> None:
    """Guards invariant 8 when nothing can be planned."""
    world = make_world()
    mailbox = world.submit(make_request(request_timeout_s=0.2, max_tokens=100))
    world.backend.execute_faults = [BackendCrashed("gone")]
    world.backend.reset_faults = [BackendCrashed("not yet")]
    assert world.tick.run()
    wake_at = world.tick.wake_at(world.clock.moment)
    assert wake_at == world.clock.moment + 0.2
    world.clock.moment = wake_at
    assert not world.tick.run()
    assert mailbox.ending is not None
    assert isinstance(mailbox.ending.error, DeadlineExceeded)


def test_a_group_that_is_late_hides_no_deadline_while_the_backend_is_away() -> None:
    """Guards invariant 8: its time has passed, and a deadline comes before the next attempt."""
    world = make_world(strategy=Strategy.DYNAMIC, wait_s=0.05)
    world.backend.check_faults = [BackendCrashed("gone")]
    world.backend.reset_faults = [BackendCrashed("not yet")]
    world.tick.check_backend()
    world.submit(make_request(request_timeout_s=0.2))
    world.clock.moment += 0.1
    assert world.tick.wake_at(world.clock.moment) == pytest.approx(world.clock.moment + 0.1)


def test_a_reader_that_cannot_take_its_ending_stops_nobody_elses() -> None:
    """Guards invariant 1: what a reader does with its ending may raise, and all others get one."""
    world = make_world()
    names = ("raises", "same tick", "later")
    mailboxes = [
        world.submit(make_request(max_tokens=3 + 9 * (name == "later")), streams=False)
        for name in names
    ]

    def listener() -> None:
        raise RuntimeError("this reader is gone")

    for mailbox in (mailboxes[0], mailboxes[2]):
        mailbox.listen(listener)
    with pytest.raises(RuntimeError, match="is gone"):
        world.run_dry()
    world.tick.stop(EngineStopped("it failed"))
    assert all(mailbox.ending is not None for mailbox in mailboxes)
    assert mailboxes[0].ending is not None
    assert mailboxes[0].ending.error is None


def test_an_outcome_of_another_batch_is_a_fault_of_the_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards against tokens given to the wrong sequence after frames got out of step."""
    world, requests = make_world(), [make_request(max_tokens=4)]
    execute = world.backend.execute
    outcomes: list[Any] = []

    def stale(batch: Any) -> Any:  # Any: a Batch in, an Outcome out
        outcomes.append(execute(batch))
        return outcomes[0] if len(outcomes) == 2 else outcomes[-1]

    monkeypatch.setattr(world.backend, "execute", stale)
    assert world.texts(requests) == texts_alone(requests)
    assert world.backend.reset_count == 1


def test_a_refusal_reaches_the_submitter_and_is_counted() -> None:
    """Guards against accepted requests that were never accepted (invariant 7)."""
    world = make_world(max_num_seqs=1, max_num_queued_reqs=1)
    world.submit(make_request())
    with pytest.raises(QueueFull):
        world.submit(make_request())
    with pytest.raises(ContextLengthExceeded):
        world.submit(make_request("x" * 2000))
    stats = world.stats
    assert (stats.total_requests, stats.refused_requests, stats.live_requests) == (1, 2, 1)
    assert len(world.records_of(RequestRefused)) == 2


def test_records_tell_the_story_of_a_request_in_order() -> None:
    """Guards the numbers that observers build metrics from."""
    world = make_world()
    world.submit(make_request("abc", id="a", max_tokens=2))
    world.run_dry()
    kinds = [type(record) for record in world.records]
    assert kinds == [RequestAccepted, RequestStarted, TickRecord, TickRecord, RequestDone]
    first, second = world.records_of(TickRecord)
    assert (first.prefill_tokens, first.decode_tokens, first.sampled_tokens) == (3, 0, 1)
    assert (second.prefill_tokens, second.decode_tokens, second.sampled_tokens) == (0, 1, 1)
    assert [(m.request_id, m.start, m.length) for m in second.members] == [("a", 3, 1)]
    (done,) = world.records_of(RequestDone)
    assert (done.prompt_tokens, done.generated_tokens, done.stop_reason) == (3, 2, "length")


def test_a_failed_request_is_reported_as_such() -> None:
    """Guards against deadlines that vanish from the statistics."""
    world = make_world()
    world.submit(make_request(request_timeout_s=1.0, max_tokens=100))
    world.tick.run()
    world.clock.moment += 2.0
    world.tick.run()
    (failed,) = world.records_of(RequestFailed)
    assert isinstance(failed.error, DeadlineExceeded)
    assert (failed.generated_tokens, failed.duration_ms) == (1, 2000.0)
    stats = world.stats
    assert (stats.timeout_count, stats.error_count, stats.failed_requests) == (1, 0, 1)


def test_a_static_group_is_answered_together() -> None:
    """Guards the meaning of `static`: the short wait for the long."""
    world = make_world(strategy="static", max_num_seqs=2)
    short, long = (world.submit(make_request(max_tokens=count)) for count in (2, 10))
    for _ in range(9):
        world.tick.run()
        world.clock.moment += 0.01
    assert short.ending is None
    assert world.tick.has_work
    world.run_dry()
    assert answer_of(short).total_s == answer_of(long).total_s
    assert len(answer_of(short).completions[0].tokens) == 2


def test_the_log_says_when_a_lost_backend_is_back(caplog: pytest.LogCaptureFixture) -> None:
    """Guards whoever reads the log: after a loss they learn that it is over, once, and when."""
    world = make_world()
    world.backend.execute_faults = [BackendCrashed("gone")]
    world.backend.reset_faults = [BackendCrashed("no"), BackendCrashed("no")]
    world.submit(make_request())
    world.run_dry()
    back = [each.getMessage() for each in caplog.records if "is back" in each.getMessage()]
    assert back == ["The backend is back after 1.5 s"]


def test_answers_that_are_held_back_are_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the tick of a group: long answers that wait must not be made anew at every turn."""
    made: list[Collector] = []
    ending = Collector.ending

    def counted(collector: Collector, now: float) -> Ending:
        made.append(collector)
        return ending(collector, now)

    monkeypatch.setattr(Collector, "ending", counted)
    world = make_world(strategy=Strategy.STATIC, max_num_seqs=4)
    mailboxes = [world.submit(make_request(max_tokens=count)) for count in (1, 2, 3, 40)]
    world.run_dry()
    assert all(answer_of(mailbox) for mailbox in mailboxes)
    assert len(made) == 4


@pytest.mark.parametrize("is_bounded", [True, False])
def test_a_stream_that_nobody_reads_ends_where_it_is_bounded(is_bounded: bool) -> None:
    """Guards memory against readers who stall, and late readers who mean it against the guard."""
    world, mailbox, other = make_world(), Mailbox(is_bounded=is_bounded), Mailbox(is_bounded=True)
    world.tick.submit(make_request(logprobs=20, n=2, max_tokens=900, ignore_eos=True), mailbox)
    world.tick.submit(make_request(logprobs=20, max_tokens=900, ignore_eos=True), other)
    while world.tick.has_work:
        world.tick.run()
        world.clock.moment += 0.1
        while other.fetch() is not None and other.ending is None:
            pass
    answer = answer_of(mailbox)
    assert answer.was_cancelled == is_bounded
    assert (answer.usage.completion_count < 250) == is_bounded
    assert not answer_of(other).was_cancelled
    world.tick.check()


def test_the_end_of_a_request_is_recorded_before_another_has_its_id() -> None:
    """Guards records: those of two requests with one id were mixed up."""
    world = make_world()
    first = world.submit(make_request(id="a", max_tokens=20))
    world.tick.run()
    cancel_all(world, "a")
    second = world.submit(make_request(id="a", max_tokens=2))
    assert answer_of(first).was_cancelled
    world.run_dry()
    assert not answer_of(second).was_cancelled
    kinds = [type(each) for each in world.records]
    ends = [place for place, kind in enumerate(kinds) if kind is RequestDone]
    starts = [place for place, kind in enumerate(kinds) if kind is RequestAccepted]
    assert starts[0] < ends[0] < starts[1] < ends[1]


def test_a_pause_is_told_at_once() -> None:
    """Guards who watches: with nobody else to run, the record of it came with the next batch."""
    world = make_world()
    world.submit(make_request(id="a", max_tokens=20))
    world.tick.run()
    world.tick.pause(RequestId("a"))
    assert not world.tick.run()
    assert len(world.records_of(RequestPreempted)) == 1


def test_the_id_of_an_answer_that_is_held_back_is_not_free() -> None:
    """Guards callers with ids of their own: a cancel of the first would end the second."""
    world = make_world(strategy=Strategy.STATIC, max_num_seqs=2)
    first = world.submit(make_request(id="a", max_tokens=1))
    world.submit(make_request(id="b", max_tokens=20))
    for _ in range(5):
        world.tick.run()
    assert first.ending is None
    assert world.scheduler.holds_answers
    with pytest.raises(InvalidRequest, match="'a' is live already: its answer waits"):
        world.submit(make_request(id="a"))
    world.run_dry()
    assert first.ending is not None
    world.submit(make_request(id="a"))
    world.run_dry()
    world.tick.check()
