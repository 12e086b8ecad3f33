"""Prefixes on disk as the scheduler sees them: who asks, who waits, what becomes of an answer."""

from dataclasses import replace

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.core import limits
from jitney.core.backend import Fetch, Fetched
from jitney.core.batch import Discard, MemoryOperation, Restore, Store, Truncate
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.scheduler import Scheduler
from jitney.core.scheduler_settings import SchedulerSettings

FAKE = FakeSettings(slots=4, kv_tokens=400, model_len_max=100, eos_period=0)
SETTINGS = SchedulerSettings(
    model_len_max=100, max_num_seqs=2, max_num_batched_tokens=100, stored_min=16
)
PROMPT = tuple(range(1, 41))


class Disk:
    """A scheduler with a disk, on which the test says what is found."""

    def __init__(self, settings: SchedulerSettings = SETTINGS, *, can_store: bool = True) -> None:
        self.backend = FakeBackend(FAKE)
        made = replace(self.backend.traits, can_store=can_store)
        self.scheduler = Scheduler(settings, made, self.backend.vocabulary.eos_tokens)
        self.asked: list[Fetch] = []
        self.scheduler.stored.ask = self.asked.append

    def submit(self, name: str, prompt: tuple[int, ...] = PROMPT, **more: object) -> None:
        params = SamplingParams(max_tokens=4, temperature=0.0)
        request = Request(id=RequestId(name), prompt=prompt, params=params, seed=0)
        self.scheduler.submit(replace(request, **more), 0.0)  # type: ignore[arg-type]

    def answer(self, asked: Fetch, length: int, held: int) -> None:
        """The backend has it, and the answer comes."""
        if length:
            hashes = [0] * (held + 1)
            self.backend._memory.keep(asked.ticket, asked.tokens[:held], hashes)
        self.scheduler.stored.take(Fetched(asked.ticket, length, held))

    def run(self, now: float = 0.0) -> tuple[MemoryOperation, ...] | None:
        """One batch; its operations. None if there was none."""
        planned = self.scheduler.plan(now)
        if planned is None:
            return None
        self.scheduler.apply(planned, self.backend.execute(planned.batch), now)
        self.scheduler.check()
        return planned.batch.operations


def of_kind(operations: tuple[MemoryOperation, ...] | None, kind: type) -> list[MemoryOperation]:
    return [each for each in operations or () if isinstance(each, kind)]


def test_a_found_prefix_is_restored_and_cut() -> None:
    """Guards against tokens of another end."""
    disk = Disk()
    disk.submit("a")
    assert disk.run() is None
    (asked,) = disk.asked
    assert asked.tokens == PROMPT[:-1]
    assert (asked.least, asked.held_max) == (16, 100)
    disk.answer(asked, 24, 30)
    operations = disk.run()
    assert of_kind(operations, Restore) == [Restore(asked.ticket, 0)]
    assert of_kind(operations, Truncate) == [Truncate(0, 24)]
    assert disk.scheduler.counters["computed_prompt_tokens"] == 16
    assert disk.scheduler.counters["fetched_tokens"] == 24


def test_a_miss_is_computed_and_asked_once() -> None:
    """Guards against a wait without an end."""
    disk = Disk()
    disk.submit("a")
    assert disk.run() is None
    disk.answer(disk.asked[0], 0, 0)
    assert disk.run() is not None
    assert len(disk.asked) == 1
    assert of_kind(disk.run(), Store), "it was much work"


def test_a_late_answer_is_waited_for_no_longer_and_then_discarded() -> None:
    """Guards against a disk that hangs, and against memory that nobody owns."""
    disk = Disk()
    disk.submit("a")
    disk.submit("b", PROMPT[::-1])
    assert disk.run() is None
    assert disk.scheduler.wake_at(0.0) == limits.FETCH_S_MAX
    assert disk.run(limits.FETCH_S_MAX - 0.1) is None
    assert disk.run(limits.FETCH_S_MAX) is not None
    assert disk.scheduler.snapshot().running_count == 2, "the other one does not ask a slow disk"
    assert disk.scheduler.wake_at(limits.FETCH_S_MAX) is None
    assert len(disk.asked) == 1
    disk.answer(disk.asked[0], 24, 24)
    assert of_kind(disk.run(11.0), Discard) == [Discard(disk.asked[0].ticket)]
    assert not disk.backend.tickets


