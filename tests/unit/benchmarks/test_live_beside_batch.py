"""Tests of the figures of `benchmarks.live_beside_batch`: whether it could tell a bad result."""

import pytest

from benchmarks.live_beside_batch import LiveRun, compare, run_of
from jitney_lab.bench.timing import RequestTimes


def run(p50_ms: float, p95_ms: float, *, failed: int = 0, lines_per_s: float = 0.0) -> LiveRun:
    return LiveRun(
        count=100,
        failed=failed,
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        gap_p95_ms=1.0,
        lines_per_s=lines_per_s,
    )


def test_a_run_is_told_by_the_first_tokens_of_whole_answers() -> None:
    """Guards the figures: a chat that failed counts as that, not as a fast one."""
    times = [
        RequestTimes(sent_at=10.0, token_times=[10.0 + 0.01 * at, 11.0]) for at in range(1, 102)
    ]
    times.append(RequestTimes(sent_at=10.0, error="status 429"))
    found = run_of(times, lines_per_s=3.0)
    assert (found.count, found.failed, found.lines_per_s) == (102, 1, 3.0)
    assert found.p50_ms == pytest.approx(510.0)
    assert found.p95_ms == pytest.approx(960.0)


def test_the_ratio_is_the_middle_of_the_pairs_with_its_spread() -> None:
    """Guards the goal: one lucky pair does not reach it, and a failure misses it."""
    pairs = [
        (run(100.0, 200.0), run(110.0, 300.0, lines_per_s=4.0)),
        (run(100.0, 200.0), run(120.0, 200.0, lines_per_s=5.0)),
        (run(100.0, 200.0), run(130.0, 280.0, lines_per_s=6.0)),
    ]
    found = compare(pairs)
    assert (found.p95_ratio, found.p95_ratio_least, found.p95_ratio_most) == (1.4, 1.0, 1.5)
    assert (found.p50_ratio, found.lines_per_s) == (1.2, 5.0)
    assert not found.is_good
    assert compare(pairs[1:2]).is_good
    assert not compare([(pairs[1][0], run(120.0, 200.0, failed=1))]).is_good
