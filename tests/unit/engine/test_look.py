"""Looking at a running engine: text as it is made, who preempted whom, and who sampled."""

from collections.abc import Callable

import pytest

from jitney.backends.fake.backend import FakeSettings
from jitney.core.events import PreemptReason
from jitney.core.request import Priority
from jitney.core.scheduler_settings import Policy
from jitney.engine.engine import Engine
from jitney.engine.mailbox import Mailbox
from jitney.records import (
    KvPressure,
    RequestAccepted,
    RequestDone,
    RequestPreempted,
    RequestStarted,
    TickRecord,
)
from tests.unit.engine.worlds import FaultyBackend, answer_of, make_request, make_world

WAIT_S = 100.0


def test_a_look_shows_the_ends_of_texts_that_are_being_made() -> None:
    """Guards the page: what it shows is the end of what the caller gets."""
    world = make_world()
    mailbox = world.submit(make_request("abc", id="a", max_tokens=30))
    for _ in range(20):
        world.tick.run()
    detail = world.tick.look(12)
    world.run_dry()
    (tail,) = detail.tails[make_request("x", id="a").id]
    assert len(tail) == 12
    assert tail in answer_of(mailbox).completions[0].text
    assert world.tick.look(0).tails == {}


def test_an_idle_engine_answers_a_look_and_a_stuck_one_does_not(
    make_engine: Callable[..., Engine], backend: FaultyBackend
) -> None:
    """Guards viewers: a look wakes a sleeping engine, and its wait can be bounded."""
    engine = make_engine()
    assert engine.look(10).result(WAIT_S).slots == ()
    backend.entered.clear()
    backend.gate.clear()
    engine.send(make_request())
    assert backend.entered.wait(WAIT_S)
    stuck = engine.look(10)
    with pytest.raises(TimeoutError):
        stuck.result(0.01)
    backend.gate.set()
    assert stuck.result(WAIT_S).at > 0


def test_a_preemption_is_told_with_its_reason_and_its_cause() -> None:
    """Guards the words "displaced by a request of high priority"."""
    world = make_world(max_num_seqs=1, policy=Policy.PRIORITY)
    world.submit(make_request(id="low", priority=Priority.LOW, max_tokens=20))
    world.tick.run()
    world.tick.run()
    world.submit(make_request(id="high", priority=Priority.HIGH))
    world.run_dry()
    (told,) = world.records_of(RequestPreempted)
    assert (told.request_id, told.by, told.reason) == ("low", "high", PreemptReason.DISPLACED)
    assert world.stats.preemption_count == 1
    assert not world.records_of(KvPressure), "memory was not short"


def test_preemptions_for_memory_are_pressure_and_count_once() -> None:
    """Guards the pressure on memory, which has the same preemptions and counts none of its own."""
    small = FaultyBackend(FakeSettings(slots=4, kv_tokens=48, model_len_max=48, eos_period=0))
    world = make_world(small, model_len_max=48, max_num_seqs=4)
    for name in ("a", "b", "c"):
        world.submit(make_request(3 * name, id=name, max_tokens=30))
    world.run_dry()
    told = world.records_of(RequestPreempted)
    assert told
    assert sum(each.preempted_count for each in world.records_of(KvPressure)) == len(told)
    assert world.stats.preemption_count == len(told)


def test_members_that_sample_add_up_to_the_tokens_that_were_made() -> None:
    """Guards token metrics: a token of a request that was cancelled meanwhile is nobody's."""
    world = make_world()
    mailboxes = [world.submit(make_request(id=name, max_tokens=50)) for name in "ab"]
    world.tick.run()
    world.tick.run(intake=lambda: world.tick.cancel(make_request(id="b").id))
    world.run_dry()
    made = sum(answer_of(mailbox).usage.completion_count for mailbox in mailboxes)
    ticks = world.records_of(TickRecord)
    assert sum(member.samples for tick in ticks for member in tick.members) == made == 51


def test_an_accepted_request_is_told_with_what_it_asked_for() -> None:
    """Guards what metrics and stories know of a request."""
    world = make_world()
    world.tick.submit(make_request(id="a", n=2, max_tokens=3, tenant="t"), Mailbox(), 99.0)
    (told,) = world.records_of(RequestAccepted)
    assert (told.arrived_at, told.completions, told.max_tokens, told.tenant) == (99.0, 2, 3, "t")


def test_latency_counts_from_arrival_and_the_wait_from_the_sending() -> None:
    """Guards the figures of a caller that was long at the door: no time is lost, none counted
    twice, and its time limit begins with the engine."""
    world = make_world()
    mailbox = Mailbox()
    request = make_request(id="a", max_tokens=3, request_timeout_s=5.0)
    world.clock.moment = 101.0
    world.tick.submit(request, mailbox, 100.5, 80.0)
    world.clock.moment = 102.0
    world.run_dry()
    (told,) = world.records_of(RequestAccepted)
    assert (told.arrived_at, told.sent_at) == (80.0, 100.5)
    (started,) = world.records_of(RequestStarted)
    assert started.waited_ms == 1500.0
    (done,) = world.records_of(RequestDone)
    assert (done.queue_ms, done.ttft_ms, done.duration_ms) == (1500.0, 22_000.0, 22_000.0)
    assert done.prompt_eval_rate == 0.0
    assert answer_of(mailbox).timing.sent_s == 20.5
