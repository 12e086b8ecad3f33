"""`BatchProcessor`: ZigLlama's interface over our engine, under each of its strategies."""

import math
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitney import (
    LLM,
    BatchConfig,
    BatchingStrategy,
    BatchProcessor,
    BatchRequest,
    BatchResult,
    FinishReason,
    RequestId,
    RequestPriority,
    SamplingParams,
)
from jitney.core.scheduler_settings import Strategy
from jitney.errors import ConfigError, DeadlineExceeded, EngineStopped, InvalidRequest, QueueFull
from jitney.loading import compose

ROOT = Path(__file__).parents[3]
WAIT_S = 60.0
GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


class Results:
    """A callback that keeps what it is given, and is slow or raises for some of it."""

    def __init__(self, awaited: int) -> None:
        self.given: list[BatchResult] = []
        self.all_came = threading.Event()
        self.gate = threading.Event()
        self._awaited = awaited
        self._lock = threading.Lock()

    def __call__(self, result: BatchResult, user_data: object) -> None:
        assert user_data is self
        if result.request.prompt == "slow":
            assert self.gate.wait(WAIT_S)
        with self._lock:
            self.given.append(result)
            is_last_but_slow = len(self.given) == self._awaited - 1
            if len(self.given) == self._awaited:
                self.all_came.set()
        if is_last_but_slow:
            self.gate.set()
        if result.request.prompt == "raising":
            raise ValueError("the caller's own")


def processor(config: BatchConfig, results: Results, **settings: object) -> BatchProcessor:
    return BatchProcessor(None, config, results, results, backend="fake", **settings)


@pytest.mark.parametrize(
    ("strategy", "waits_ms", "settings"),
    [
        (BatchingStrategy.FixedSize, 5, {}),
        (BatchingStrategy.DynamicTimeout, 5, {}),
        (BatchingStrategy.Adaptive, 5, {}),
        (BatchingStrategy.Continuous, None, {}),
        (BatchingStrategy.Continuous, 5, {"min_batch_size": 4}),
    ],
    ids=[*(each.name for each in BatchingStrategy), "Continuous with a window"],
)
def test_two_hundred_prompts_are_called_back_once_under_each_strategy(
    strategy: BatchingStrategy, waits_ms: float | None, settings: dict[str, object]
) -> None:
    """Guards exactly one result each, a slow and a raising callback among them, and the stats.

    The slow one returns only when every other result is there.
    """
    prompts = ["slow", "raising", *(f"number {number}" for number in range(198))]
    results = Results(len(prompts))
    with processor(
        BatchConfig(strategy=strategy, max_wait_time_ms=waits_ms), results, **settings
    ) as running:
        ids = [running.submit(prompt, GREEDY) for prompt in prompts]
        assert results.all_came.wait(WAIT_S)
    assert Counter(each.request_id for each in results.given) == Counter(ids)
    assert len(set(ids)) == 200
    stats = running.get_stats()
    assert stats.total_requests == stats.completed_requests == 200
    assert (stats.timeout_count, stats.error_count, stats.current_queue_size) == (0, 0, 0)
    assert 1 <= stats.avg_batch_size <= 8
    assert stats.peak_queue_size >= 1
    sampled = sum(each.num_tokens + (each.stop_reason == "stop") for each in results.given)
    assert stats.completion_tokens == sampled
    waited = sum(each.queue_time_ms for each in results.given) / 200
    assert stats.avg_queue_time_ms == pytest.approx(waited, rel=1e-3, abs=0.05)
    total = sum(each.queue_time_ms + each.latency_ms for each in results.given) / 200
    assert stats.avg_latency_ms == pytest.approx(total, rel=1e-3, abs=0.05)


@pytest.mark.parametrize("word", ["dynamic_timeout", "Dynamic-Timeout", ".DynamicTimeout"])
def test_a_strategy_is_found_by_any_spelling_of_its_name(word: str) -> None:
    """Guards callers of the seed's names, which config files write in other ways."""
    assert BatchingStrategy(word) is BatchingStrategy.DynamicTimeout


