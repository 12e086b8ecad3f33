"""A server over two replicas on a real Ray: answers as one, and outlives a replica."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from openai import InternalServerError, OpenAI

from jitney.core.limits import FAILURES_MAX
from tests.deadly_text import DEADLY, Deaths, deadly_text
from tests.e2e.batches.batch_client import custom_ids, ended, line, results, submit
from tests.e2e.batches.batch_process import ServerProcess, server_process
from tests.e2e.cluster.open_ports import listening, started_with, tree
from tests.e2e.cluster.ray_process import STARTS_MAX, UNABLE, stream
from tests.e2e.server.processes import PROC, _command, children, wait_until_gone
from tests.machine_for_tests import machine

pytest.importorskip("ray", reason="Ray is not installed: it has no package for this machine")
pytestmark = pytest.mark.timeout(900)

TOKENS = 500
STREAMS = 8
FLAGS = ("--replicas", "2", "--max-num-seqs", "8", "--max-model-len", "1024")
STRANGER = Path(__file__).with_name("stranger.py")
NEEDS_PROC = pytest.mark.skipif(
    not (PROC / "net").exists(), reason="where a process listens is read from /proc"
)


@contextlib.contextmanager
def cluster(folder: Path, home: Path) -> Iterator[ServerProcess]:
    """A server over two replicas. Skips where Ray itself does not start: the machine is starved."""
    with contextlib.ExitStack() as stack:
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        # It has to start a Ray of its own, whatever other one it could find.
        patched.setenv("RAY_ADDRESS", "127.0.0.1:1")
        for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
            patched.delenv(name, raising=False)
        # Of a user who asks for no token, which is for other clusters than this one.
        patched.setenv("RAY_AUTH_MODE", "disabled")
        patched.setenv("HOME", str(home))
        patched.setenv("RAY_TMPDIR", str(home))
        for _ in range(STARTS_MAX):
            try:
                with machine(alone=True):
                    running = stack.enter_context(server_process(folder, *FLAGS))
                break
            except AssertionError as error:
                if "Ray could not be started" not in str(error):
                    raise
        else:
            pytest.skip(UNABLE)
        yield running


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A home that others may look into, as it was the default for long."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deaths]:
    with deadly_text(tmp_path_factory.mktemp("custom")) as made:
        yield made


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, home: Path, deaths: Deaths
) -> Iterator[ServerProcess]:
    with cluster(tmp_path_factory.mktemp("jobs"), home) as running:
        yield running


def replicas_of(pid: int) -> list[int]:
    """The processes of the replicas under this one."""
    found = []
    for child in children(pid):
        is_replica = "ServeReplica:jitney" in _command(child)
        found += [child] if is_replica else replicas_of(child)
    return found


def test_every_replica_is_seen_before_its_first_request(server: ServerProcess) -> None:
    """Guards what people see of a new cluster: one replica of two would look like a failure."""
    due, text = threading.Event(), ""
    for _ in range(1000):
        text = httpx.get(f"{server.address}/metrics", timeout=100).text
        if text.count("\njitney:replica_up{") == 2:
            break
        due.wait(0.1)
    assert text.count("\njitney:replica_up{") == 2


def test_a_caller_cannot_tell_that_a_replica_was_killed(server: ServerProcess) -> None:
    """Guards the promise of a cluster: one stream, no token twice, none lost, usage right."""
    with ThreadPoolExecutor(STREAMS) as threads:
        seen = threading.Semaphore(0)
        expected = list(
            threads.map(lambda at: stream(server.address, at, TOKENS, seen), range(STREAMS))
        )
        assert {used for _, used in expected} == {TOKENS}
        before = replicas_of(server.pid)
        assert len(before) == 2
        seen = threading.Semaphore(0)
        reading = [
            threads.submit(stream, server.address, at, TOKENS, seen) for at in range(STREAMS)
        ]
        # However many tokens a chunk has, each stream has one before it ends.
        for _ in range(STREAMS):
            assert seen.acquire(timeout=100)
        os.kill(before[0], signal.SIGKILL)
        assert [each.result() for each in reading] == expected
    lost = [line for line in server.log if "lost its replica" in line]
    assert lost, "the replica ran nothing, so this test has shown nothing"
    assert httpx.get(f"{server.address}/health", timeout=100).json() == {"status": "ok"}
    stats = httpx.get(f"{server.address}/stats", timeout=100).json()
    assert stats["completed_requests"] == 2 * STREAMS
    assert (stats["failed_requests"], stats["live_requests"]) == (0, 0)


def test_routes_and_errors_are_those_of_one_engine(server: ServerProcess) -> None:
    """Guards one code for both: a mistake has the same sentence."""
    long = httpx.post(
        f"{server.address}/v1/completions",
        json={"prompt": "x" * 1100, "max_tokens": 4},
        timeout=100,
    )
    assert long.status_code == 400
    assert long.json()["error"]["code"] == "context_length_exceeded"
    schema = {"prompt": "a", "structured_outputs": {"regex": "["}, "max_tokens": 4}
    wrong = httpx.post(f"{server.address}/v1/completions", json=schema, timeout=100)
    assert wrong.status_code == 400
    body = {"prompt": "a", "structured_outputs": {"regex": "[ab]{8}"}, "max_tokens": 20}
    right = httpx.post(f"{server.address}/v1/completions", json=body, timeout=100).json()
    assert len(right["choices"][0]["text"]) == 8
    assert "jitney:" in httpx.get(f"{server.address}/metrics", timeout=100).text
    tokens = httpx.post(f"{server.address}/tokenize", json={"prompt": "abc"}, timeout=100)
    assert tokens.json()["count"] >= 3


@NEEDS_PROC
def test_nothing_of_a_server_on_loopback_listens_elsewhere(server: ServerProcess) -> None:
    """Guards the machine's neighbours: Ray opens a dozen ports, on all interfaces by itself."""
    opened = listening(tree(server.pid))
    assert len(opened) > 5, "the server's, Ray's, and one of each replica"
    assert [f"{address} {port}" for address, port in opened if not address.is_loopback] == []


