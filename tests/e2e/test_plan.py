"""`jitney plan` as people run it, with the fake backend and from files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jitney.plan.tick_cost import write_cost
from tests.plan_for_tests import COST

WAIT_S = 240


def plan(*words: str | Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JITNEY_")}
    command = [sys.executable, "-m", "jitney", "plan", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_S, check=False, env=kept
    )


@pytest.fixture(scope="module")
def cost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "cost.json"
    write_cost(COST, path)
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "monday.jsonl"
    lines = [
        {"timestamp": 50 * number, "input_length": 20, "output_length": 10} for number in range(40)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_it_measures_simulates_recommends_and_draws(tmp_path: Path) -> None:
    saved = tmp_path / "cost.json"
    done = plan(
        *("--backend", "fake", "--request-rate", "20", "--input-len", "8", "--output-len", "40"),
        *("--goodput", "ttft:500", "--save-cost", saved, "-o", tmp_path / "out"),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "\tpresent\trecommended"
    assert any(line.startswith("Recommended: ") for line in lines)
    found = json.loads(lines[-1])
    assert found["benchmark"] == "plan"
    assert found["recommended"]["replicas"] == 1
    assert found["limits_ms"] == {"ttft": 500.0}
    assert json.loads(saved.read_text())["model"] == "fake"
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["rate"] == 20.0


def test_a_trace_is_replayed_under_other_settings(cost: Path, trace: Path) -> None:
    changes = ("--what-if", "max_num_seqs=1,policy=sjf", "--what-if", "replicas=2")
    done = plan("--cost", cost, "--trace", trace, *changes)
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [line[0] for line in lines[1:4]] == [
        "present",
        "max_num_seqs=1,policy=sjf",
        "replicas=2",
    ]
    runs = json.loads(done.stdout.splitlines()[-1])["runs"]
    assert [each["count"] for each in runs] == [40, 40, 40]
    assert runs[1]["p95_ms"] > runs[0]["p95_ms"]


def test_a_day_is_a_sample_with_its_error(cost: Path) -> None:
    done = plan(
        *("--cost", cost, "--day", "--request-rate", "5", "--replicas", "10"),
        *("--input-len", "20", "--output-len", "4"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["requests"] == pytest.approx(5 * 86_400)
    assert 0 < found["simulated"] < found["requests"]
    assert found["p95_ms"]["error"] >= 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--cost", "none.json"), "none.json cannot be read"),
        (("--trace", "none.jsonl"), "none.jsonl cannot be read"),
        (("--goodput", "speed:3"), "is not METRIC:MS"),
        (("--share", "1.5"), "--share is 1.5; expected above 0, up to 1"),
        (("--request-rate", "-1"), "--request-rate is -1"),
        (("--what-if", "mix=fast"), "mix"),
        (("--what-if", "model=x"), "--what-if cannot change model"),
        (("--day", "--what-if", "mix=separate"), "do not go together"),
    ],
)
def test_a_mistake_gives_one_sentence(words: tuple[str, ...], told: str) -> None:
    done = plan("--backend", "fake", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert told in done.stderr
    assert done.stderr.startswith("jitney: ")
    assert done.stderr.count("\n") == 1
