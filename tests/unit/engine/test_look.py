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
from tests.unit.engine.worlds import FaultyBackend, make_request, make_world

WAIT_S = 100.0


def test_a_look_shows_the_ends_of_texts_that_are_being_made() -> None:
    """Guards the page: what it shows is the end of what the caller gets."""
    world, mailbox = make_world(), Mailbox()
    world.tick.submit(make_request("abc", id="a", max_tokens=30), mailbox)
    for _ in range(20):
        world.tick.run()
    detail = world.tick.look(12)
    world.run_dry()
    assert mailbox.ending is not None
    assert mailbox.ending.answer is not None
    text = mailbox.ending.answer.completions[0].text
    (tail,) = detail.tails[make_request("x", id="a").id]
    assert len(tail) == 12
    assert tail in text
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
    world.tick.submit(make_request(id="low", priority=Priority.LOW, max_tokens=20), Mailbox())
    world.tick.run()
    world.tick.run()
    world.tick.submit(make_request(id="high", priority=Priority.HIGH), Mailbox())
    world.run_dry()
    (told,) = (each for each in world.records if isinstance(each, RequestPreempted))
    assert (told.request_id, told.by, told.reason) == ("low", "high", PreemptReason.DISPLACED)
    assert world.tick.statistics.stats(world.clock.now()).preemption_count == 1
    assert not any(isinstance(each, KvPressure) for each in world.records), "memory was not short"


def test_preemptions_for_memory_are_pressure_and_count_once() -> None:
    """Guards the pressure on memory, which has the same preemptions and counts none of its own."""
    small = FaultyBackend(FakeSettings(slots=4, kv_tokens=48, model_len_max=48, eos_period=0))
    world = make_world(small, model_len_max=48, max_num_seqs=4)
    for name in ("a", "b", "c"):
        world.tick.submit(make_request(3 * name, id=name, max_tokens=30), Mailbox())
    world.run_dry()
    told = [each for each in world.records if isinstance(each, RequestPreempted)]
    pressed = [each.preempted_count for each in world.records if isinstance(each, KvPressure)]
    assert told
    assert sum(pressed) == len(told)
    assert world.tick.statistics.stats(world.clock.now()).preemption_count == len(told)


def test_members_that_sample_add_up_to_the_tokens_that_were_made() -> None:
    """Guards token metrics: a token of a request that was cancelled meanwhile is nobody's."""
    world, mailboxes = make_world(), [Mailbox(), Mailbox()]
    world.tick.submit(make_request(id="a", max_tokens=5), mailboxes[0])
    world.tick.submit(make_request(id="b", max_tokens=50), mailboxes[1])
    world.tick.run()
    world.tick.run(intake=lambda: world.tick.cancel(make_request(id="b").id))
    world.run_dry()
    made = 0
    for mailbox in mailboxes:
        assert mailbox.ending is not None
        assert mailbox.ending.answer is not None
        made += mailbox.ending.answer.usage.completion_count
    ticks = [each for each in world.records if isinstance(each, TickRecord)]
    assert sum(member.samples for tick in ticks for member in tick.members) == made == 6


def test_an_accepted_request_is_told_with_what_it_asked_for() -> None:
    """Guards what metrics and stories know of a request."""
    world = make_world()
    world.tick.submit(make_request(id="a", n=2, max_tokens=3, tenant="t"), Mailbox(), 99.0)
    (told,) = (each for each in world.records if isinstance(each, RequestAccepted))
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
    (told,) = (each for each in world.records if isinstance(each, RequestAccepted))
    assert (told.arrived_at, told.sent_at) == (80.0, 100.5)
    (started,) = (each for each in world.records if isinstance(each, RequestStarted))
    assert started.waited_ms == 1500.0
    (done,) = (each for each in world.records if isinstance(each, RequestDone))
    assert (done.queue_ms, done.ttft_ms, done.duration_ms) == (1500.0, 22_000.0, 22_000.0)
    assert done.prompt_eval_rate == 0.0
    assert mailbox.ending is not None
    assert mailbox.ending.answer is not None
    assert mailbox.ending.answer.timing.sent_s == 20.5
