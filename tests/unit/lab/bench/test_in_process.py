"""Which steps of slots count as wasted, on ticks made by hand; and the end of a run."""

from jitney.config import Settings
from jitney_lab.bench.in_process import JOINING, EngineRun, engine_target, for_bench
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.bench.workload import Job, Workload, fixed
from tests.unit.lab.bench.test_scaling import tick

TICKS = [tick(number, at=float(number), tick_ms=1000.0, queue_depth=1) for number in (1, 2, 3)]


def request(sent_at: float, started_at: float | None, *token_times: float) -> RequestTimes:
    return RequestTimes(sent_at=sent_at, started_at=started_at, token_times=list(token_times))


def wasted(slot_count: int, *requests: RequestTimes) -> float:
    return EngineRun(list(requests), TICKS, 3.0, slot_count).wasted


def test_who_comes_during_a_pass_could_not_have_joined_it() -> None:
    # The second comes in the first tick, waits through the second, and runs in the third.
    runs = request(0.0, 0.0, 1.0, 2.0, 3.0)
    assert wasted(2, runs, request(0.5, 2.0, 3.0)) == 1 / 6
    # It is given its slot before the second tick begins.
    assert wasted(2, runs, request(0.5, 1.0, 2.0, 3.0)) == 0.0


def test_a_slot_whose_sequence_is_not_in_the_batch_is_not_empty() -> None:
    runs = request(0.0, 0.0, 1.0, 3.0)
    rests = request(0.0, 0.0, 3.0)
    assert wasted(2, runs, rests, request(0.0, 3.0)) == 0.0


def test_no_more_slots_are_wasted_than_requests_wait() -> None:
    runs = request(0.0, 0.0, 1.0, 2.0, 3.0)
    waits = request(0.0, 3.0)
    assert wasted(4, runs, waits) == 3 / 12
    assert wasted(4, runs, waits, waits, waits, waits) == 9 / 12
    # A request that never had a slot was refused, and waited for none.
    assert wasted(4, runs, request(0.0, None)) == 0.0


def test_after_the_last_job_the_others_are_cancelled() -> None:
    """Guards the minutes for which streams would go on after what is measured."""
    endless = Job(number=0, prompt_count=4, completion_count=200_000)
    last = Job(number=1, prompt_count=4, completion_count=1)
    room = {"max_num_seqs": 2, "max_model_len": 300_000, "kv_tokens": 600_000}
    with engine_target(for_bench(Settings(backend="fake"), **room)) as target:
        run = target.run(Workload(name="two", seed=1, jobs=(endless, last)), last_job=1)
    assert run.failures == []
    assert [each.completion_count for each in run.requests][1] == 1
    assert 0 < run.requests[0].completion_count < endless.completion_count


def test_a_window_ends_when_all_of_a_load_were_sent() -> None:
    """Guards sizes below the number of slots: they would wait for the rest of it."""
    window = {**JOINING, "max_wait_ms": 60_000.0, "max_num_seqs": 4}
    with engine_target(for_bench(Settings(backend="fake"), **window)) as target:
        before = target.engine.snapshot().counters["windows_filled"]
        run = target.run(fixed(2, 4, 1, seed=1, clients=2), gathers=True)
        after = target.engine.snapshot().counters["windows_filled"]
    assert run.ticks[0].batch_size == 2
    assert after - before == 1
