"""Rows of `docs/project/seeds.md` that no other test holds: what the seeds draw and promise.

Everything runs on the production scheduler, with ticks in place of seconds.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from jitney import LLM, BatchProcessor
from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.config import Settings, resolve
from jitney.core.backend import Traits
from jitney.core.batch import Batch, Copy, Open
from jitney.core.events import FinishEvent, FinishReason, TokensEvent
from jitney.core.params import SamplingParams
from jitney.core.request import Priority, Request, RequestId
from jitney.core.scheduler import Scheduler
from jitney.core.scheduler_settings import Policy, SchedulerSettings, Strategy
from jitney.engine.stats import Statistics
from jitney.errors import ContextLengthExceeded, QueueFull
from jitney.loading.compose import scheduler_settings
from tests.simulation.plant import catch
from tests.simulation.plants import OF_THE_PSEUDO_CODE, Plant
from tests.unit.config.test_foreign_names import PRINTED


def request(name: str, tokens: int, prompt: tuple[int, ...] | None = None) -> Request:
    """Wants exactly so many tokens; its prompt is its own unless one is given."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    own = (*name.encode(), 1, 2)
    return Request(id=RequestId(name), prompt=prompt or own, params=params, seed=0)


@dataclass
class Line:
    """A scheduler on the fake backend, and in which tick each request ended."""

    settings: SchedulerSettings
    fake: FakeSettings = field(default_factory=lambda: FakeSettings(eos_period=0))
    idle_s: float = 0.0
    """Time that passed beside the ticks."""

    def __post_init__(self) -> None:
        self.backend = FakeBackend(self.fake)
        traits, ends = self.backend.traits, self.backend.vocabulary.eos_tokens
        self.scheduler = Scheduler(self.settings, traits, ends)
        self.ended: dict[str, int] = {}
        self.reasons: dict[str, FinishReason] = {}
        self.batches: list[Batch] = []

    @property
    def now(self) -> float:
        return self.idle_s + len(self.batches)

    def submit(self, *requests: Request) -> None:
        for each in requests:
            self.scheduler.submit(each, self.now)

    def tick(self) -> Batch | None:
        """One turn; the time is the number of ticks so far, and idle time."""
        now = self.now
        planned = self.scheduler.plan(now)
        if planned is None:
            return None
        self.batches.append(planned.batch)
        for event in self.scheduler.apply(planned, self.backend.execute(planned.batch), now):
            if isinstance(event, FinishEvent):
                self.ended[event.request_id] = len(self.batches)
                self.reasons[event.request_id] = event.reason
        self.scheduler.check()
        return planned.batch

    def run_dry(self) -> None:
        while self.tick() is not None:
            assert len(self.batches) < 5000, "it does not end"
        assert not self.scheduler.snapshot().unfinished_count

    def running(self) -> set[str]:
        return {str(each.request.id) for each in self.scheduler._registry.running}


def line(**settings: object) -> Line:
    """Places for eight unless told otherwise; nothing is shared, so that work is easy to count."""
    values: dict[str, object] = {
        "model_len_max": 512,
        "max_num_seqs": 8,
        "enable_prefix_caching": False,
        **settings,
    }
    return Line(SchedulerSettings(**values))  # type: ignore[arg-type]


def test_the_defaults_that_the_seeds_print() -> None:
    """Guards 512 tokens to a chunk, continuous batching, and no window before joining."""
    settings = resolve({}, None, {}).settings
    assert (settings.prefill_chunk, settings.strategy) == (512, Strategy.CONTINUOUS)
    assert scheduler_settings(settings, TRAITS).wait_s == 0.0


TRAITS = Traits(name="", slots_max=32, kv_tokens=16_384, model_len_max=4096, batch_invariant=True)


