"""Every strategy runs every workload on the fake backend, and the figures fit together."""

from jitney.bench.overhead import measure as measure_overhead
from jitney.bench.scaling import measure as measure_scaling
from jitney.bench.strategies import CHANGES, measure, workloads
from jitney.bench.workload import mixed
from jitney.config import Settings

FAKE = Settings(backend="fake", max_num_seqs=4)


def test_strategies_give_figures_for_each_workload_and_run() -> None:
    said: list[str] = []
    result = measure(FAKE, [mixed(8, seed=1, clients=8)], runs=2, say=said.append)
    figures = result.figures["workloads"]
    assert isinstance(figures, dict)
    assert list(figures) == ["mixed"]
    assert list(figures["mixed"]) == list(CHANGES)
    tokens = {run["total_output_tokens"] for runs in figures["mixed"].values() for run in runs}
    assert len(tokens) == 1
    assert all(run["completed"] == 8 for runs in figures["mixed"].values() for run in runs)
    assert all(run["mean_batch"] == 1.0 for run in figures["mixed"]["sequential"])
    assert max(run["mean_batch"] for run in figures["mixed"]["continuous"]) > 2.0
    assert len(result.rows) == len(CHANGES)
    assert len(said) == 2 * len(CHANGES)


def test_static_groups_waste_steps_where_continuous_does_not() -> None:
    result = measure(FAKE, [mixed(40, seed=1, clients=16)], runs=1, say=lambda text: None)
    figures = result.figures["workloads"]
    assert isinstance(figures, dict)
    wasted = {name: runs[0]["slot_steps_wasted"] for name, runs in figures["mixed"].items()}
    assert wasted["static"] > 0.2
    assert wasted["continuous"] < 0.1


def test_the_four_workloads() -> None:
    names = [load.name for load in workloads(10, 5.0, seed=0, slots=4)]
    assert names == ["mixed", "mixed closed", "equal", "twenty"]


def test_scaling_has_a_figure_for_each_size() -> None:
    result = measure_scaling(FAKE, sizes=(1, 4), runs=1, seed=1, say=lambda text: None)
    assert [row[0] for row in result.rows] == ["1", "4"]
    rates = result.figures["tokens_per_s"]
    assert isinstance(rates, dict)
    assert set(rates) == {"1", "4"}


def test_the_parts_of_a_tick_add_up() -> None:
    result = measure_overhead(FAKE, sizes=(1, 4), seed=1, say=lambda text: None)
    seconds = result.figures["seconds"]
    assert isinstance(seconds, dict)
    for parts in seconds.values():
        known = sum(parts[name] for name in ("pass", "plan", "apply", "rest"))
        assert abs(known - parts["tick"]) < 1e-9
