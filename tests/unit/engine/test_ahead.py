"""Turns of the engine over a backend that computes elsewhere: two batches under way."""

from collections import deque

from jitney.backends.fake.backend import FakeSettings
from jitney.core.batch import Batch, Outcome
from jitney.core.events import FinishReason
from jitney.core.request import RequestId
from jitney.engine.mailbox import Mailbox
from jitney.errors import BackendCrashed
from jitney.records import TickRecord
from tests.unit.engine.worlds import FaultyBackend, answer_of, make_request, make_world, texts_alone


class Elsewhere(FaultyBackend):
    """A backend that is done only when there is nothing else to do."""

    def __init__(self, eos_period: int = 0) -> None:
        super().__init__(FakeSettings(eos_period=eos_period, tick_s=0.01))
        self.sent: deque[Batch] = deque()
        self.most_sent = 0

    def send(self, batch: Batch) -> None:
        self.sent.append(batch)
        self.most_sent = max(self.most_sent, len(self.sent))

    def receive(self, limit_s: float | None = None) -> Outcome | None:
        if limit_s is not None:
            return None
        assert self.sent, "nothing is under way"
        return self.execute(self.sent.popleft())

    def reset(self) -> None:
        self.sent.clear()
        super().reset()


def test_the_next_batch_is_sent_before_the_last_is_back() -> None:
    """Guards run-ahead: nothing stands still between two batches, and the texts are the same."""
    requests = [make_request(f"prompt {at}", max_tokens=5 + 3 * at) for at in range(4)]
    backend = Elsewhere()
    world = make_world(backend)
    assert world.texts(requests) == texts_alone(requests)
    assert backend.most_sent == 2
    assert not backend.sent
    world.tick.check()


def test_batches_under_way_are_lost_with_the_backend_and_computed_again() -> None:
    """Guards invariant 10 with two in flight: one loss, one reset, and the same text."""
    request = make_request(max_tokens=20)
    backend = Elsewhere()
    world = make_world(backend)
    mailbox = world.submit(request)
    for _ in range(4):
        world.tick.run()
    world.backend.execute_faults = [BackendCrashed("gone", 9)]
    world.tick.run()
    assert backend.most_sent == 2
    assert world.backend.reset_count == 1
    world.run_dry()
    assert world.backend.reset_count == 1, "what was lost once is not awaited again"
    assert answer_of(mailbox).completions[0].text == texts_alone([request])[0]
    world.tick.check()


def test_what_is_computed_for_nobody_is_counted_for_nobody() -> None:
    """Guards the figures: a completion that ended by itself has a token too many under way."""
    world = make_world(Elsewhere(eos_period=8))
    mailboxes = [world.submit(make_request(f"prompt {at}", max_tokens=60)) for at in range(6)]
    world.run_dry()
    answers = list(map(answer_of, mailboxes))
    assert any(each.completions[0].finish_reason is FinishReason.STOP for each in answers)
    made = sum(answer.usage.completion_count for answer in answers)
    assert world.stats.completion_tokens == made
    ticks = world.records_of(TickRecord)
    assert sum(len(tick.members) for tick in ticks) == made
    assert world.backend.executed_count == len(ticks)
    assert sum(tick.batch_size for tick in ticks) > made, "nothing was computed in vain"


def test_whoever_comes_before_the_next_batch_is_sent_is_part_of_it() -> None:
    """Guards the first token: a batch that is planned early must not leave out who is here."""
    backend = Elsewhere()
    world = make_world(backend)
    world.submit(make_request(id="a", max_tokens=50))
    for _ in range(3):
        world.tick.run()
    assert len(backend.sent) == 1, "the next one is under way"
    arrivals, mailbox = [make_request(id="b", max_tokens=1)], Mailbox()

    def arrive() -> None:
        if arrivals:
            world.tick.submit(arrivals.pop(), mailbox)

    # It comes while that one is computed, and before another is planned.
    world.tick.run(arrive)
    world.tick.run()
    assert mailbox.ending is not None


def test_a_batch_that_nobody_wants_any_more_is_waited_for() -> None:
    """Guards the sign of life of an idle backend: it must not get an old outcome for an answer."""
    backend = Elsewhere()
    world = make_world(backend)
    mailbox = world.submit(make_request(id="a", max_tokens=50))
    for _ in range(3):
        world.tick.run()
    world.tick.run(lambda: world.tick.cancel(RequestId("a")))
    assert answer_of(mailbox).was_cancelled
    world.run_dry()
    assert not backend.sent
    assert not world.tick.has_work
