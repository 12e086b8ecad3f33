"""The rows of docs/seeds.md about groups: FixedSize, Adaptive, and the fewest that start."""

import pytest

from jitney.backends.fake.backend import FakeSettings
from jitney.config import resolve
from jitney.core.request import Request
from jitney.core.scheduler_settings import Strategy
from jitney.loading.compose import scheduler_settings
from tests.unit.test_seeds_rows import TRAITS, Line, line, request


@pytest.mark.parametrize("strategy", ["continuous", "dynamic"])
def test_so_many_as_the_minimum_start_before_the_wait_is_over(strategy: str) -> None:
    """Guards `min_batch_size` above 1: ThemisDB's knob, and ZigLlama's under its own default."""
    words = {"strategy": strategy, "min_batch_size": 3, "max_wait_time_ms": 5000}
    settings = scheduler_settings(resolve(words, None, {}).settings, TRAITS)
    one = line(strategy=settings.strategy, wait_s=settings.wait_s, min_batch_size=3)
    one.submit(request("a", 3), request("b", 3))
    assert one.tick() is None
    one.submit(request("c", 3), request("d", 3))
    one.tick()
    assert one.running() == {"a", "b", "c", "d"}


@pytest.mark.parametrize("strategy", [Strategy.DYNAMIC, Strategy.ADAPTIVE])
def test_a_burst_after_a_calm_time_runs_in_full_groups(strategy: Strategy) -> None:
    """Guards ZigLlama's Adaptive, which "forms larger batches to drain the backlog"."""
    settings = line(strategy=strategy, wait_s=0.05, max_num_seqs=16).settings
    one = Line(settings, FakeSettings(eos_period=0, tick_s=0.01, token_s=0.001))
    sizes: list[int] = []

    def run(*requests: Request) -> None:
        one.submit(*requests)
        one.idle_s += 0.06
        while one.tick() is not None:
            if one.scheduler.counters["groups_departed"] > len(sizes):
                sizes.append(len(one.running()))

    for number in range(5):
        run(request(f"calm {number}", 3))
    run(*(request(f"burst {number}", 3) for number in range(48)))
    assert sizes == [1] * 5 + [16, 16, 16]


@pytest.mark.parametrize("wait_ms", [None, 100])
def test_a_fixed_size_is_waited_for_unless_a_time_is_given(wait_ms: int | None) -> None:
    """Guards FixedSize: its timer is the one that the user wrote, and not a default."""
    words: dict[str, object] = {"batching_strategy": "FixedSize", "max_batch_size": 8}
    given = words if wait_ms is None else words | {"max_wait_time_ms": wait_ms}
    settings = scheduler_settings(resolve(given, None, {}).settings, TRAITS)
    one = line(strategy=settings.strategy, wait_s=settings.wait_s, max_num_seqs=8)
    one.submit(*(request(str(number), 3) for number in range(3)))
    one.idle_s = 3600.0
    one.tick()
    assert len(one.running()) == (0 if wait_ms is None else 3)
