"""The check of `jitney plan`: mistakes are said, and failed runs are not compared."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks import plan_check
from benchmarks.plan_check import CHANGES, check, chosen, parse
from jitney.bench.in_process import EngineRun
from jitney.bench.timing import RequestTimes
from jitney.bench.workload import Workload
from jitney.config import Settings
from tests.plan_for_tests import COST


def test_a_part_of_a_name_chooses() -> None:
    assert list(chosen("sjf")) == ["16 slots, sjf"]
    assert chosen(None) == CHANGES


def test_a_part_that_no_name_has_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--only", "17 slots"])
    assert "--only 17 slots is in no name" in capsys.readouterr().err


def test_a_run_with_failures_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    class Target:
        def run(self, workload: Workload) -> EngineRun:
            return EngineRun([RequestTimes(sent_at=0.0, error="It broke.")], [], 1.0, 4)

    @contextmanager
    def target(settings: Settings) -> Iterator[Target]:
        yield Target()

    monkeypatch.setattr(plan_check, "engine_target", target)
    with pytest.raises(SystemExit, match=r"1 requests failed.*It broke"):
        check(Settings(max_num_seqs=4), COST, "4 slots", 8, 0)
