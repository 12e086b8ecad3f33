"""`jitney plan` as people run it, with the fake backend and from files."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any  # Any: JSON values

import pytest

from jitney.backends.machine.cores import usable_cores
from jitney_lab.bench.steal import StealWatch
from jitney_lab.plan.tick_cost import write_cost
from tests.plan_for_tests import COST

WAIT_S = 280
"""A search takes half a minute of both cores, and minutes where others use them too. No test waits
more than three times, so it says what it waited for before pytest's limit of 900 seconds ends it.
"""


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
        *("--backend", "fake", "--request-rate", "20", "--input-len", "8", "--output-len", "4"),
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
    assert (found["cost"]["backend"], found["cost"]["backend_process"]) == ("fake", True)
    assert (found["model"], found["backend"]) == ("fake", "fake")
    assert found["settings"] == {"backend": "fake"}
    assert found["scheduler"]["strategy"] == "continuous"
    assert (found["load"]["input_len"], found["load"]["output_len"]) == (8, 4)
    written = json.loads(saved.read_text())
    assert written["model"] == "fake"
    assert (written["stolen_share"] is None) is (StealWatch().share() is None)
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["rate"] == 20.0


def test_a_trace_is_replayed_under_other_settings(cost: Path, trace: Path) -> None:
    changes = ("--what-if", "max_num_seqs=1,policy=sjf", "--what-if", "replicas=2")
    done = plan("--cost", cost, "--trace", trace, "--seed", "5", *changes)
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [line[0] for line in lines[1:4]] == [
        "present",
        "max_num_seqs=1,policy=sjf",
        "replicas=2",
    ]
    found = strict(done.stdout.splitlines()[-1])
    assert (found["load"]["trace"], found["rate"]) == ("monday.jsonl", pytest.approx(40 / 1.95))
    assert (found["settings"], found["scheduler"]["max_num_seqs"]) == ({"seed": 5}, 16)
    assert (found["model"], found["backend"], found["seed"]) == ("made", "made", 5)
    assert "threads" not in found
    runs = found["runs"]
    assert [each["count"] for each in runs] == [40, 40, 40]
    assert [each["overloaded"] for each in runs] == [None, None, None]
    assert runs[1]["p95_ms"] > runs[0]["p95_ms"]
    assert "The policy sjf was simulated as if max_tokens of every request" in done.stdout


@pytest.fixture
def untimed(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.jsonl"
    path.write_text(40 * '{"input_length": 20, "output_length": 10}\n')
    return path


def test_a_trace_without_timestamps_needs_a_rate(cost: Path, untimed: Path) -> None:
    done = plan("--cost", cost, "--trace", untimed, "--what-if", "max_num_seqs=1")
    assert done.returncode == 2
    assert done.stderr.startswith(f"jitney: {untimed} does not say when its requests arrive; give ")
    assert done.stderr.count("\n") == 1


def test_a_trace_of_one_request_is_replayed_at_a_rate(cost: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text('{"timestamp": 5, "input_length": 20, "output_length": 10}\n')
    done = plan("--cost", cost, "--trace", path, "--request-rate", "3", "--what-if", "replicas=2")
    assert done.returncode == 0, done.stderr
    assert [each["count"] for each in strict(done.stdout.splitlines()[-1])["runs"]] == [1, 1]


def test_a_file_that_is_no_model_is_told_before_the_work(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("These are notes, and no model.\n")
    done = plan("--model", path)
    assert done.returncode == 1
    assert "measuring" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_trace_without_timestamps_arrives_at_the_rate(cost: Path, untimed: Path) -> None:
    words = ("--cost", cost, "--trace", untimed, "--what-if", "max_num_seqs=1")
    slow, fast = (plan(*words, "--request-rate", rate) for rate in ("0.1", "1000"))
    assert (slow.returncode, fast.returncode) == (0, 0), slow.stderr + fast.stderr
    runs = [json.loads(done.stdout.splitlines()[-1])["runs"] for done in (slow, fast)]
    assert runs[0][0]["count"] == 40
    assert runs[0][0]["p95_ms"] < runs[1][0]["p95_ms"]


def test_a_short_recording_is_stretched_over_a_large_fleets_day(cost: Path, trace: Path) -> None:
    done = plan("--cost", cost, "--trace", trace, "--day", "--replicas", "5000")
    assert done.returncode == 0, done.stderr
    assert "The recording has 1.95 seconds of traffic" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["replicas"] == 5000


def test_a_group_that_is_never_full_is_simulated(cost: Path, trace: Path) -> None:
    change = "strategy=static,wait_until_full=true,max_num_seqs=32"
    done = plan("--cost", cost, "--trace", trace, "--what-if", change)
    assert done.returncode == 0, done.stderr
    assert [each["failed"] for each in strict(done.stdout.splitlines()[-1])["runs"]] == [0, 0]


def strict(line: str) -> dict[str, Any]:
    """JSON without the words that only Python knows."""

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    read: dict[str, Any] = json.loads(line, parse_constant=refuse)
    return read


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plan", ("--request-rate", "5")),
        ("plan-what-if", ("--request-rate", "5", "--what-if", "max_num_seqs=1")),
        ("plan-day", ("--request-rate", "5", "--day", "--replicas", "10")),
    ],
)
def test_answers_of_one_token_and_the_picture(
    cost: Path, tmp_path: Path, name: str, words: tuple[str, ...]
) -> None:
    """An answer of one token has no time per token."""
    lengths = ("--input-len", "20", "--output-len", "1")
    done = plan("--cost", cost, *lengths, *words, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert strict(done.stdout.splitlines()[-1])["benchmark"] == name
    assert strict((tmp_path / "out" / f"{name}.json").read_text())["benchmark"] == name
    if find_spec("matplotlib") is not None:
        assert (tmp_path / "out" / f"{name}.png").stat().st_size > 0
        assert (tmp_path / "out" / f"{name}.svg").stat().st_size > 0


def test_a_what_if_that_refuses_everything_is_shown(cost: Path, trace: Path) -> None:
    done = plan("--cost", cost, "--trace", trace, "--what-if", "max_model_len=8")
    assert done.returncode == 0, done.stderr
    runs = strict(done.stdout.splitlines()[-1])["runs"]
    assert (runs[1]["failed"], runs[1]["per_s"], runs[1]["p95_ms"]) == (40, 0.0, None)
    assert "All 40 requests were refused or failed under max_model_len=8, for exam" in done.stdout


def test_a_what_if_names_the_settings_that_bear_less_than_the_load(cost: Path) -> None:
    """A short run of a load far above what they bear may be within generous limits."""
    words = ("--request-rate", "10000", "--goodput", "ttft:1e9", "--what-if", "replicas=1000")
    done = plan("--cost", cost, "--input-len", "4", "--output-len", "2", *words)
    assert done.returncode == 0, done.stderr
    runs = strict(done.stdout.splitlines()[-1])["runs"]
    assert [each["overloaded"] for each in runs] == [True, False]
    assert "More arrives than the replicas bear under these settings: present. " in done.stdout


def test_requests_that_are_refused_do_not_make_an_overload(cost: Path, tmp_path: Path) -> None:
    lines = [f'{{"input_length": {length}, "output_length": 20}}\n' for length in (4, 30)]
    trace = tmp_path / "two.jsonl"
    trace.write_text("".join(lines * 20))
    words = ("--trace", trace, "--request-rate", "6", "--what-if", "max_model_len=30")
    done = plan("--cost", cost, *words)
    assert done.returncode == 0, done.stderr
    runs = strict(done.stdout.splitlines()[-1])["runs"]
    assert [(each["overloaded"], each["failed"]) for each in runs] == [(True, 0), (False, 20)]


def test_an_interrupt_leaves_no_process(cost: Path) -> None:
    words = ("--day", "--request-rate", "4000", "--replicas", "100")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JITNEY_")}
    command = [sys.executable, "-P", "-m", "jitney", "plan", "--cost", str(cost), *words]
    # A session of its own, so that the interrupt goes to all of its processes, as from a terminal.
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=kept, start_new_session=True
    )
    try:
        wait_for(lambda: len(processes_of(started.pid)) > usable_cores())
        os.killpg(started.pid, signal.SIGINT)
        out, told = started.communicate(timeout=WAIT_S)
    finally:
        started.kill()
    assert (started.returncode, out, told) == (130, b"", b"")
    wait_for(lambda: processes_of(started.pid) == [])


def processes_of(session: int) -> list[int]:
    done = subprocess.run(
        ["ps", "-e", "-o", "pid=,sess=,stat="], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    return [int(row[0]) for row in rows if int(row[1]) == session and row[2][0] != "Z"]


def wait_for(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < ends_at, "it did not happen in time"
        time.sleep(0.05)


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
        (("--cost", "none.json"), "--backend would not be used with --cost"),
        (("--trace", "none.jsonl"), "none.jsonl cannot be read"),
        (("--goodput", "speed:3"), "is not METRIC:MS"),
        (("--share", "1.5"), "--share is 1.5; expected above 0, up to 1"),
        (("--request-rate", "-1"), "--request-rate is -1"),
        (("--what-if", "mix=fast"), "--what-if mix=fast: mix is 'fast'"),
        (("--what-if", "model=x"), "--what-if cannot change model"),
        (("--day", "--what-if", "mix=separate"), "--day would not be used with --what-if"),
        (("--replicas", "3"), "--replicas would not be used without --day or --what-if"),
        (("--request-rate", "1e-9"), "--request-rate is 1e-09; expected above 1e-06"),
        (("--save-cost", "."), "is a folder; give a file"),
        (("--what-if", "mix=separate", "--replicas", "1001"), "expected above 0, up to 1000"),
        (("--day", "--replicas", "100001"), "expected above 0, up to 100000"),
    ],
)
def test_a_mistake_gives_one_sentence(words: tuple[str, ...], told: str) -> None:
    done = plan("--backend", "fake", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert told in done.stderr
    assert done.stderr.startswith("jitney: ")
    assert done.stderr.count("\n") == 1


def test_a_missing_cost_gives_one_sentence(tmp_path: Path) -> None:
    done = plan("--cost", tmp_path / "none.json")
    assert done.returncode == 2
    assert "none.json cannot be read" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_load_of_which_all_is_refused_gives_one_sentence(cost: Path) -> None:
    done = plan("--cost", cost, "--input-len", "5000", "--output-len", "4")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("jitney: Every request of this load would be refused: ")
    assert done.stderr.count("\n") == 1