def test_one_asks_at_a_time() -> None:
    """Guards memory: what is fetched takes as much as a slot."""
    disk = Disk()
    disk.submit("a")
    disk.submit("b", PROMPT[::-1])
    assert disk.run() is None
    assert len(disk.asked) == 1
    disk.answer(disk.asked[0], 24, 24)
    assert disk.run() is not None
    assert [each.tokens[0] for each in disk.asked] == [PROMPT[0], PROMPT[-1]]


def test_an_answer_from_before_a_failure_is_not_used() -> None:
    """Guards against a ticket that the next process does not know, or knows and nobody owns."""
    disk = Disk()
    disk.submit("a")
    disk.run()
    disk.scheduler.fail("the backend died", 0.0)
    disk.answer(disk.asked[0], 24, 24)
    assert disk.run() is None
    assert len(disk.asked) == 2
    disk.answer(disk.asked[1], 24, 24)
    operations = disk.run()
    assert of_kind(operations, Discard) == [Discard(disk.asked[0].ticket)]
    assert of_kind(operations, Restore) == [Restore(disk.asked[1].ticket, 0)]


def test_who_has_ended_gets_nothing() -> None:
    """Guards against memory that a cancelled request leaves."""
    disk = Disk()
    disk.submit("a")
    disk.run()
    disk.scheduler.cancel(RequestId("a"), 0.0)
    disk.answer(disk.asked[0], 24, 24)
    disk.submit("b", PROMPT[:5])
    assert of_kind(disk.run(), Discard)
    assert not disk.backend.tickets


def test_little_work_and_unwanted_is_neither_asked_nor_stored() -> None:
    """Guards against a wait for what is quicker to compute, and a caller's wish."""
    disk = Disk()
    disk.submit("short", PROMPT[:15])
    disk.submit("unwanted", PROMPT[::-1], is_stored=False)
    operations = [disk.run() for _ in range(5)]
    assert not disk.asked
    assert not [each for each in operations if of_kind(each, Store)]


def test_what_cannot_store_asks_nothing() -> None:
    """Guards backends without a disk, and `enable_prefix_caching: false`."""
    for disk in (Disk(can_store=False), Disk(replace(SETTINGS, enable_prefix_caching=False))):
        disk.submit("a")
        operations = [disk.run() for _ in range(3)]
        assert not disk.asked
        assert not [each for each in operations if of_kind(each, Store)]


def test_another_scope_has_another_digest() -> None:
    """Guards keys: the name of a scope is not written, and no two have the same digest."""
    disk = Disk(replace(SETTINGS, max_num_seqs=1))
    for scope in ("one", "two"):
        disk.submit(scope, scope=scope)
        disk.run()
        disk.answer(disk.asked[-1], 0, 0)
        while disk.scheduler.snapshot().unfinished_count:
            disk.run()
    one, two = (each.scope for each in disk.asked)
    assert one != two
    assert "one" not in one


def test_a_saved_limit_bounds_what_is_fetched() -> None:
    """Guards memory."""
    disk = Disk(replace(SETTINGS, saved_limit=8 * 20))
    disk.submit("a")
    disk.run()
    assert disk.asked[0].held_max == 20
    other = Disk(replace(SETTINGS, saved_limit=8 * 10))
    other.submit("a")
    assert other.run() is not None
    assert not other.asked


def test_nobody_waits_longer_for_the_answers_of_others() -> None:
    """Guards a restart of a busy server: one asks at a time, and waits would add up."""
    disk = Disk()
    disk.submit("a")
    disk.submit("b", tuple(range(50, 90)))
    assert disk.run() is None
    late = limits.FETCH_S_MAX - 1
    disk.answer(disk.asked[0], 0, 0)
    disk.run(late)
    assert len(disk.asked) == 2, "the second one asks, and has waited long"
    assert disk.scheduler.snapshot().running_count == 1
    assert disk.scheduler.wake_at(late) == limits.FETCH_S_MAX
    disk.run(limits.FETCH_S_MAX)
    assert disk.scheduler.snapshot().running_count == 2


def test_what_could_never_be_read_back_is_not_stored() -> None:
    """Guards memory and the disk: a copy that no limit holds stalls everybody in vain."""
    disk = Disk(replace(SETTINGS, saved_limit=FakeBackend(FAKE).traits.kv_bytes_per_token * 10))
    disk.submit("a")
    stored = [each for _ in range(6) for each in of_kind(disk.run(), Store)]
    assert not stored
