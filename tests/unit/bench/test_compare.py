"""Ratios of a comparison, and servers of others: started, found, refused, stopped."""

import os
import sys
from pathlib import Path

import httpx
import pytest

from jitney.bench.compare import IN_PROCESS, SERVED, Comparison, Contender
from jitney.bench.peers.server_process import free_port, running_server
from jitney.bench.peers.servers import Room, ServerPlan, jitney_server, llama_servers
from jitney.bench.workload import Workload
from jitney.config import Settings
from jitney.errors import SetupError

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_ratio_is_ours_before_and_after_over_theirs() -> None:
    said: list[str] = []
    seen: list[int] = []
    comparison = Comparison(Settings(), Path("m.gguf"), runs=2, seed=5, say=said.append)
    ours = iter([0.0, 90.0, 110.0, 30.0, 50.0])

    def theirs(load: Workload) -> float:
        seen.append(load.seed)
        return 50.0

    peer = Contender("peer", theirs, SERVED)
    comparison._measure({SERVED: lambda load: next(ours), IN_PROCESS: lambda load: 1.0}, [peer], 4)
    assert comparison._ratios == {"peer": {"4": [2.0, 0.8]}}
    assert comparison._rates[SERVED] == {"4": [90.0, 110.0, 30.0, 50.0]}
    # One load to warm up, and another one for each run.
    assert len(set(seen)) == 3
    assert len(said) == 2


def test_a_server_is_started_and_stopped() -> None:
    port = free_port()
    with running_server([sys.executable, "-c", SERVER, str(port)], port) as address:
        assert httpx.get(f"{address}/v1/models", trust_env=False).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/v1/models", trust_env=False)


def test_a_server_that_does_not_start_says_why() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with (
        pytest.raises(SetupError, match="did not start: no such model"),
        running_server(command, free_port()),
    ):
        raise AssertionError("It did not start.")


def test_a_failure_of_the_caller_is_not_the_servers() -> None:
    port = free_port()
    with (
        pytest.raises(TimeoutError, match="mine"),
        running_server([sys.executable, "-c", SERVER, str(port)], port),
    ):
        raise TimeoutError("mine")


def test_commands_have_their_port_and_room() -> None:
    plan = jitney_server(Path("m.gguf"), Room(slots=4), ("--backend", "fake"))
    words = plan.on(1234)
    assert "PORT" not in words
    assert words[words.index("--port") + 1] == "1234"
    assert words[words.index("--max-num-seqs") + 1] == "4"
    assert ServerPlan(name="x", command=("a", "PORT")).on(7) == ["a", "7"]


def test_a_compiled_llama_server_is_found_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LLAMA_SERVER", str(tmp_path / "llama-server"))
    plans = [
        each for each in llama_servers(Path("m.gguf"), Room(slots=4)) if "compiled" in each.name
    ]
    assert len({each.settings for each in plans}) == 4
    assert all(each.command[0] == os.fspath(tmp_path / "llama-server") for each in plans)
    assert all(each.command[each.command.index("--ctx-size") + 1] == "2048" for each in plans)
