"""The check of `jitney plan`: failed runs are not compared, and both sides are in its file."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from benchmarks import plan_check
from benchmarks.plan_check import check, main
from jitney.config import Settings
from jitney.loading.compose import scheduler_settings
from jitney_lab.bench.in_process import EngineRun
from jitney_lab.bench.steal import CalmParts
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.bench.workload import Workload
from jitney_lab.plan.replica import Configuration
from jitney_lab.plan.simulate import simulate
from jitney_lab.plan.tick_cost import Cost, write_cost
from tests.plan_for_tests import COST, TRAITS, make_cost


def answer_with(
    monkeypatch: pytest.MonkeyPatch, run: Callable[[Settings, Workload], EngineRun]
) -> None:
    """Let engines answer a load in this way."""

    @contextmanager
    def target(settings: Settings) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(run=partial(run, settings))

    monkeypatch.setattr(plan_check, "engine_target", target)


def test_a_run_with_failures_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = EngineRun([RequestTimes(sent_at=0.0, error="It broke.")], [], 1.0, 4)
    answer_with(monkeypatch, lambda settings, workload: failed)
    with pytest.raises(SystemExit, match=r"1 requests failed.*It broke"):
        check(Settings(max_num_seqs=4), COST, "4 slots", 8, 0, CalmParts(print))


def test_the_file_has_both_sides_and_what_repeats_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a file of errors alone: nobody could say which side was off."""
    slower = make_cost(spans=((1, 0.1), (1000, 100.0)))

    def run(settings: Settings, workload: Workload) -> EngineRun:
        traits = slower.traits.at(settings.max_num_seqs, None)
        configuration = Configuration(scheduler_settings(settings, traits), traits)
        found = simulate(workload, configuration, slower)
        return EngineRun(found.requests, [], found.duration_s, 4)

    answer_with(monkeypatch, run)
    cost = make_cost(traits=msgspec.structs.replace(TRAITS, name="fake"))
    path, out = tmp_path / "cost.json", tmp_path / "out.json"
    write_cost(cost, path)
    words = ["--cost", str(path), "--only", "4 slots", "--count", "8", "--seed", "5"]
    monkeypatch.setattr("sys.argv", ["plan_check", *words, "--out", str(out)])
    main()
    found = json.loads(out.read_text())
    assert {"machine", "versions", "commit", "at", "stolen_share"} <= set(found)
    assert (found["benchmark"], found["seed"], found["backend"]) == ("plan_check", 5, "fake")
    assert found["load"] == {"num_prompts": 8, "open_share": 0.8}
    assert msgspec.convert(found["costs"], list[Cost]) == [cost]
    assert [(row["name"], row["load"], row["cost"]) for row in found["rows"]] == [
        ("4 slots", "closed", 0),
        ("4 slots", "open", 0),
    ]
    for row in found["rows"]:
        predicted, measured = row["predicted"]["p95_ms"], row["measured"]["p95_ms"]
        assert 0 < predicted < measured
        assert row["error"]["p95_ms"] == pytest.approx(predicted / measured - 1)
