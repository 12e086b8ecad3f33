"""The statistics: what is counted, and what the averages are averages of."""

from dataclasses import fields, replace

import pytest

from jitney.backends.fake.backend import FakeSettings
from jitney.core.request import RequestId
from jitney.core.rules.cost import Fit
from jitney.engine.stats import Statistics, Stats
from jitney.errors import BackendFailed, DeadlineExceeded
from jitney.records import RequestAccepted, RequestDone, RequestStarted, TickRecord
from tests.snapshots_for_tests import IDLE
from tests.unit.engine.worlds import FaultyBackend, make_request, make_world
from tests.unit.server.observe import records_for_tests as records


def accepted(at: float) -> RequestAccepted:
    return records.accepted(at, "a", 3)


def started(at: float, waited_ms: float) -> RequestStarted:
    return records.started(at, "a", waited_ms / 1e3, cached=2)


def done(at: float, duration_ms: float, *, was_cancelled: bool = False) -> RequestDone:
    return replace(records.done(at, "a", cancelled=was_cancelled), duration_ms=duration_ms)


def tick(at: float, batch_size: int, forward_ms: float, sampled_tokens: int) -> TickRecord:
    """One of four prefilled tokens and a decode, which took a quarter of the time."""
    return replace(
        records.tick(at, 1, took_s=forward_ms / 1e3),
        batch_size=batch_size,
        prefill_tokens=4,
        sampled_tokens=sampled_tokens,
        decode_ms=forward_ms / 4,
    )


NOTHING = replace(IDLE, slot_count=8, kv_tokens=0)


@pytest.fixture
def statistics() -> Statistics:
    """Of an engine that has done nothing yet."""
    return Statistics(0.0, NOTHING)


def test_nothing_yet_is_zeros(statistics: Statistics) -> None:
    """Guards against a division by zero in the first second of a server."""
    stats = statistics.stats(0.0)
    assert (stats.total_requests, stats.avg_batch_size, stats.tokens_per_second) == (0, 0.0, 0.0)
    assert stats.gpu_utilization == 0.0


def test_every_accepted_request_is_in_exactly_one_place(statistics: Statistics) -> None:
    """Guards invariant 7."""
    for _ in range(5):
        statistics.take(accepted(1.0))
    statistics.take(done(2.0, 100.0))
    statistics.take(done(2.0, 100.0, was_cancelled=True))
    statistics.take(records.failed(2.0, "a", DeadlineExceeded("late")))
    statistics.take(records.failed(2.0, "a", BackendFailed("broken")))
    stats = statistics.stats(3.0)
    assert stats.total_requests == 5
    assert stats.total_requests == (
        stats.completed_requests
        + stats.cancelled_requests
        + stats.failed_requests
        + stats.live_requests
    )
    assert (stats.timeout_count, stats.error_count, stats.live_requests) == (1, 1, 1)


def test_rates_are_per_second_of_busy_time(statistics: Statistics) -> None:
    """Guards against rates that decay while nobody asks for anything."""
    statistics.take(accepted(10.0))
    statistics.take(tick(11.0, 1, 500.0, 8))
    statistics.take(done(12.0, 2000.0))
    statistics.take(accepted(20.0))
    statistics.take(done(22.0, 2000.0))
    stats = statistics.stats(40.0)
    assert stats.busy_s == 4.0
    assert stats.requests_per_second == 0.5
    assert stats.tokens_per_second == 2.0
    assert stats.gpu_utilization == 0.5 / 40.0


def test_averages_are_over_what_was_seen(statistics: Statistics) -> None:
    """Guards the averages of the seeds' statistics."""
    for at, waited_ms in ((1.0, 10.0), (1.0, 30.0)):
        statistics.take(accepted(at))
        statistics.take(started(at, waited_ms))
    statistics.take(tick(2.0, 2, 1.0, 2))
    statistics.take(tick(2.0, 4, 1.0, 4))
    statistics.take(done(3.0, 100.0))
    statistics.take(done(3.0, 300.0))
    stats = statistics.stats(4.0)
    assert stats.avg_batch_size == 3.0
    assert stats.avg_latency_ms == 200.0
    assert stats.avg_queue_time_ms == stats.avg_wait_time_ms == 20.0
    assert (stats.total_batches, stats.computed_prompt_tokens, stats.cached_tokens) == (2, 8, 4)


def test_averages_leave_out_the_background(statistics: Statistics) -> None:
    """Guards the averages beside a batch, whose lines may wait for hours; and that they count."""
    for name, waited_ms in (("a", 10.0), ("x", 9e6)):
        request_id = RequestId(name)
        begin = replace(accepted(1.0), request_id=request_id, is_background=name == "x")
        statistics.take(begin)
        statistics.take(replace(started(1.0, waited_ms), request_id=request_id))
        statistics.take(replace(done(3.0, waited_ms + 90.0), request_id=request_id))
    stats = statistics.stats(4.0)
    assert (stats.avg_queue_time_ms, stats.avg_latency_ms) == (10.0, 100.0)
    assert (stats.total_requests, stats.completed_requests, stats.live_requests) == (2, 2, 0)