def test_results_are_those_of_the_model() -> None:
    """Guards text, tokens and log probabilities, none of which was asked for."""
    results = Results(3)
    prompts = ["the bus", "the tram", "the ferry"]
    with LLM(backend="fake") as llm:
        expected = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=6, logprobs=1))
    with processor(BatchConfig(), results) as running:
        ids = [running.submit(prompt, GREEDY) for prompt in prompts]
    found = {each.request_id: each for each in results.given}
    for request_id, output in zip(ids, expected, strict=True):
        result, completion = found[request_id], output.outputs[0]
        assert (result.text, result.tokens) == (completion.text, completion.token_ids)
        assert result.num_tokens == len(result.log_probs) == len(result.tokens)
        assert result.total_log_prob == pytest.approx(completion.cumulative_logprob)
        assert result.total_log_prob == pytest.approx(sum(result.log_probs))
        assert result.stop_reason is FinishReason(completion.finish_reason)
        assert result.error is None


def test_what_the_seeds_struct_holds_are_attributes() -> None:
    """Guards `processor.queue` and its neighbours: each was an AttributeError."""
    results = Results(2)
    # A third one, for which both wait, never comes.
    config = BatchConfig(strategy="FixedSize", max_batch_size=3, max_wait_time_ms=math.inf)
    made = processor(config, results)
    assert (made.model, made.config, made.queue) == (None, config, [])
    assert (made.result_callback, made.user_data) == (results, results)
    made.start()
    ids = [made.submit(prompt, GREEDY) for prompt in ("one", "two")]
    assert [(each.id, each.prompt) for each in made.queue] == [(ids[0], "one"), (ids[1], "two")]
    assert made.stats.total_requests == 2
    made.stop(0.0)
    assert results.all_came.wait(WAIT_S)
    assert made.queue == []
    with LLM(backend="fake") as llm:
        given = BatchProcessor(llm)
        assert (given.model, given.config) == (llm, None)


def test_a_request_has_its_moments_in_order() -> None:
    """Guards what was asked, and queue time and processing time, which are told apart."""
    results = Results(1)
    with processor(BatchConfig(strategy="Continuous"), results) as running:
        request_id = running.submit("a", GREEDY)
    (result,) = results.given
    request = result.request
    assert (request.id, request.prompt) == (request_id, "a")
    assert request.config == replace(GREEDY, logprobs=0)
    assert request.started_at is not None
    assert request.completed_at is not None
    assert request.created_at <= request.started_at <= request.completed_at
    assert request.completed
    assert request.max_tokens == 6
    assert request.get_queue_time() == result.queue_time_ms
    assert request.get_latency() == result.latency_ms
    assert request.generated_text == result.text
    assert request.generated_tokens == result.tokens
    assert request.cumulative_log_prob == result.total_log_prob


def test_a_request_that_has_not_ended_knows_no_times() -> None:
    """Guards against a latency of something that goes on."""
    request = BatchRequest(id=RequestId("a"), prompt="a", config=GREEDY, created_at=5.0)
    assert not request.completed
    assert (request.get_latency(), request.get_queue_time(), request.stop_reason) == (None,) * 3
    request.mark_completed(None, 8.0)
    assert (request.get_latency(), request.get_queue_time()) == (None, 3.0)
    assert request.stop_reason is FinishReason.FAILED


def test_a_timeout_reaches_the_callback_and_is_counted() -> None:
    """Guards callers with nothing but the callback: what fails is told there too."""
    results = Results(1)
    with processor(BatchConfig(), results, request_timeout_s=1e-6) as running:
        running.submit("a", GREEDY)
        assert results.all_came.wait(WAIT_S)
        assert running.get_stats().timeout_count == 1
    (result,) = results.given
    assert isinstance(result.error, DeadlineExceeded)
    assert result.stop_reason is FinishReason.DEADLINE
    assert (result.text, result.tokens, result.latency_ms) == ("", [], 0.0)
    assert result.queue_time_ms > 0


def test_several_threads_start_it_once() -> None:
    """Guards memory: each start beside another one loaded a model that nobody released."""
    processor = BatchProcessor(backend="fake")
    before = threading.active_count()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: processor.start(), range(6)))
    processor.stop()
    assert threading.active_count() <= before, [each.name for each in threading.enumerate()]


