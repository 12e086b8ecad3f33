"""What is measured: shapes of every kind, within what the model takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from jitney.config import Settings
from jitney.core.backend import Traits
from jitney.core.batch import Batch, Entry
from jitney.core.scheduler_settings import Mix, SchedulingPolicy, Strategy
from jitney.errors import ConfigError, SetupError
from jitney_lab.bench.in_process import EngineRun
from jitney_lab.bench.steal import StealWatch
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.bench.workload import Workload
from jitney_lab.plan import calibrate as calibration
from jitney_lab.plan.calibrate import (
    PIECE,
    SIZE_TICKS,
    calibrate,
    measuring_settings,
    staircases,
    workloads,
)
from jitney_lab.plan.tick_cost import TickCost
from tests.plan_for_tests import TRAITS, member, tick


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


def test_every_batch_takes_whole_prompts_and_no_setting_of_the_user_holds_one_back() -> None:
    users = Settings(
        max_num_seqs=4,
        prefill_chunk=16,
        max_num_queued_reqs=16,
        max_num_queued_tokens=4096,
        queue_timeout_s=0.001,
        request_timeout_s=0.001,
        strategy=Strategy.STATIC,
        prefill_batch_size=1,
        max_model_len=512,
    )
    changed = measuring_settings(users, 32)
    assert changed.prefill_chunk == changed.max_num_batched_tokens == 2048
    assert changed.max_num_seqs == 32
    assert changed.max_num_queued_reqs > 1000
    assert changed.max_num_queued_tokens > 1_000_000
    assert (changed.queue_timeout_s, changed.request_timeout_s) == (None, None)
    assert (changed.strategy, changed.mix) == (Strategy.CONTINUOUS, Mix.DECODE_FIRST)
    assert changed.prefill_batch_size is None
    assert changed.max_model_len == 512
    assert measuring_settings(Settings(), 32).max_model_len is None


@dataclass
class Target:
    """An engine that takes no time: too long a prompt fails, and ticks are of all kinds."""

    traits: Traits

    def run(self, load: Workload) -> EngineRun:
        longest = max(job.prompt_count for job in load.jobs)
        error = "It is too long." if longest >= self.traits.model_len_max else None
        decode, prompt = member(5, 1, samples=True), member(0, 16, samples=True)
        ticks = [tick(1.0, 10.0, decode), tick(2.0, 20.0, prompt), tick(3.0, 25.0, decode, prompt)]
        return EngineRun([RequestTimes(sent_at=0.0, error=error) for _ in load.jobs], ticks, 1.0, 4)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings of the engines that were made."""
    made: list[Settings] = []

    @contextmanager
    def target(settings: Settings) -> Iterator[Target]:
        made.append(settings)
        traits = TRAITS.at(settings.max_num_seqs, None)
        yield Target(replace(traits, model_len_max=settings.max_model_len or 1024))

    monkeypatch.setattr(calibration, "engine_target", target)
    # What the system says of its host depends on the machine.
    monkeypatch.setattr(StealWatch, "share", lambda self: 0.25)
    return made


def test_a_failed_request_ends_the_measurement(
    monkeypatch: pytest.MonkeyPatch, engines: list[Settings]
) -> None:
    """What is left would have other shapes than those that are to be measured."""
    monkeypatch.setattr(calibration, "_shortened", lambda load, length_max: load)
    small = Settings(backend="fake", max_num_seqs=4, max_model_len=40)
    with pytest.raises(SetupError, match=r"^40 of 40 requests failed while measuring mixed"):
        calibrate(small, seed=0, say=lambda text: None)


@pytest.mark.parametrize("length", [40, None])
def test_ticks_of_all_loads_become_a_cost(engines: list[Settings], length: int | None) -> None:
    """Also those of a small model."""
    said: list[str] = []
    settings = Settings(backend="fake", max_num_seqs=4, max_model_len=length)
    cost = calibrate(settings, seed=0, say=said.append)
    assert said[:2] == ["measuring prompts in pieces", "measuring prompts alone"]
    assert cost.tick_count == 3 * len(said)
    assert [each.prefill_chunk for each in engines] == [PIECE, 2048]
    assert (cost.model, cost.traits.name, cost.traits.slots) == ("fake", "made", 32)
    assert (cost.backend_process, cost.stolen_share) == (False, 0.25)
    assert TickCost(cost).pass_s(Batch(1, (), (Entry(0, 5, (7,), wants_token=True),))) > 0


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