@NEEDS_PROC
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_cannot_give_orders_to_ray(
    server: ServerProcess, home: Path
) -> None:
    """Guards the server's user: with the token, or a place in Ray's folder, any code runs as it."""
    assert not (home / ".ray").exists(), "a token that Ray wrote, for all to read"
    pids = tree(server.pid)
    given = [each for pid in pids for each in started_with(pid, "environ")]
    (token,) = {each.partition("=")[2] for each in given if each.startswith("RAY_AUTH_TOKEN=")}
    commands = " ".join(each for pid in pids for each in started_with(pid, "cmdline"))
    assert token not in commands
    (session,) = set(re.findall(r"(/\S+/session_[\d_-]+)/", commands))
    folders = [str(home), session, str(Path(session).parent)]
    asked = {"ports": [port for _, port in listening(pids)], "folders": folders, "token": token}
    done = subprocess.run(
        [sys.executable, "-P", STRANGER],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["held"], seen["writable"]) == ([], [])
    assert not [each for each in seen["answers"] if "submission_id" in each]
    assert [each for each in seen["answers"] if " 401 " in each.partition("\r\n")[0]]


def test_a_text_that_kills_the_tokenizer_ends_few_backends(
    server: ServerProcess, deaths: Deaths
) -> None:
    """Guards the other replicas: one call went from each to the next for a minute and ended 65
    backends, and was then told to come back. As a line of a batch it did so for 24 hours."""
    url = f"{server.address}/v1"
    with OpenAI(base_url=url, api_key="none", max_retries=2, timeout=100) as client:
        with pytest.raises(InternalServerError, match="may be the cause"):
            client.completions.create(model="fake", prompt=DEADLY)
        assert deaths.count == 1
        lines = [line(f"c{each}", prompt=DEADLY if each == 4 else "y") for each in range(20)]
        done = ended(client, submit(client, lines))
        expected = [f"c{each}" for each in range(20) if each != 4]
        assert custom_ids(results(client, done.output_file_id)) == expected
        (row,) = results(client, done.error_file_id)
    assert (row["custom_id"], row["response"]["status_code"]) == ("c4", 500)
    assert deaths.count == 1 + FAILURES_MAX


def test_a_stopped_server_leaves_nothing_behind(server: ServerProcess) -> None:
    """Guards the machine: Ray that was started here ends with the server. The last test of it."""
    replicas = replicas_of(server.pid)
    assert replicas
    server.popen.send_signal(signal.SIGTERM)
    assert server.popen.wait(100) == 0
    assert wait_until_gone(*replicas)
