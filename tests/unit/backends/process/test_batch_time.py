"""How long a batch may take: the ceiling before anything was measured, and what follows after."""

import pytest

from jitney.backends.process.batch_time import SEEN_MIN, BatchTimeLimits
from jitney.core import limits


def seen(*batches: tuple[int, float]) -> BatchTimeLimits:
    """After enough batches of these sizes and times."""
    limits_found = BatchTimeLimits()
    for token_count, seconds in batches * SEEN_MIN:
        limits_found.observe(token_count, seconds)
    return limits_found


@pytest.mark.parametrize(("token_count", "limit_s"), [(1, 60.5), (100, 110.0), (2048, 300.0)])
def test_before_anything_was_measured_the_ceiling_holds(token_count: int, limit_s: float) -> None:
    """Guards slow machines at their first batch, and everyone against a quarter of an hour."""
    assert BatchTimeLimits().limit_s(token_count) == limit_s
    limits_found = BatchTimeLimits()
    for _ in range(SEEN_MIN - 1):
        limits_found.observe(token_count, 0.1)
    assert limits_found.limit_s(token_count) == limit_s


def test_a_stuck_prefill_is_found_by_what_others_took() -> None:
    """Guards against 1,084 seconds of silence for a prefill that takes four."""
    assert seen((2048, 4.0)).limit_s(2048) == limits.BATCH_FACTOR * 4.0


def test_a_fast_batch_is_given_the_floor() -> None:
    """Guards a process that is slow for once: ending it costs more than waiting."""
    assert seen((1, 0.01)).limit_s(1) == limits.BATCH_S_MIN


def test_decodes_do_not_make_it_forget_what_prefill_costs() -> None:
    """Guards a long prefill after minutes without one."""
    limits_found = seen((2048, 4.0))
    for _ in range(5000):
        limits_found.observe(8, 0.01)
    assert limits_found.limit_s(2048) == limits.BATCH_FACTOR * 4.0
    assert limits_found.limit_s(8) == limits.BATCH_S_MIN


def test_a_size_that_was_not_seen_follows_from_a_smaller_one() -> None:
    """Guards the first long prefill: nothing that is measured may make its limit too small."""
    assert seen((512, 1.0)).limit_s(2048) == limits.BATCH_FACTOR * 4.0
    assert seen((1, 0.05)).limit_s(2048) == limits.BATCH_S_MAX
    assert seen((2048, 4.0)).limit_s(1) == BatchTimeLimits().limit_s(1)


def test_a_machine_that_is_measured_to_be_slow_is_believed() -> None:
    """Guards a large model on a small machine: the ceiling would end every one of its batches."""
    assert seen((2048, 200.0)).limit_s(2048) == 600.0


def test_the_first_batch_of_a_new_process_has_time_to_prepare() -> None:
    """Guards against a restart that is taken for the next hang."""
    limits_found = seen((1, 0.01))
    limits_found.restart()
    assert limits_found.limit_s(1) == limits.BATCH_FIRST_S
    limits_found.observe(1, 20.0)
    assert limits_found.limit_s(1) < limits.BATCH_FIRST_S + limits.BATCH_TOKEN_S + 1e-9


def test_a_ceiling_that_was_given_holds_everywhere() -> None:
    """Guards whoever sets it lower."""
    limits_found = BatchTimeLimits(ceiling_s=0.5)
    assert limits_found.limit_s(2048) == 0.5
    for _ in range(SEEN_MIN):
        limits_found.observe(1, 0.001)
    assert limits_found.limit_s(1) == 0.5
