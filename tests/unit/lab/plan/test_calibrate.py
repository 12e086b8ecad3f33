"""What is measured: shapes of every kind, within what the model takes."""

from dataclasses import replace

import pytest

from jitney.config import Settings
from jitney.core.rules.policy import SchedulingPolicy
from jitney.core.scheduler_settings import Mix, Strategy
from jitney.errors import ConfigError, SetupError
from jitney_lab.bench.steal import StealWatch
from jitney_lab.plan import calibrate as calibration
from jitney_lab.plan.calibrate import (
    SIZE_TICKS,
    calibrate,
    measuring_settings,
    staircases,
    workloads,
)
from jitney_lab.plan.tick_cost import TickCost


def test_staircases_have_every_number_of_sequences_for_a_few_ticks() -> None:
    (only,) = staircases(4)
    assert sorted(ticks for _, ticks in only) == [SIZE_TICKS * stage + 1 for stage in (1, 2, 3, 4)]
    assert [len(each) for each in staircases(32)] == [8, 16, 24, 32]
    sizes = []
    for pairs in staircases(32):
        lengths = sorted(ticks for _, ticks in pairs)
        sizes += [sum(each >= length for each in lengths) for length in sorted(set(lengths))]
    assert sorted(sizes) == list(range(1, 33))


@pytest.mark.parametrize(
    ("slots", "budget", "length_max"), [(32, 2048, 2048), (2, 64, 100), (32, 2048, 64)]
)
def test_workloads_stay_within_the_limits(slots: int, budget: int, length_max: int) -> None:
    for load in workloads(slots, budget, length_max, seed=0):
        assert load.clients is not None
        assert load.clients <= slots
        assert max(job.prompt_count for job in load.jobs) <= budget
        assert max(job.prompt_count for job in load.jobs) < length_max


def test_every_batch_takes_whole_prompts() -> None:
    changed = measuring_settings(Settings(max_num_seqs=4, prefill_chunk=16), 32)
    assert changed.prefill_chunk == changed.max_num_batched_tokens == 2048
    assert changed.max_num_seqs == 32
    assert changed.mix is Mix.DECODE_FIRST


def test_none_of_the_users_settings_refuses_or_holds_back_a_request() -> None:
    users = Settings(
        max_num_queued_reqs=16,
        max_num_queued_tokens=4096,
        queue_timeout_s=0.001,
        request_timeout_s=0.001,
        strategy=Strategy.STATIC,
        wait_until_full=True,
        prefill_batch_size=1,
        max_model_len=512,
    )
    changed = measuring_settings(users, 32)
    assert changed.max_num_queued_reqs > 1000
    assert changed.max_num_queued_tokens > 1_000_000
    assert changed.queue_timeout_s is None
    assert changed.request_timeout_s is None
    assert changed.strategy is Strategy.CONTINUOUS
    assert not changed.wait_until_full
    assert changed.prefill_batch_size is None
    assert changed.max_model_len == 512
    assert measuring_settings(Settings(), 32).max_model_len is None


def test_a_failed_request_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left would have other shapes than those that are to be measured."""
    monkeypatch.setattr(calibration, "_shortened", lambda load, length_max: load)
    small = Settings(backend="fake", max_num_seqs=4, max_model_len=40)
    with pytest.raises(SetupError, match=r"^\d+ of 40 requests failed while measuring mixed"):
        calibrate(small, seed=0, say=lambda text: None)


def test_a_small_model_can_be_measured() -> None:
    small = Settings(backend="fake", max_num_seqs=4, max_model_len=40)
    assert calibrate(small, seed=0, say=lambda text: None).tick_count > 100


def test_some_sequences_generate_in_slots_that_are_apart() -> None:
    loads = {load.name: load for load in workloads(32, 2048, 2048, seed=0)}
    lasting = max(job.completion_count for job in loads["1 of 5 slots"].jobs)
    kept = [job.number for job in loads["1 of 5 slots"].jobs if job.completion_count == lasting]
    assert kept == [0, 5, 10, 15, 20, 25, 30]


def test_an_own_policy_is_refused() -> None:
    class Mine(SchedulingPolicy):
        def rank(self, candidate: object) -> float:
            return 0.0

    with pytest.raises(ConfigError, match="fifo, priority, sjf and fair only"):
        measuring_settings(replace(Settings(), policy=Mine()), 32)


def test_the_fake_backend_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    # What the system says of its host depends on the machine.
    monkeypatch.setattr(StealWatch, "share", lambda self: 0.25)
    cost = calibrate(Settings(backend="fake", max_num_seqs=4), seed=0, say=said.append)
    assert cost.traits.name == "fake"
    assert cost.tick_count > 100
    assert cost.backend_process is False
    assert cost.stolen_share == 0.25
    assert said[:2] == ["measuring prompts in pieces", "measuring prompts alone"]
    assert TickCost(cost) is not None
