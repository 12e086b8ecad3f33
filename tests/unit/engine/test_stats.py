"""The tally: what is counted, and what the averages are averages of."""

from jitney.core.gauges import Gauges
from jitney.core.request import Priority, RequestId
from jitney.engine.records import (
    RequestAccepted,
    RequestDone,
    RequestFailed,
    RequestStarted,
    TickRecord,
)
from jitney.engine.stats import Tally
from jitney.errors import BackendFailed, DeadlineExceeded, JitneyError


def accepted(at: float, prompt_tokens: int = 3) -> RequestAccepted:
    return RequestAccepted(
        at=at,
        request_id=RequestId("a"),
        prompt_tokens=prompt_tokens,
        arrived_at=at,
        sent_at=at,
        completions=1,
        max_tokens=None,
        priority=Priority.NORMAL,
        tenant="",
    )


def started(at: float, waited_ms: float) -> RequestStarted:
    return RequestStarted(
        at=at,
        request_id=RequestId("a"),
        prompt_tokens=3,
        prefix_cache_tokens=2,
        waited_ms=waited_ms,
    )


def done(at: float, duration_ms: float, *, was_cancelled: bool = False) -> RequestDone:
    return RequestDone(
        at=at,
        request_id=RequestId("a"),
        prompt_tokens=3,
        generated_tokens=5,
        duration_ms=duration_ms,
        queue_ms=None,
        ttft_ms=None,
        prompt_eval_rate=0.0,
        generation_rate=0.0,
        prefix_cache_tokens=0,
        prefix_cache_ratio=0.0,
        preempted_count=0,
        was_cancelled=was_cancelled,
        stop_reason="stop",
    )


def failed(at: float, error: JitneyError) -> RequestFailed:
    return RequestFailed(
        at=at, request_id=RequestId("a"), error=error, generated_tokens=0, duration_ms=1.0
    )


def tick(at: float, batch_size: int, forward_ms: float, sampled_tokens: int) -> TickRecord:
    return TickRecord(
        at=at,
        number=1,
        batch_size=batch_size,
        decode_tokens=1,
        prefill_tokens=4,
        active_slots=1,
        queue_depth=0,
        kv_used=0,
        kv_cached=0,
        sampled_tokens=sampled_tokens,
        preempted_count=0,
        forward_ms=forward_ms,
        tick_ms=forward_ms,
    )


NOTHING = Gauges(
    running_count=0,
    prefilling_count=0,
    waiting_count=0,
    paused_count=0,
    waiting_tokens=0,
    deferred_count=0,
    cached_count=0,
    kv_tokens=0,
    kv_used=0,
    kv_cached=0,
    counters={},
)


def test_nothing_yet_is_zeros() -> None:
    """Guards against a division by zero in the first second of a server."""
    stats = Tally(0.0, NOTHING).snapshot(0.0)
    assert (stats.total_requests, stats.avg_batch_size, stats.tokens_per_second) == (0, 0.0, 0.0)
    assert stats.gpu_utilization == 0.0


def test_every_accepted_request_is_in_exactly_one_place() -> None:
    """Guards invariant 7."""
    tally = Tally(0.0, NOTHING)
    for _ in range(5):
        tally.take(accepted(1.0))
    tally.take(done(2.0, 100.0))
    tally.take(done(2.0, 100.0, was_cancelled=True))
    tally.take(failed(2.0, DeadlineExceeded("late")))
    tally.take(failed(2.0, BackendFailed("broken")))
    stats = tally.snapshot(3.0)
    assert stats.total_requests == 5
    assert stats.total_requests == (
        stats.completed_requests
        + stats.cancelled_requests
        + stats.failed_requests
        + stats.live_requests
    )
    assert (stats.timeout_count, stats.error_count, stats.live_requests) == (1, 1, 1)


def test_rates_are_per_second_of_busy_time() -> None:
    """Guards against rates that decay while nobody asks for anything."""
    tally = Tally(0.0, NOTHING)
    tally.take(accepted(10.0))
    tally.take(tick(11.0, 1, 500.0, 8))
    tally.take(done(12.0, 2000.0))
    tally.take(accepted(20.0))
    tally.take(done(22.0, 2000.0))
    stats = tally.snapshot(40.0)
    assert stats.busy_s == 4.0
    assert stats.requests_per_second == 0.5
    assert stats.tokens_per_second == 2.0
    assert stats.gpu_utilization == 0.5 / 40.0


def test_averages_are_over_what_was_seen() -> None:
    """Guards the averages of the seeds' statistics."""
    tally = Tally(0.0, NOTHING)
    for at, waited_ms in ((1.0, 10.0), (1.0, 30.0)):
        tally.take(accepted(at))
        tally.take(started(at, waited_ms))
    tally.take(tick(2.0, 2, 1.0, 2))
    tally.take(tick(2.0, 4, 1.0, 4))
    tally.take(done(3.0, 100.0))
    tally.take(done(3.0, 300.0))
    stats = tally.snapshot(4.0)
    assert stats.avg_batch_size == 3.0
    assert stats.avg_latency_ms == 200.0
    assert stats.avg_queue_time_ms == stats.avg_wait_time_ms == 20.0
    assert (stats.total_batches, stats.computed_prompt_tokens, stats.cached_tokens) == (2, 8, 4)
