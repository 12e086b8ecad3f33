"""Every strategy runs every workload on the fake backend, and the figures fit together."""

from dataclasses import replace
from threading import Event

import numpy as np
import pytest

from jitney.config import Settings
from jitney.config.definitions import Group
from jitney.config.settings import known_settings
from jitney.core.scheduler_settings import GroupAnswers, Mix, Policy, Strategy
from jitney.engine.engine import DRAIN_S
from jitney.errors import SetupError
from jitney.loading.compose import assemble
from jitney_lab.bench import in_process, overhead
from jitney_lab.bench.in_process import EngineRun, engine_target, for_bench
from jitney_lab.bench.overhead import measure as measure_overhead
from jitney_lab.bench.strategies import CHANGES, CONTINUOUS, IN_TURN, STATIC, fitting_rate, measure
from jitney_lab.bench.workload import Job, Workload, equal, mixed, uneven

WAIT_S = 120.0
FAKE = Settings(backend="fake", max_num_seqs=4)
SHORT = replace(FAKE, max_model_len=200)


def test_strategies_give_figures_for_each_workload_and_run() -> None:
    said: list[str] = []
    loads = [mixed(8, seed=1, clients=8)]
    result = measure(FAKE, loads, names=IN_TURN, runs=2, say=said.append)
    figures = result.figures["workloads"]
    assert isinstance(figures, dict)
    assert list(figures) == ["mixed"]
    assert list(figures["mixed"]) == list(CHANGES)
    tokens = {run["total_output_tokens"] for runs in figures["mixed"].values() for run in runs}
    assert len(tokens) == 1
    assert all(run["completed"] == 8 for runs in figures["mixed"].values() for run in runs)
    assert all(run["mean_batch"] == 1.0 for run in figures["mixed"]["sequential"])
    assert len(result.rows) == len(CHANGES)
    # On a busy host a part is measured again, and that is said too.
    order = [text.split(", ")[1] for text in said if text.startswith("run ")]
    assert sorted(order[:6]) == sorted(CHANGES)
    assert order == [*order[:6], *reversed(order[:6])]
    # What is compared is measured one after the other.
    assert order[:3] == ["sequential", "continuous", "static"]


def run_at_once(
    name: str, load: Workload, monkeypatch: pytest.MonkeyPatch, settings: Settings = FAKE
) -> EngineRun:
    """A load under a strategy. The engine looks at none of it before all of it was sent."""
    is_held, all_sent = Event(), Event()

    def hold() -> None:
        is_held.set()
        assert all_sent.wait(WAIT_S), "not all requests were sent in time"

    with engine_target(for_bench(settings, **CHANGES[name])) as target:
        monkeypatch.setattr(target.engine, "stop_gathering", all_sent.set)
        target.engine._inbox.send(hold)
        # Else it may take the first requests together with this.
        assert is_held.wait(WAIT_S), "the engine does not come"
        run = target.run(load, gathers=True)
    assert run.failures == []
    return run


def test_static_groups_waste_steps_where_continuous_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = mixed(40, seed=1)
    static, continuous = (run_at_once(name, load, monkeypatch) for name in (STATIC, CONTINUOUS))
    assert static.wasted > 0.2
    assert continuous.wasted == 0.0
    assert continuous.mean_batch > static.mean_batch > 1.0