@pytest.mark.parametrize(
    ("word", "value", "setting"),
    [
        ("n_batch", 256, "max_num_batched_tokens"),
        ("max_queue", 7, "max_num_queued_reqs"),
        ("n_ctx", 8192, "kv_tokens"),
        ("n_parallel", 8, "max_num_seqs"),
        ("n_gpu_layers", -1, "gpu_layers"),
        ("batch_size", 512, "max_num_batched_tokens"),
        ("max_batch_size", 32, "max_num_seqs"),
        ("scheduler_policy", "priority", "policy"),
        ("max_total_tokens", 131_072, "kv_tokens"),
        ("max_sequence_length", 4096, "max_model_len"),
        ("log_batch_composition", False, "log_batch_composition"),
        ("max_queue_size", 1000, "max_num_queued_reqs"),
        ("memory_limit_bytes", 2**30, "memory_limit"),
    ],
)
def test_words_of_the_seeds_are_settings(word: str, value: object, setting: str) -> None:
    """Guards whoever brings a setting along under the name that a seed has for it."""
    assert getattr(resolve({word: value}, None, {}).settings, setting) == value


def test_one_forward_pass_carries_everyone() -> None:
    """Guards ADR 006: one pass a tick, with one token for each who generates and a chunk beside."""
    one = line(prefill_chunk=4)
    one.submit(*(request(name, 20) for name in "abc"))
    one.tick()
    one.submit(request("long", 4, prompt=tuple(range(10, 40))))
    batch = one.tick()
    assert batch is not None
    assert [entry.length for entry in batch.entries] == [1, 1, 1, 4]
    assert len(one.batches) == 2


def test_a_long_prompt_is_computed_over_ticks_beside_those_who_generate() -> None:
    """Guards chunked prefill: nobody misses a tick, and only the last chunk asks for a token."""
    one = line(prefill_chunk=4)
    one.submit(request("a", 30))
    one.tick()
    one.submit(request("long", 2, prompt=tuple(range(10, 30))))
    chunks = []
    for _ in range(5):
        batch = one.tick()
        assert batch is not None
        first, chunk = batch.entries
        assert (first.length, first.wants_token) == (1, True)
        chunks.append((chunk.start, chunk.length, chunk.wants_token))
    assert chunks == [(0, 4, False), (4, 4, False), (8, 4, False), (12, 4, False), (16, 4, True)]


def test_an_entry_names_slot_position_tokens_and_whether_one_is_wanted() -> None:
    """Guards the tuple of the decision records: token, position, sequence, logits flag."""
    one = line()
    one.submit(request("a", 3, prompt=(7, 8, 9)))
    first, second = one.tick(), one.tick()
    assert first is not None
    assert second is not None
    entry, following = first.entries[0], second.entries[0]
    assert (entry.start, entry.tokens, entry.wants_token) == (0, (7, 8, 9), True)
    assert (following.slot, following.start, len(following.tokens)) == (entry.slot, 3, 1)


def test_who_finds_every_slot_taken_waits_and_is_served_in_order() -> None:
    """Guards the queue of ADR 006: no refusal because the slots are busy."""
    one = line(max_num_seqs=2)
    one.submit(*(request(name, 5) for name in "abcdef"))
    one.run_dry()
    assert sorted(one.ended, key=lambda name: (one.ended[name], name)) == list("abcdef")
    assert [one.ended[name] for name in "abcdef"] == [5, 5, 10, 10, 15, 15]


def test_work_that_is_there_is_in_the_next_tick() -> None:
    """Guards the promise that ticks fire at once: no window, no timer."""
    one = line()
    one.submit(request("a", 2))
    batch = one.tick()
    assert batch is not None
    assert one.running() == {"a"}


def test_a_newcomer_takes_the_place_of_the_one_who_ended() -> None:
    """Guards ThemisDB's picture: A B C, then B C D when A is done, then B D E when C is."""
    one = line(max_num_seqs=3)
    one.submit(request("A", 5), request("B", 12), request("C", 8), request("D", 9), request("E", 2))
    seen: list[set[str]] = []
    while one.tick() is not None:
        now = one.running()
        if now and (not seen or seen[-1] != now) and len(now) == 3:
            seen.append(now)
    assert seen[:3] == [set("ABC"), set("BCD"), set("BDE")]


def test_a_short_answer_ends_at_its_own_step() -> None:
    """Guards the course's picture: 3 and 30 tokens end after 3 and 30 steps."""
    one = line(prefill_chunk=64)
    one.submit(request("A", 3), request("B", 30))
    one.run_dry()
    assert one.ended == {"A": 3, "B": 30}


def test_a_group_runs_until_its_last_one_has_ended() -> None:
    """Guards the other picture: the next group waits for 30 steps, though A took 3."""
    one = line(max_num_seqs=2, strategy=Strategy.STATIC)
    one.submit(request("A", 3), request("B", 30), request("C", 1), request("D", 1))
    one.run_dry()
    assert one.ended["B"] == 30
    assert one.ended["C"] == one.ended["D"] == 31


