"""Tests of `benchmarks.compare`: its ratios, systems that fail, and servers that never stay."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.compare import comparison as compare
from benchmarks.compare import libraries
from benchmarks.compare.comparison import IN_PROCESS, SERVED, Comparison, Contender
from benchmarks.compare.servers import ServerPlan, jitney_server
from jitney.config import Settings, environment, resolve
from jitney.errors import SetupError
from jitney_lab.bench.workload import Workload

ROOT = Path(__file__).parents[3]
WAIT_S = 60.0


def make(runs: int = 2, settings: Settings | None = None) -> Comparison:
    files = {"": Path("m.gguf")}
    return Comparison(settings or Settings(), {"backend": "fake"}, files, runs=runs, seed=5)


def constant(rate: float) -> Callable[[Workload], float]:
    return lambda load: rate


def failing(good_count: int) -> Callable[[Workload], float]:
    """A system that fails after so many loads."""
    left = [50.0] * good_count

    def rate(load: Workload) -> float:
        if not left:
            raise RuntimeError("broken pipe")
        return left.pop()

    return rate


def test_a_ratio_is_ours_before_and_after_over_theirs() -> None:
    comparison = make(runs=1)
    ours = iter([0.0, 10.0, 30.0, 50.0])
    peers = [Contender(name, constant(10.0), SERVED) for name in ("one", "two")]
    comparison._measure({SERVED: lambda load: next(ours), IN_PROCESS: constant(1.0)}, peers, 4)
    # What comes after one comes before the next.
    assert comparison._ratios == {"one": {"4": [2.0]}, "two": {"4": [4.0]}}
    # It is measured though nobody is compared with it.
    assert comparison._rates[IN_PROCESS] == {"4": [1.0]}


def test_a_system_that_fails_is_left_out_and_the_others_go_on() -> None:
    comparison = make()
    peers = [
        Contender("weak", failing(1), SERVED),
        Contender("empty", constant(0.0), IN_PROCESS),
        Contender("good", constant(50.0), SERVED),
    ]
    comparison._measure({SERVED: constant(100.0), IN_PROCESS: constant(200.0)}, peers, 4)
    assert comparison._ratios == {"weak": {"4": [2.0]}, "good": {"4": [2.0, 2.0]}}
    assert comparison._notes == [
        "empty at 4, from run 1 on is left out: it made no tokens",
        "weak at 4, from run 2 on is left out: broken pipe",
    ]


def test_the_fastest_settings_that_run_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"bad": 0.0, "slow": 10.0, "fast": 20.0, "slowest": 1.0}
    plans = [ServerPlan(name="s", command=(), settings=word) for word in rates]

    def server_rate(stack: object, plan: ServerPlan) -> Callable[[Workload], float]:
        if plan.settings == "bad":
            raise OSError("no such file")
        return constant(rates[plan.settings])

    monkeypatch.setattr(compare, "_server_rate", server_rate)
    comparison = make()
    comparison._search(lambda slots: plans, 16)
    assert [plan.settings for plan in comparison._best] == ["fast"]
    assert comparison._notes[0] == "s, bad is left out: no such file"
    assert comparison._notes[-1] == "Tried s, slowest: 1 tokens/s on a short load"


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other system is installed."""
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    for name in ("LLAMA_SERVER", "VLLM_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


@pytest.mark.usefixtures("nobody")
def test_what_was_measured_is_kept_when_we_fail_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def ours(stack: object, count: int) -> dict[str, Callable[[Workload], float]]:
        if count == 64:
            raise SetupError("no memory")
        return {SERVED: constant(100.0), IN_PROCESS: constant(200.0)}

    comparison, another = make(runs=1), make(runs=1)
    for each in (comparison, another):
        monkeypatch.setattr(each, "_ours", ours)
    result = comparison.run((4, 64))
    assert {row[1] for row in result.rows} == {"4"}
    assert "jitney at 64 is left out: no memory" in result.notes
    assert "LLAMA_SERVER" in result.notes[-1]
    with pytest.raises(SetupError):
        another.run((64,))


def test_our_server_gets_the_settings_of_the_run_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JITNEY_API_KEY", "secret")
    monkeypatch.setenv("JITNEY_THREADS", "7")
    plan = jitney_server(None, {"backend": "fake", "backend_process": "false"}, 4)
    found = resolve({}, None, {**environment(), **plan.environment})
    assert found.serving.api_key == ()
    assert (found.settings.threads, found.settings.max_num_seqs) == (None, 4)
    assert (found.settings.backend_process, found.settings.enable_prefix_caching) == (False, False)
    assert plan.on(1234)[-1] == "1234"


SERVER = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = open(sys.argv[1], "wb", buffering=0)
held.write(b"x")
time.sleep(600)
"""
"""Holds a pipe open while it lives, and does not listen to SIGTERM."""

STARTER = """
import sys
from benchmarks.compare import server_process
server_process._is_up = lambda process, address, start_s: True
with server_process.running_server(sys.argv[1:], 1):
    sys.stdin.read()
"""


def test_a_server_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    life = tmp_path / "life"
    os.mkfifo(life)
    end = os.open(life, os.O_RDONLY | os.O_NONBLOCK)
    server = [sys.executable, "-c", SERVER, str(life)]
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, *server], stdin=subprocess.PIPE, cwd=ROOT
    ) as starter:
        guard = threading.Timer(WAIT_S, starter.kill)
        guard.start()
        # The server writes a byte as soon as it lives.
        assert select.select([end], [], [], WAIT_S)[0]
        assert os.read(end, 1) == b"x"
        guard.cancel()
        starter.send_signal(signal.SIGKILL)
    assert select.select([end], [], [], WAIT_S)[0]
    assert os.read(end, 1) == b""
    os.close(end)