def test_shares_of_time_are_a_recount_of_the_records_and_together_one() -> None:
    """Guards the split: a pass with both kinds belonged to one of them, and idle time to nobody.

    The backend is said to take 10 ms and 1 ms for each token, which is what the fit must find.
    """

    backend = FaultyBackend(FakeSettings(eos_period=0, tick_s=0.01, token_s=0.001))
    world = make_world(backend, model_len_max=400, max_num_seqs=4, prefill_chunk=16)
    for number in range(20):
        prompt = tuple(range(5 * number, 5 * number + 60))
        world.submit(replace(make_request(max_tokens=5 + 3 * number), prompt=prompt))
        if number == 3:
            # The first four end one after the other: batches of every size, without prefill.
            world.run_dry()
    world.run_dry()
    ticks = world.records_of(TickRecord)
    mixed = [each for each in ticks if each.decode_tokens and each.prefill_tokens]
    assert len(mixed) > 10
    for each in mixed:
        assert each.decode_ms == pytest.approx(10 + each.decode_tokens), each
    prefill_ms = sum(each.forward_ms - each.decode_ms for each in ticks)
    decode_ms = sum(each.decode_ms for each in ticks)
    uptime_s = 2 * (prefill_ms + decode_ms) / 1e3
    stats = world.tick.statistics.stats(world.clock.moment + uptime_s)
    assert stats.prefill_share == pytest.approx(prefill_ms / 1e3 / uptime_s)
    assert stats.decode_share == pytest.approx(decode_ms / 1e3 / uptime_s)
    assert stats.idle_share == pytest.approx(0.5)
    assert stats.prefill_share + stats.decode_share + stats.idle_share == pytest.approx(1.0)
    assert stats.fixed_cost_ms == pytest.approx(10.0)
    assert stats.cost_per_sequence_ms == pytest.approx(1.0)


def test_shares_are_together_one_however_long_the_backend_says_it_took(
    statistics: Statistics,
) -> None:
    """Guards the first second, and a backend whose clock is not ours."""
    stats = statistics.stats(0.0)
    assert (stats.prefill_share, stats.decode_share, stats.idle_share) == (0.0, 0.0, 1.0)
    statistics.take(tick(1.0, 1, 8000.0, 1))
    stats = statistics.stats(1.0)
    assert (stats.prefill_share, stats.decode_share, stats.idle_share) == (0.75, 0.25, 0.0)


def test_idle_slots_are_those_that_could_run_beside_the_others(statistics: Statistics) -> None:
    """Guards the count of idle slots: what is kept for its prefix takes nobody's place."""
    statistics.note(replace(NOTHING, running_count=3, cached_count=7), 0.0)
    stats = statistics.stats(1.0)
    assert (stats.slot_count, stats.active_slots, stats.idle_slots) == (8, 3, 5)
    assert stats.cached_slots == 7


def test_the_cost_of_a_batch_is_told_when_two_sizes_were_seen(statistics: Statistics) -> None:
    """Guards against a fixed cost that is no such thing: one size tells nothing apart."""
    for fit, expected in (
        (None, (None, None, None, None)),
        (Fit(0.012, None), (None, None, None, None)),
        (Fit(0.023, 0.002), (23.0, 2.0, 40.0, 500.0)),
        (Fit(0.012, -0.002), (None, None, None, None)),
        (Fit(-0.001, 0.002), (None, None, None, None)),
    ):
        statistics.note(replace(NOTHING, fit=fit), 0.0)
        stats = statistics.stats(1.0)
        costs_ms = (stats.fixed_cost_ms, stats.cost_per_sequence_ms)
        limits = (stats.tokens_per_second_of_one, stats.tokens_per_second_limit)
        assert (*costs_ms, *limits) == expected


BATCH_STATS = {
    "total_requests", "total_batches", "avg_batch_size", "avg_latency_ms", "avg_queue_time_ms",
    "requests_per_second", "tokens_per_second", "current_queue_size", "peak_queue_size",
    "timeout_count", "error_count",
}  # fmt: skip
CONTINUOUS_BATCHING_STATS = {
    "total_requests", "completed_requests", "queued_requests", "avg_batch_size",
    "avg_wait_time_ms", "gpu_utilization",
}  # fmt: skip


def test_every_figure_of_the_two_lists_has_its_name() -> None:
    """Guards whoever comes with ZigLlama's BatchStats or ThemisDB's ContinuousBatchingStats."""
    names = {each.name for each in fields(Stats)}
    assert names >= BATCH_STATS
    assert names >= CONTINUOUS_BATCHING_STATS


def test_a_stall_is_counted_from_the_last_tick_or_from_when_one_was_due(
    statistics: Statistics,
) -> None:
    """Guards health and the alert: idle time, a pause and a window are no stall."""
    assert statistics.stalled_s(90.0) == 0.0
    statistics.note(replace(NOTHING, running_count=1), 90.0)
    assert statistics.stalled_s(97.0) == 7.0
    statistics.take(tick(97.0, 1, 5.0, 1))
    assert statistics.stalled_s(100.0) == 3.0
    statistics.note(replace(NOTHING, paused_count=1), 100.0)
    assert statistics.stalled_s(500.0) == 0.0
    statistics.note(replace(NOTHING, waiting_count=1, deferred_count=1), 500.0)
    assert statistics.stalled_s(600.0) == 0.0
    statistics.note(replace(NOTHING, waiting_count=1), 600.0)
    assert statistics.stalled_s(601.0) == 1.0


def test_time_in_which_all_are_paused_is_not_busy(statistics: Statistics) -> None:
    """Guards the rates, which tell refused callers when to come back: a pause is no work, and the
    time in which a group is gathered belongs to it."""
    statistics.take(accepted(10.0))
    statistics.note(replace(NOTHING, running_count=1), 10.0)
    statistics.note(replace(NOTHING, paused_count=1), 12.0)
    assert statistics.stats(100.0).busy_s == 2.0
    statistics.note(replace(NOTHING, running_count=1), 100.0)
    assert statistics.stats(101.0).busy_s == 3.0
    statistics.note(replace(NOTHING, waiting_count=1, deferred_count=1), 101.0)
    assert statistics.stats(102.0).busy_s == 4.0