def test_the_tokenizer_of_the_seed_is_refused_with_a_sentence() -> None:
    """Guards who calls it as the chapter does: model, tokenizer, config."""
    with pytest.raises(ConfigError, match="the model brings its own"):
        BatchProcessor(None, object())  # type: ignore[arg-type]


def test_it_starts_again_after_a_stop() -> None:
    """Guards restarts: the model is loaded anew, and what was counted begins anew."""
    results = Results(2)
    running = processor(BatchConfig(max_wait_time_ms=1), results)
    with pytest.raises(EngineStopped, match="call start first"):
        running.submit("a", GREEDY)
    with pytest.raises(EngineStopped, match="call start first"):
        running.get_stats()
    running.stop()
    for count in (1, 2):
        running.start()
        running.start()
        running.submit("a", GREEDY)
        running.stop()
        running.stop()
        assert len(results.given) == count
        assert running.get_stats().total_requests == 1
        with pytest.raises(EngineStopped, match="call start again"):
            running.submit("a", GREEDY)


def test_a_full_queue_refuses_at_the_door() -> None:
    """Guards `max_queue_size`: who is refused is told so once, by the exception; and the results
    of who was cut short by a stop that does not wait."""
    results = Results(2)
    config = BatchConfig(max_batch_size=3, max_queue_size=2, max_wait_time_ms=60_000)
    running = processor(config, results)
    running.start()
    running.submit("a", GREEDY)
    running.submit("b", GREEDY)
    with pytest.raises(QueueFull):
        running.submit("c", GREEDY)
    running.stop(0.0)
    assert [each.request.prompt for each in results.given] == ["a", "b"]
    assert {each.stop_reason for each in results.given} == {FinishReason.CANCELLED}


def test_a_loaded_model_is_used_and_left_loaded() -> None:
    """Guards an `LLM` that others use too: a stop waits for the results and closes nothing."""
    results = Results(20)
    with LLM(backend="fake", strategy="dynamic", max_num_seqs=4, max_wait_ms=5) as llm:
        with BatchProcessor(llm, None, results, results) as running:
            for number in range(20):
                running.submit(f"number {number}", GREEDY)
        assert len(results.given) == 20
        assert running.get_stats().total_requests == 20
        assert llm.generate("after", GREEDY)[0].finished
        config = BatchConfig(max_batch_size=4, max_wait_time_ms=5, max_queue_size=1024)
        assert BatchProcessor(llm, config) is not None
        with pytest.raises(ConfigError, match="loaded with max_num_seqs 4, and 8 is wanted"):
            BatchProcessor(llm, BatchConfig())


def test_a_callback_may_stop_a_processor_of_a_loaded_model() -> None:
    """Guards against a callback that waits for itself until the drain is over.

    Another request is under way meanwhile, and is waited for.
    """
    kept: list[str] = []
    seen: list[list[str]] = []
    stopped = threading.Event()

    def stop(result: BatchResult, user_data: object) -> None:
        if result.request.prompt == "stopping":
            running.stop(10 * WAIT_S)
            seen.append(list(kept))
            stopped.set()
        else:
            kept.append(str(result.request.prompt))

    with LLM(backend="fake") as llm:
        running = BatchProcessor(llm, None, stop)
        running.start()
        long = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
        running.submit("long", long)
        running.submit("stopping", GREEDY)
        assert stopped.wait(WAIT_S)
    assert seen == [["long"]]


