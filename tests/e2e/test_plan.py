"""`jitney plan` as people type it: one real search with the fake backend, the rest from a cost.

Commands are called in this process, and simulate in it: none of them depends on a clock.
"""

import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any  # Any: JSON values

import pytest

from jitney.cli.main import main
from jitney_lab.bench.steal import StealWatch
from jitney_lab.cli import plan_output
from jitney_lab.plan import calibrate, recommend, search
from jitney_lab.plan.tick_cost import write_cost
from tests.plan_for_tests import COST

Plan = Callable[..., tuple[int, str, str]]
"""Calls the command with these words; the exit code and the two streams."""


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Searches are short: few slots and requests, and no processes."""
    for name in [name for name in os.environ if name.startswith("JITNEY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("JITNEY_MAX_NUM_SEQS", "2")
    monkeypatch.setattr(plan_output, "usable_cores", lambda: 1)
    monkeypatch.setattr(calibrate, "SLOTS_LEAST", 4)
    monkeypatch.setattr(search, "COUNT_MIN", 3)
    monkeypatch.setattr(search, "COUNT_MAX", 5)
    for module in (search, recommend):
        monkeypatch.setattr(module, "SLOTS", (1, 2))

    def call(*words: str | Path) -> tuple[int, str, str]:
        code = main(["plan", *map(str, words)])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def cost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "cost.json"
    write_cost(COST, path)
    return path


def trace(path: Path, *rows: dict[str, int]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def timed(tmp_path: Path) -> Path:
    rows = [
        {"timestamp": 50 * number, "input_length": 20, "output_length": 10} for number in range(40)
    ]
    return trace(tmp_path / "monday.jsonl", *rows)


def result(call: tuple[int, str, str]) -> tuple[dict[str, Any], str, str]:
    """The JSON line of a command that must succeed, and the two streams."""

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    code, out, error = call
    assert code == 0, error
    read: dict[str, Any] = json.loads(out.splitlines()[-1], parse_constant=refuse)
    return read, out, error


def test_it_measures_simulates_recommends_and_draws(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITNEY_BACKEND", "fake")
    saved = tmp_path / "cost.json"
    lengths = ("--input-len", "8", "--output-len", "4")
    words = ("--request-rate", "20", "--goodput", "ttft:500", "--save-cost", saved)
    found, out, _ = result(plan(*lengths, *words, "-o", tmp_path / "out"))
    lines = out.splitlines()
    assert lines[0] == "\tpresent\trecommended"
    assert any(line.startswith("Recommended: ") for line in lines)
    assert (found["benchmark"], found["rate"]) == ("plan", 20.0)
    assert found["recommended"]["replicas"] == 1
    assert found["limits_ms"] == {"ttft": 500.0}
    assert (found["cost"]["backend"], found["cost"]["backend_process"]) == ("fake", True)
    assert (found["model"], found["backend"]) == ("fake", "fake")
    assert found["settings"] == {"backend": "fake", "max_num_seqs": 2}
    assert found["scheduler"]["strategy"] == "continuous"
    assert (found["load"]["input_len"], found["load"]["output_len"]) == (8, 4)
    written = json.loads(saved.read_text())
    assert written["model"] == "fake"
    assert (written["stolen_share"] is None) is (StealWatch().share() is None)
    assert json.loads((tmp_path / "out" / "plan.json").read_text()) == found


def test_a_trace_is_replayed_under_other_settings(
    plan: Plan, cost: Path, timed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITNEY_SEED", "5")
    changes = ("max_num_seqs=1,policy=sjf", "replicas=2", "max_model_len=8")
    static = "strategy=static,max_num_seqs=32"
    words = [word for change in (*changes, static) for word in ("--what-if", change)]
    found, out, _ = result(plan("--cost", cost, "--trace", timed, *words))
    names = [line.split("\t")[0] for line in out.splitlines()[1:6]]
    assert names == ["present", *changes, static]
    assert (found["load"]["trace"], found["rate"]) == ("monday.jsonl", pytest.approx(40 / 1.95))
    assert found["settings"] == {"seed": 5, "max_num_seqs": 2}
    assert (found["model"], found["backend"], found["seed"]) == ("made", "made", 5)
    assert "threads" not in found
    runs = found["runs"]
    assert [each["count"] for each in runs] == [40] * 5
    assert [each["failed"] for each in runs] == [0, 0, 0, 40, 0]
    assert (runs[3]["per_s"], runs[3]["p95_ms"]) == (0.0, None)
    assert [each["overloaded"] for each in runs] == [None] * 5
    assert runs[1]["p95_ms"] > runs[0]["p95_ms"] > runs[2]["p95_ms"]
    assert "The policy sjf was simulated as if max_tokens of every request" in out
    assert "All 40 requests were refused or failed under max_model_len=8, for exam" in out


def test_a_trace_without_timestamps_needs_a_rate_and_arrives_at_it(
    plan: Plan, cost: Path, tmp_path: Path
) -> None:
    untimed = trace(tmp_path / "lengths", *40 * [{"input_length": 20, "output_length": 10}])
    words = ("--cost", cost, "--trace", untimed, "--what-if", "replicas=1000")
    code, out, error = plan(*words)
    assert (code, out) == (2, "")
    assert error.startswith(f"jitney: {untimed} does not say that its requests arrive at ")
    slow, fast = (
        result(plan(*words, "--request-rate", rate))[0]["runs"] for rate in ("0.1", "900")
    )
    assert slow[0]["count"] == 40
    assert slow[0]["p95_ms"] < fast[0]["p95_ms"]
    assert [each["overloaded"] for each in (*slow, *fast)] == [False, False, True, False]


def test_a_short_recording_is_stretched_over_a_large_fleets_day(
    plan: Plan, cost: Path, timed: Path
) -> None:
    words = ("--cost", cost, "--trace", timed, "--day", "--replicas", "5000")
    found, _, error = result(plan(*words))
    assert "The recording has 1.95 seconds of traffic" in error
    assert found["replicas"] == 5000
    assert 0 < found["simulated"] < found["requests"] == pytest.approx(86_400 * 40 / 1.95)
    assert found["p95_ms"]["error"] >= 0


@pytest.mark.parametrize(
    ("name", "words"),
    [("plan", ()), ("plan-what-if", ("--what-if", "replicas=2")), ("plan-day", ("--day",))],
)
def test_answers_of_one_token_and_the_picture(
    plan: Plan, cost: Path, tmp_path: Path, name: str, words: tuple[str, ...]
) -> None:
    """An answer of one token has no time per token. Without a rate, one replica sustains it."""
    lengths = ("--input-len", "20", "--output-len", "1")
    found, _, _ = result(plan("--cost", cost, *lengths, *words, "-o", tmp_path))
    assert found["benchmark"] == name
    assert found["load"]["per_s_from"] == "what one replica sustains within the limits"
    assert json.loads((tmp_path / f"{name}.json").read_text()) == found
    if find_spec("matplotlib") is not None:
        assert (tmp_path / f"{name}.png").stat().st_size > 0
        assert (tmp_path / f"{name}.svg").stat().st_size > 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--cost", "none.json"), "none.json cannot be read"),
        (("--goodput", "speed:3"), "is not METRIC:MS"),
        (("--share", "1.5"), "--share is 1.5; expected a number from 1e-06 to 1."),
        (("--what-if", "mix=fast"), "--what-if mix=fast: mix is 'fast'"),
        (("--save-cost", "."), "is a folder; give a file"),
        (("--what-if", "mix=separate", "--replicas", "1001"), "expected a number from 1 to 1000."),
        (("--day", "--replicas", "100001"), "expected a number from 1 to 100000."),
    ],
)
def test_a_mistake_gives_one_sentence(plan: Plan, words: tuple[str, ...], sentence: str) -> None:
    code, out, error = plan(*words)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("jitney: ")
    assert sentence in error


def test_a_load_of_which_all_is_refused_gives_one_sentence(plan: Plan, cost: Path) -> None:
    code, out, error = plan("--cost", cost, "--input-len", "5000", "--output-len", "4")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("jitney: Every request of this load would be refused: ")


def test_a_file_that_is_no_model_is_refused_before_the_work(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("These are notes, and no model.\n")
    monkeypatch.setenv("JITNEY_MODEL", str(path))
    code, _, error = plan()
    assert (code, error.count("\n")) == (1, 1)
    assert "measuring" not in error