def told_at(strategy: Strategy, lengths: list[int]) -> list[int]:
    """The tick in which each caller has its answer: with a group, when its last one ends."""
    one = line(max_num_seqs=4, strategy=strategy)
    names = [f"{number:03}" for number in range(len(lengths))]
    one.submit(*(request(*each) for each in zip(names, lengths, strict=True)))
    told: dict[str, int] = {}
    while one.tick() is not None:
        if not one.scheduler.holds_answers:
            told |= {name: len(one.batches) for name in one.ended if name not in told}
    return [told[name] for name in names]


def test_answers_of_mixed_length_come_sooner_and_cost_the_same() -> None:
    """Guards the course's expected gain, 30 % of the p95 at least, in ticks; the work is equal.

    The lengths repeat, so there is no chance in it.
    """
    lengths = [3, 60, 10, 30] * 10
    static, continuous = (
        sorted(told_at(strategy, lengths)) for strategy in (Strategy.STATIC, Strategy.CONTINUOUS)
    )
    assert continuous[37] <= 0.7 * static[37]
    counts = []
    for strategy in (Strategy.STATIC, Strategy.CONTINUOUS):
        one = line(max_num_seqs=4, strategy=strategy)
        one.submit(*(request(f"{n:03}", length) for n, length in enumerate(lengths)))
        one.run_dry()
        counts.append(sum(batch.token_count for batch in one.batches))
    assert counts[0] == counts[1]


def test_continuous_answers_sooner_than_every_group_strategy() -> None:
    """Guards ZigLlama's table: the lowest latency, on average and at the p95, of the four."""
    lengths = [3, 60, 10, 30] * 10
    told = {strategy: sorted(told_at(strategy, lengths)) for strategy in Strategy}
    continuous = told.pop(Strategy.CONTINUOUS)
    assert len(told) == 3
    for strategy, others in told.items():
        assert sum(continuous) < sum(others), strategy
        assert continuous[37] < others[37], strategy


def test_a_group_takes_as_long_as_its_longest_answer() -> None:
    """Guards static groups: the longest length counts, not the p95 of lengths; groups add up."""
    lengths = [3, 60, 10, 30, 2, 1, 1, 20]
    assert told_at(Strategy.STATIC, lengths) == [60] * 4 + [80] * 4


def test_answers_of_one_length_are_the_same_under_both() -> None:
    """Guards the other half of that sentence: with equal lengths there is nothing to gain."""
    lengths = [7] * 16
    assert told_at(Strategy.STATIC, lengths) == told_at(Strategy.CONTINUOUS, lengths)


def test_a_batch_holds_no_padding() -> None:
    """Guards ZigLlama's picture: sequences of 6, 3 and 4 tokens are 13 positions, not 18."""
    one = line()
    lengths = {"a": 6, "b": 3, "c": 4}
    for start, (name, count) in enumerate(lengths.items()):
        one.submit(request(name, 2, prompt=tuple(range(10 * start, 10 * start + count))))
    batch = one.tick()
    assert batch is not None
    assert batch.token_count == sum(lengths.values()) == 13


def test_a_system_prompt_is_computed_once_for_all() -> None:
    """Guards ADR 005's shared system prompt: later ones copy it and compute what is their own."""
    one = line(enable_prefix_caching=True)
    system = tuple(range(10, 74))
    one.submit(*(request(name, 2, prompt=(*system, 100 + at)) for at, name in enumerate("abcd")))
    one.run_dry()
    counters = one.scheduler.counters
    assert counters["computed_prompt_tokens"] <= len(system) + 4 * 2
    copies = [each for batch in one.batches for each in batch.operations if isinstance(each, Copy)]
    assert [each.length for each in copies] == [len(system)] * 3


def test_memory_is_given_back_at_every_end() -> None:
    """Guards the last line of ADR 005's lifecycle: completion, cancel and deadline alike."""
    one = line(request_timeout_s=3.0)
    one.submit(request("short", 2), request("left", 50), request("late", 50))
    one.tick()
    one.scheduler.cancel(RequestId("left"), 1.0)
    one.tick()
    one.scheduler.expire(99.0)
    snapshot = one.scheduler.snapshot()
    assert (snapshot.unfinished_count, snapshot.kv_used) == (0, 0)