def test_a_result_that_cannot_be_made_is_counted_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards `stop` against an end that failed before the callback: nobody is waited for."""

    def fail(*_: object) -> None:
        raise ValueError("of the test")

    monkeypatch.setattr(BatchRequest, "mark_completed", fail)
    with LLM(backend="fake") as llm, BatchProcessor(llm) as running:
        running.submit("a", GREEDY)
        running.stop(10 * WAIT_S)
        assert llm.callback_failed_count == 1


@pytest.mark.parametrize("strategy", list(BatchingStrategy))
def test_a_model_that_was_loaded_with_the_defaults_agrees(strategy: BatchingStrategy) -> None:
    """Guards against a refusal of what is the same: a wait that was left out, and its number."""
    wait_s = compose.WAIT_S[Strategy(strategy)]
    waits_ms = math.inf if wait_s is None else wait_s * 1e3
    with LLM(backend="fake", strategy=str(strategy), max_num_queued_reqs=1000) as llm:
        size = llm.settings.max_num_seqs
        agreeing = BatchConfig(strategy=strategy, max_batch_size=size, max_wait_time_ms=waits_ms)
        assert BatchProcessor(llm, agreeing, max_wait_ms=None) is not None
        assert BatchProcessor(llm, agreeing) is not None
        other = replace(agreeing, max_wait_time_ms=7)
        loaded = None if wait_s is None else waits_ms
        with pytest.raises(ConfigError, match=f"max_wait_ms {loaded}, and 7.0 is wanted"):
            BatchProcessor(llm, other)


def test_a_loaded_timer_is_not_a_wait_until_full() -> None:
    """Guards FixedSize as the seed has it: for ever is not any number of milliseconds."""
    settings: Any = {"strategy": "static", "max_wait_ms": 5, "max_num_queued_reqs": 1000}
    with LLM(backend="fake", max_num_seqs=8, **settings) as llm:
        assert BatchProcessor(llm, BatchConfig(strategy="FixedSize", max_wait_time_ms=5))
        with pytest.raises(ConfigError, match=r"max_wait_ms 5\.0, and None is wanted"):
            BatchProcessor(llm, BatchConfig(strategy="FixedSize"))


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_fixed_size_is_waited_for_until_the_processor_stops(is_loaded: bool) -> None:
    """Guards FixedSize: eight start when the eighth comes, and three more when nobody else can."""
    results = Results(8)
    config = BatchConfig(strategy="FixedSize")
    with ExitStack() as stack:
        settings: Any = {"backend": "fake", **config.settings()}
        llm = stack.enter_context(LLM(**settings)) if is_loaded else None
        running = BatchProcessor(llm, config, results, results, **({} if llm else settings))
        running.start()
        for number in range(7):
            running.submit(f"number {number}", GREEDY)
        # The engine answers between ticks, so the second answer comes after a tick that saw all.
        assert [len(running.queue) for _ in range(2)] == [7, 7]
        running.submit("number 7", GREEDY)
        assert results.all_came.wait(WAIT_S)
        for number in range(8, 11):
            running.submit(f"number {number}", GREEDY)
        assert [len(running.queue) for _ in range(2)] == [3, 3]
        running.stop(WAIT_S)
        assert len(results.given) == 11
        assert running.get_stats().counters["groups_departed"] == 2


def test_priorities_are_the_seeds_and_count_up() -> None:
    """Guards the direction, and one completion for each result."""
    numbers = {each.name: each.value for each in RequestPriority}
    assert numbers == {"Low": 0, "Normal": 1, "High": 2, "Critical": 3}
    results = Results(3)
    with processor(BatchConfig(enable_priority=True), results) as running:
        running.submit("a", GREEDY, RequestPriority.Critical)
        running.submit("b", GREEDY, "high")
        running.submit("c", None, 0)
        with pytest.raises(InvalidRequest, match="3 \\(critical\\), and got 7"):
            running.submit("d", GREEDY, 7)
        with pytest.raises(InvalidRequest, match="one completion"):
            running.submit("d", SamplingParams(n=2))
    assert len(results.given) == 3


def test_the_example_runs() -> None:
    """Guards the first thing that a newcomer copies."""
    command = [sys.executable, "examples/batch_processor.py", "--backend", "fake"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "9 requests in" in done.stdout


def test_a_stop_waits_for_a_submission_that_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards its result, which comes before the end of `stop`."""
    begun, may_go = threading.Event(), threading.Event()
    with LLM(backend="fake") as llm:
        results = Results(1)
        processor = BatchProcessor(llm, None, results, results)
        processor.start()
        submit = llm.submit

        def late(*arguments: Any, **named: Any) -> Any:  # Any: whatever `submit` takes and gives
            begun.set()
            assert may_go.wait(WAIT_S)
            return submit(*arguments, **named)

        monkeypatch.setattr(llm, "submit", late)
        stopping = threading.Thread(target=processor.stop, args=(WAIT_S,))
        threading.Thread(target=processor.submit, args=("one", GREEDY)).start()
        assert begun.wait(WAIT_S)
        stopping.start()
        may_go.set()
        stopping.join(WAIT_S)
        assert len(results.given) == 1
