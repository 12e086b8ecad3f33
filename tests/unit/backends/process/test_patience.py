"""How long a batch may take: the ceiling before anything was measured, and what follows after."""

import pytest

from jitney.backends.process.patience import SEEN_MIN, Patience
from jitney.core import limits


def seen(*batches: tuple[int, float]) -> Patience:
    """After enough batches of these sizes and times."""
    patience = Patience()
    for token_count, seconds in batches * SEEN_MIN:
        patience.observe(token_count, seconds)
    return patience


@pytest.mark.parametrize(("token_count", "limit_s"), [(1, 60.5), (100, 110.0), (2048, 300.0)])
def test_before_anything_was_measured_the_ceiling_holds(token_count: int, limit_s: float) -> None:
    """Guards slow machines at their first batch, and everyone against a quarter of an hour."""
    assert Patience().limit_s(token_count) == limit_s
    patience = Patience()
    for _ in range(SEEN_MIN - 1):
        patience.observe(token_count, 0.1)
    assert patience.limit_s(token_count) == limit_s


def test_a_stuck_prefill_is_found_by_what_others_took() -> None:
    """Guards against 1,084 seconds of silence for a prefill that takes four."""
    assert seen((2048, 4.0)).limit_s(2048) == limits.BATCH_FACTOR * 4.0


def test_a_fast_batch_is_given_the_floor() -> None:
    """Guards a process that is slow for once: ending it costs more than waiting."""
    assert seen((1, 0.01)).limit_s(1) == limits.BATCH_S_MIN


def test_decodes_do_not_make_it_forget_what_prefill_costs() -> None:
    """Guards a long prefill after minutes without one."""
    patience = seen((2048, 4.0))
    for _ in range(5000):
        patience.observe(8, 0.01)
    assert patience.limit_s(2048) == limits.BATCH_FACTOR * 4.0
    assert patience.limit_s(8) == limits.BATCH_S_MIN


def test_a_size_that_was_not_seen_follows_from_a_smaller_one() -> None:
    """Guards the first long prefill: nothing that is measured may make its limit too small."""
    assert seen((512, 1.0)).limit_s(2048) == limits.BATCH_FACTOR * 4.0
    assert seen((1, 0.05)).limit_s(2048) == limits.BATCH_S_MAX
    assert seen((2048, 4.0)).limit_s(1) == Patience().limit_s(1)


def test_a_machine_that_is_measured_to_be_slow_is_believed() -> None:
    """Guards a large model on a small machine: the ceiling would end every one of its batches."""
    assert seen((2048, 200.0)).limit_s(2048) == 600.0


def test_the_first_batch_of_a_new_process_has_time_to_prepare() -> None:
    """Guards against a restart that is taken for the next hang."""
    patience = seen((1, 0.01))
    patience.restart()
    assert patience.limit_s(1) == limits.BATCH_FIRST_S
    patience.observe(1, 20.0)
    assert patience.limit_s(1) < limits.BATCH_FIRST_S + limits.BATCH_TOKEN_S + 1e-9


def test_a_ceiling_that_was_given_holds_everywhere() -> None:
    """Guards whoever sets it lower."""
    patience = Patience(ceiling_s=0.5)
    assert patience.limit_s(2048) == 0.5
    for _ in range(SEEN_MIN):
        patience.observe(1, 0.001)
    assert patience.limit_s(1) == 0.5