def test_an_end_token_or_the_limit_ends_a_request() -> None:
    """Guards both ends that the seeds name."""
    one = Line(SchedulerSettings(model_len_max=512), FakeSettings(eos_period=5))
    params = SamplingParams(temperature=0.0, max_tokens=400)
    free = Request(id=RequestId("free"), prompt=(1, 2, 3), params=params, seed=0)
    one.submit(free, request("bounded", 4))
    one.run_dry()
    assert one.reasons == {"free": FinishReason.STOP, "bounded": FinishReason.LENGTH}
    assert one.ended["bounded"] == 4


def test_the_running_are_in_a_batch_before_the_new() -> None:
    """Guards `selectBatch`: who runs stays, and newcomers fill the places that are left."""
    one = line(max_num_seqs=3)
    one.submit(request("a", 9), request("b", 9))
    one.tick()
    slots = {entry.slot for entry in one.batches[0].entries}
    one.submit(*(request(name, 9) for name in "cde"))
    batch = one.tick()
    assert batch is not None
    assert {entry.slot for entry in batch.entries[:2]} == slots
    assert one.running() == {"a", "b", "c"}
    assert one.scheduler.snapshot().waiting_count == 2


def test_every_completion_of_a_request_takes_a_place() -> None:
    """Guards `max_batch_size`, which counts sequences: of four completions three run here."""
    one = line(max_num_seqs=3)
    one.submit(Request(id=RequestId("a"), prompt=(1, 2), params=SamplingParams(n=4), seed=0))
    one.tick()
    assert one.scheduler.snapshot().running_count == 3


def test_a_request_of_a_higher_class_takes_a_place_and_gives_it_back() -> None:
    """Guards ThemisDB's preemption: the low one is paused, goes on, and loses no token."""
    one = line(max_num_seqs=1, policy=Policy.PRIORITY)
    low = request("low", 10)
    one.submit(low)
    one.tick()
    high = request("high", 3)
    one.submit(
        Request(id=high.id, prompt=high.prompt, params=high.params, seed=0, priority=Priority.HIGH)
    )
    one.run_dry()
    assert one.scheduler.counters["displaced"] == 1
    assert one.ended["high"] < one.ended["low"]
    assert one.reasons["low"] is FinishReason.LENGTH


def test_a_slot_belongs_to_one_request_from_start_to_end() -> None:
    """Guards against the pseudo code, whose sequence number is a place in the list of the day."""
    one = line(max_num_seqs=3)
    one.submit(request("a", 2), request("b", 9), request("c", 9))
    slots: dict[str, set[int | None]] = {}
    while one.tick() is not None:
        for each in one.scheduler._registry.running:
            slots.setdefault(str(each.request.id), set()).add(each.slot)
    assert all(len(each) == 1 for each in slots.values()), slots


def test_positions_follow_the_prompt_without_a_gap() -> None:
    """Guards against the pseudo code, which counts a whole prompt as one position."""
    one = line(prefill_chunk=4)
    one.submit(request("a", 6, prompt=tuple(range(10, 20))))
    one.run_dry()
    covered = [
        position
        for batch in one.batches
        for entry in batch.entries
        for position in range(entry.start, entry.start + entry.length)
    ]
    assert covered == list(range(15))


def test_every_request_samples_as_it_asked() -> None:
    """Guards temperature and top_p for each request of one batch."""
    one = line()
    asked = {"a": (0.0, 1.0), "b": (0.7, 0.9), "c": (1.3, 0.5)}
    for name, (temperature, top_p) in asked.items():
        params = SamplingParams(temperature=temperature, top_p=top_p, max_tokens=2)
        one.submit(Request(id=RequestId(name), prompt=(1, 2), params=params, seed=0))
    one.tick()
    opened = [each.sampling for each in one.batches[0].operations if isinstance(each, Open)]
    assert [(each.temperature, each.top_p) for each in opened] == list(asked.values())


