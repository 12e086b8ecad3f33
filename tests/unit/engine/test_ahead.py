"""Turns of the engine over a backend that computes elsewhere: two batches under way."""

from collections import deque

from jitney.backends.fake.backend import FakeSettings
from jitney.core.batch import Batch, Outcome
from jitney.core.events import FinishReason
from jitney.core.request import RequestId
from jitney.engine.mailbox import Mailbox
from jitney.errors import BackendCrashed
from jitney.records import TickRecord
from tests.unit.engine.test_tick import answer_of, texts_alone
from tests.unit.engine.worlds import FaultyBackend, make_request, make_world


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
    mailboxes = [Mailbox() for _ in requests]
    for request, mailbox in zip(requests, mailboxes, strict=True):
        world.tick.submit(request, mailbox)
    world.run_dry()
    assert backend.most_sent == 2
    assert not backend.sent
    texts = [answer_of(mailbox).completions[0].text for mailbox in mailboxes]
    assert texts == texts_alone(requests)
    world.tick.check()


def test_batches_under_way_are_lost_with_the_backend_and_computed_again() -> None:
    """Guards invariant 10 with two in flight: one loss, one reset, and the same text."""
    request = make_request(max_tokens=20)
    backend, mailbox = Elsewhere(), Mailbox()
    world = make_world(backend)
    world.tick.submit(request, mailbox)
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
    mailboxes = [Mailbox() for _ in range(6)]
    for at, mailbox in enumerate(mailboxes):
        world.tick.submit(make_request(f"prompt {at}", max_tokens=60), mailbox)
    world.run_dry()
    answers = list(map(answer_of, mailboxes))
    assert any(each.completions[0].finish_reason is FinishReason.STOP for each in answers)
    made = sum(answer.usage.completion_count for answer in answers)
    assert world.tick.statistics.stats(world.clock.now()).completion_tokens == made
    ticks = [record for record in world.records if isinstance(record, TickRecord)]
    assert sum(len(tick.members) for tick in ticks) == made
    assert world.backend.executed_count == len(ticks)
    assert sum(tick.batch_size for tick in ticks) > made, "nothing was computed in vain"


def test_whoever_comes_before_the_next_batch_is_sent_is_part_of_it() -> None:
    """Guards the first token: a batch that is planned early must not leave out who is here."""
    backend = Elsewhere()
    world = make_world(backend)
    world.tick.submit(make_request(id="a", max_tokens=50), Mailbox())
    for _ in range(3):
        world.tick.run()
    assert len(backend.sent) == 1, "the next one is under way"
    late, mailbox = make_request(id="b", max_tokens=1), Mailbox()
    arrivals = [late]

    def arrive() -> None:
        if arrivals:
            world.tick.submit(arrivals.pop(), mailbox)

    # It comes while that one is computed, and before another is planned.
    world.tick.run(arrive)
    world.tick.run()
    assert mailbox.ending is not None


def test_a_batch_that_nobody_wants_any_more_is_waited_for() -> None:
    """Guards the sign of life of an idle backend: it must not get an old outcome for an answer."""
    backend, mailbox = Elsewhere(), Mailbox()
    world = make_world(backend)
    world.tick.submit(make_request(id="a", max_tokens=50), mailbox)
    for _ in range(3):
        world.tick.run()
    world.tick.run(lambda: world.tick.cancel(RequestId("a")))
    assert answer_of(mailbox).was_cancelled
    world.run_dry()
    assert not backend.sent
    assert not world.tick.has_work