@pytest.mark.parametrize(("slots", "token_share"), [(4, 0.0), (4, 1.0), (16, 1.0)])
def test_the_quick_load_tells_groups_from_none_on_every_machine(
    slots: int, token_share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards `--quick`: its p95 is far lower without groups, whether all passes cost the same or
    each as much as its tokens. Counted, not timed."""
    late, settings = {}, replace(FAKE, max_num_seqs=slots)
    for name in (STATIC, CONTINUOUS):
        run = run_at_once(name, uneven(slots, seed=1), monkeypatch, settings)
        sizes = [tick.decode_tokens + tick.prefill_tokens for tick in run.ticks]
        costs = [(1 - token_share) * 8 + token_share * size for size in sizes]
        moments = [tick.at for tick in run.ticks]
        ended = [moments.index(each.token_times[-1]) for each in run.requests]
        late[name] = np.percentile([sum(costs[: at + 1]) for at in ended], 95)
    assert late[CONTINUOUS] < 0.6 * late[STATIC]


def test_equal_lengths_favour_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_at_once(STATIC, equal(16, seed=1), monkeypatch).wasted == 0.0


def test_no_setting_of_the_user_turns_one_strategy_into_another() -> None:
    users = Settings(
        backend="fake",
        strategy=Strategy.ADAPTIVE,
        max_wait_ms=500.0,
        min_batch_size=2,
        group_answers=GroupAnswers.EACH,
        mix=Mix.SEPARATE,
        decode_batch_size=3,
        prefill_batch_size=2,
        policy=Policy.SJF,
        queue_timeout_s=0.1,
        request_timeout_s=0.1,
        max_num_queued_reqs=1,
    )
    shared = {"policy", "mix", "enable_preemption", "target_stall_ms", "overtake_s"}
    plain = Settings(backend="fake")
    names = {each.name for each in known_settings() if each.group is Group.SCHEDULING}
    for changes in CHANGES.values():
        assert names - shared <= set(changes)
        found, wanted = for_bench(users, **changes), for_bench(plain, **changes)
        for name in names - shared | {"queue_timeout_s", "request_timeout_s"}:
            assert getattr(found, name) == getattr(wanted, name), name
        assert found.max_num_queued_reqs > 100_000
        assert (found.policy, found.mix) == (Policy.SJF, Mix.SEPARATE)


TOO_LONG = Job(number=99, prompt_count=250, completion_count=50)


def test_failed_requests_are_said() -> None:
    load = mixed(8, seed=1, clients=8)
    with_failure = Workload(name="odd", seed=1, jobs=(*load.jobs, TOO_LONG), clients=8)
    result = measure(SHORT, [with_failure], names=IN_TURN, runs=1, say=print)
    assert [row[1] for row in result.rows] == [f"{name} (1 failed)" for name in CHANGES]
    said = [note for note in result.notes if "1 of 9 requests failed" in note]
    assert len(said) == len(CHANGES)
    assert "200" in said[0].split("the first reason: ")[1]


def test_a_run_in_which_all_fails_is_one_sentence() -> None:
    load = Workload(name="odd", seed=1, jobs=(TOO_LONG,), clients=1)
    with pytest.raises(SetupError, match="Every request of the workload odd failed under"):
        measure(SHORT, [load], names=IN_TURN, runs=1, say=print)
    with pytest.raises(SetupError, match="Every request of the workload mixed failed"):
        fitting_rate(Settings(backend="fake", max_model_len=8), 1, lambda text: None)


def test_an_engine_does_not_wait_for_its_requests_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drains: list[float] = []

    class Noted:
        def __init__(self, settings: Settings) -> None:
            self._inner = assemble(settings)
            self.engine = self._inner.engine

        def close(self, drain_s: float) -> None:
            drains.append(drain_s)
            self._inner.close(drain_s)

    monkeypatch.setattr(in_process, "assemble", Noted)
    with pytest.raises(KeyboardInterrupt), engine_target(FAKE):
        raise KeyboardInterrupt
    with engine_target(FAKE):
        pass
    assert drains == [0.0, DRAIN_S]


def test_a_size_that_no_tick_had_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    # With one token there is no tick in which it only generates.
    monkeypatch.setattr(overhead, "COMPLETION_COUNT", 1)
    with pytest.raises(SetupError, match="No tick had 4 sequences"):
        measure_overhead(FAKE, sizes=(4,), seed=1, say=lambda text: None)


def test_the_parts_of_a_tick_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "COMPLETION_COUNT", 24)
    result = measure_overhead(FAKE, sizes=(1, 4), seed=1, say=lambda text: None)
    seconds = result.figures["seconds"]
    assert isinstance(seconds, dict)
    for parts in seconds.values():
        known = sum(parts[name] for name in ("pass", "plan", "apply", "rest"))
        assert abs(known - parts["tick"]) < 1e-9