def test_an_even_part_of_the_memory_is_1024_of_8192() -> None:
    """Guards ADR 005's arithmetic, `n_ctx` over `n_parallel`, where it is chosen."""
    words = {"n_ctx": 8192, "n_parallel": 8, "max_per_sequence": "even"}
    settings = resolve(words, None, {}).settings
    traits = replace(TRAITS, slots_max=8, kv_tokens=8192)
    assert scheduler_settings(settings, traits).model_len_max == 1024
    assert scheduler_settings(Settings(), traits).model_len_max == 4096


def test_a_sequence_is_bounded_and_so_is_the_queue() -> None:
    """Guards the limits that the seeds name: per sequence, and requests that may wait."""
    one = line(model_len_max=16, max_num_queued_reqs=1, max_num_seqs=1)
    with pytest.raises(ContextLengthExceeded):
        one.submit(request("long", 1, prompt=tuple(range(16))))
    one.submit(request("a", 100))
    one.tick()
    one.submit(request("b", 2))
    with pytest.raises(QueueFull):
        one.submit(request("c", 2))
    one.run_dry()
    assert one.ended["a"] == 16 - len(request("a", 1).prompt)


def test_a_token_is_told_in_the_tick_that_made_it() -> None:
    """Guards streaming: the event of a token comes with the outcome of its own pass."""
    one = line()
    one.submit(request("a", 3))
    planned = one.scheduler.plan(0.0)
    assert planned is not None
    events = one.scheduler.apply(planned, one.backend.execute(planned.batch), 0.0)
    assert [event.names for event in events if isinstance(event, TokensEvent)] == [[("a", 0)]]


def test_priorities_count_up() -> None:
    """Guards the numbers of the seeds: the higher is served first, and normal is the default."""
    assert [(each.name, each.value) for each in Priority] == [
        ("LOW", 0),
        ("NORMAL", 1),
        ("HIGH", 2),
        ("CRITICAL", 3),
    ]
    assert request("a", 1).priority is Priority.NORMAL


def test_nothing_to_do_is_no_batch() -> None:
    """Guards an idle engine: no empty forward pass."""
    assert line().tick() is None


def test_a_wait_by_the_name_of_the_chapter_reaches_the_gate() -> None:
    """Guards `max_wait_time_ms`, 100 in ZigLlama's chapter."""
    words = {"strategy": "dynamic", "max_wait_time_ms": 100}
    one = line(strategy=Strategy.DYNAMIC, wait_s=0.1)
    assert scheduler_settings(resolve(words, None, {}).settings, TRAITS).wait_s == 0.1
    one.submit(request("a", 1))
    assert one.tick() is None
    assert one.scheduler.wake_at(0.0) == 0.1


def test_the_block_of_the_guide_runs_as_printed(tmp_path: Path) -> None:
    """Guards ThemisDB's users: their file, unchanged, is in force and requests are answered."""
    file = tmp_path / "themisdb.yaml"
    file.write_text(PRINTED, encoding="utf-8")
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    with LLM(config=file, backend="fake") as llm:
        outputs = llm.generate(["one", "two"], params)
        assert (llm.settings.max_num_seqs, llm.settings.max_wait_ms) == (32, 50)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 3]


@pytest.mark.parametrize("plant", OF_THE_PSEUDO_CODE, ids=lambda plant: plant.name)
def test_a_slip_of_the_pseudo_code_is_caught(plant: Plant) -> None:
    """Guards what the page says of ThemisDB's code: each slip, planted, fails a simulation."""
    assert catch(plant, seeds_max=20).seed is not None


def test_the_queue_is_counted_now_and_at_its_longest() -> None:
    """Guards the two figures of a queue that statistics have."""
    one = line(max_num_seqs=1)
    statistics = Statistics(0.0, one.scheduler.snapshot())
    one.submit(*(request(name, 1) for name in "abc"))
    statistics.note(one.scheduler.snapshot(), 0.0)
    one.tick()
    statistics.note(one.scheduler.snapshot(), 0.0)
    stats = statistics.stats(1.0)
    assert (stats.current_queue_size, stats.queued_requests, stats.peak_queue_size) == (2, 2, 3)


def test_two_processors_on_one_model_share_no_id() -> None:
    """Guards ids that are drawn: counted ones would meet where two processors share a model."""
    with LLM(backend="fake") as llm, BatchProcessor(llm) as one, BatchProcessor(llm) as other:
        ids = [each.submit("same") for each in (one, other) for _ in range(3)]
    assert len(set(ids)) == 6
