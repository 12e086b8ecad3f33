"""The server as a whole: who leaves, who waits, who may; health, drain and the end."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from jitney.backends.fake.backend import FakeSettings
from jitney.config import Key, ServeSettings
from jitney.core.batch import Batch, Outcome
from jitney.core.request import Priority
from jitney.server import lifecycle
from tests.e2e.program import expect_sentence, jitney
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import (
    MODEL,
    WAIT_S,
    Running,
    World,
    check_error,
    events,
    lines_of,
    request_bytes,
    wait_until,
)
from tests.e2e.server.pace import SLOW_PROGRAM, Pace, StillClock
from tests.e2e.server.processes import backend_of, children, is_alive

SLOW = FakeSettings(slots=8, eos_period=0, kv_tokens=65_536, tick_s=0.02, sleeps=True)
LONG = {"prompt": "a", "max_tokens": 4000}
SECRET = "a-secret-of-the-tests"
TRIES = 5
"""What must happen in the middle of an answer is tried again where a busy machine came too late."""


@pytest.mark.parametrize("streams", [False, True])
def test_leaving_the_queue_frees_the_place(start: Start, streams: bool) -> None:
    """Guards the queue: who left while waiting never runs, and nobody else is harmed."""
    server = start(World(backend=SLOW, sequences=1))
    running, waiting = server.connect(), server.connect()
    running.sendall(request_bytes("/v1/completions", LONG))
    wait_until(lambda: server.service.engine.stats().active_slots == 1, "it did not start")
    waiting.sendall(request_bytes("/v1/completions", {**LONG, "stream": streams}))
    wait_until(lambda: server.service.engine.stats().live_requests == 2, "it was not accepted")
    waiting.close()
    wait_until(lambda: server.service.engine.stats().live_requests == 1, "it waits for nobody")
    assert server.service.engine.stats().active_slots == 1
    running.close()
    server.check_idle()


def test_nobody_can_end_the_request_of_another_by_its_id(start: Start) -> None:
    """Guards ids that callers choose: a second one of the same name is a request of its own."""
    server = start(World(backend=SLOW))
    first, second = server.connect(), server.connect()
    body = {"prompt": "a", "max_tokens": 4000, "request_id": "same"}
    first.sendall(request_bytes("/v1/completions", body))
    wait_until(lambda: server.service.engine.stats().active_slots == 1, "it did not start")
    second.sendall(request_bytes("/v1/completions", body))
    wait_until(lambda: server.service.engine.stats().live_requests == 2, "it was not accepted")
    second.close()
    wait_until(lambda: server.service.engine.stats().live_requests == 1, "it went on for nobody")
    assert server.service.engine.stats().active_slots == 1
    first.close()
    server.check_idle()


def test_what_can_never_be_accepted_is_no_overload(start: Start) -> None:
    """Guards clients that try again after 429: more completions than may wait are a mistake."""
    server = start(World(queue=16))
    check_error(server.complete(["a"] * 17), 400, "prompt")
    check_error(server.complete(["a"] * 9, n=2), 400, "prompt")
    assert len(server.complete(["a"] * 16, max_tokens=1).json()["choices"]) == 16


def test_two_hundred_who_give_up_harm_nobody(start: Start) -> None:
    """Guards the next caller: work that nobody waits for is not done."""
    server = start(World(backend=SLOW, sequences=8, queue=512))
    connections = [server.connect() for _ in range(200)]
    for connection in connections:
        connection.sendall(request_bytes("/v1/completions", LONG))
    wait_until(lambda: server.load == 200, "they did not all arrive")
    for connection in connections:
        connection.close()
    assert server.complete(max_tokens=3).status_code == 200
    server.check_idle()
    assert server.service.engine.stats().completed_requests == 1


def test_a_client_that_leaves_during_a_stream_frees_its_slot(start: Start) -> None:
    """Guards the common case, by a real client that closes its response."""
    server = start(World(backend=SLOW))
    with server.client() as client:
        with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
            next(response.iter_lines())
        wait_until(server.is_idle, "the request went on for nobody")
    assert server.service.engine.stats().cancelled_requests == 1


def test_what_the_server_says_about_itself(server: Running) -> None:
    """Guards the small endpoints that tools ask first."""
    assert server.get("/health").json() == {"status": "ok"}
    assert server.get("/ready").json() == {"status": "ok"}
    assert re.fullmatch(r"\d+\.\d+.*", server.get("/version").json()["version"])
    assert server.get("/load").json() == {"server_load": 0}
    models = server.get("/v1/models").json()
    assert [each["id"] for each in models["data"]] == ["fake", "other-name"]
    assert server.get("/v1/models/fake").json() == models["data"][0]
    check_error(server.get("/v1/models/none/such"), 404, "model")
    about = server.get("/tokenizer_info").json()
    assert about["eos_token"] == "<|end|>"
    assert about["model_max_length"] == 4096
    document = server.get("/openapi.json").json()
    assert "ChatBody" in document["components"]["schemas"]
    with server.client() as client:
        assert client.head("/health").status_code == 200


def test_tokens_and_text_are_told(server: Running) -> None:
    """Guards clients that tokenise over HTTP."""
    made = server.post("/tokenize", {"prompt": "the bus<|end|>"}).json()
    assert made["count"] == len(made["tokens"])
    assert made["max_model_len"] == 4096
    assert server.post("/detokenize", {"tokens": made["tokens"]}).json() == {
        "prompt": "the bus<|end|>"
    }
    check_error(server.post("/tokenize", {}), 400, "prompt")
    for value in (True, False):
        body = {"messages": [{"role": "user", "content": "hi"}], "add_special_tokens": value}
        check_error(server.post("/tokenize", body), 400, "add_special_tokens")
    check_error(server.post("/detokenize", {"tokens": [10**6]}), 400, "tokens")
    messages = [{"role": "user", "content": "hi"}]
    longer = server.post("/tokenize", {"messages": messages}).json()["count"]
    shorter = server.post(
        "/tokenize", {"messages": messages, "add_generation_prompt": False}
    ).json()["count"]
    assert longer == shorter + 1


def test_keys_have_rates_and_ceilings(start: Start) -> None:
    """Guards the limits of a key: requests, tokens and priority, each its own refusal."""
    keys = (
        Key(name="few", secret=SECRET + "1", requests_per_minute=2),
        Key(name="short", secret=SECRET + "2", tokens_per_minute=5),
        Key(name="low", secret=SECRET + "3", priority_max=Priority.NORMAL),
    )
    server = start(World(keys=keys, clock=StillClock()))

    def ask(number: int, **fields: Any) -> httpx.Response:
        body = {"prompt": "abc", "max_tokens": 8, **fields}
        return server.post("/v1/completions", body, authorization=f"Bearer {SECRET}{number}")

    assert [ask(1).status_code for _ in range(3)] == [200, 200, 429]
    refused = ask(1)
    assert check_error(refused, 429)["code"] == "rate_limit_exceeded"
    assert int(refused.headers["retry-after"]) >= 1
    assert [ask(2).status_code for _ in range(2)] == [200, 429]
    check_error(ask(3, priority="critical"), 400, "priority")
    check_error(ask(3, priority=-5), 400, "priority")
    assert ask(3, priority=0).status_code == 200
    assert ask(3).status_code == 200


class Stuck:
    """A backend whose next batch takes as long as it likes."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.may_go = threading.Event()
        self.may_go.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def execute(self, batch: Batch) -> Outcome:
        assert self.may_go.wait(WAIT_S), "nobody let it go"
        outcome: Outcome = self._backend.execute(batch)
        return outcome


def test_health_tells_of_a_backend_that_is_stuck(start: Start) -> None:
    """Guards the truth: 200 while nothing moves would keep callers coming."""
    made: list[Stuck] = []

    def wrap(backend: Any) -> Stuck:
        made.append(Stuck(backend))
        return made[0]

    settings = ServeSettings(served_model_name=(MODEL,), stall_timeout=0.2)
    server = start(World(wrap=wrap, settings=settings))
    assert server.complete().status_code == 200
    made[0].may_go.clear()
    caller = threading.Thread(target=server.complete)
    caller.start()
    try:
        wait_until(lambda: server.get("/health").status_code == 503, "nobody noticed")
        told = server.get("/health").json()
        assert told["status"] == "stalled"
        assert "1 requests" in told["reason"]
        assert server.get("/ready").status_code == 503
    finally:
        made[0].may_go.set()
        caller.join(WAIT_S)
    server.check_idle()


def test_a_drain_lets_streams_finish_and_refuses_the_rest(start: Start) -> None:
    """Guards a restart: nobody loses an answer, and newcomers are sent elsewhere."""
    pace = Pace()
    settings = ServeSettings(served_model_name=(MODEL,), shutdown_timeout=600.0)
    server = start(World(wrap=pace.wrap, settings=settings))
    texts: list[str] = []
    body = {"prompt": "a", "max_tokens": 1000, "stream": True}

    def ask() -> None:
        texts.append(server.post("/v1/completions", body).text)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: server.load == 8, "they did not all arrive")
    server.lifecycle.stop()
    wait_until(lambda: server.service.admission.is_draining, "it does not drain")
    ready = server.get("/ready")
    assert (ready.status_code, ready.headers["connection"]) == (503, "close")
    assert server.get("/health").status_code == 200
    refused = server.complete()
    assert check_error(refused, 503)["code"] == "shutting_down"
    assert refused.headers["connection"] == "close"
    pace.may_hurry.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(texts) == 8
    assert all(events(text)[-1] == "[DONE]" for text in texts)


def test_what_outlives_the_drain_gets_one_error(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the bound on a shutdown: the rest is told so, as an event or as a status."""
    monkeypatch.setattr(lifecycle, "LAST_RESPONSES_S_MAX", WAIT_S)
    settings = ServeSettings(served_model_name=(MODEL,), shutdown_timeout=0.2)
    server = start(World(backend=SLOW, settings=settings))
    replies: list[httpx.Response] = []
    lines: list[str] = []

    def ask() -> None:
        replies.append(server.post("/v1/completions", LONG))

    def listen() -> None:
        asked = {**LONG, "stream": True}
        with server.client() as client, client.stream("POST", "/v1/completions", json=asked) as got:
            lines.extend(lines_of(got))

    threads = [threading.Thread(target=target) for target in (ask, listen)]
    for thread in threads:
        thread.start()
    wait_until(lambda: server.service.engine.stats().active_slots == 2, "they did not start")
    wait_until(lambda: len(lines) > 2, "nothing was streamed")
    server.lifecycle.stop()
    for thread in threads:
        thread.join(WAIT_S)
    *_, last = events("\n".join(lines) + "\n\n")
    for error in (check_error(replies[0], 503), last["error"]):
        assert error["code"] == "shutting_down"
        assert "cut short" in error["message"]
    assert replies[0].headers["connection"] == "close"
    assert "data: [DONE]" not in lines


@contextlib.contextmanager
def served(
    tmp_path: Path, *flags: str, program: tuple[str, str] = ("-m", "jitney")
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`jitney serve` in a process of its own, with its address."""
    command = [sys.executable, *program, "serve", "--backend", "fake", "--port", "0", *flags]
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None, line + (tmp_path / "log").read_text()
        yield process, found[0]
    finally:
        process.kill()
        process.wait(WAIT_S)
        log.close()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("count", [1, 2])
def test_the_command_serves_its_own_curl_line_and_leaves_nothing(
    tmp_path: Path, count: int
) -> None:
    """Guards `jitney serve` end to end: exit code 0 on SIGTERM, and no child is left."""
    with served(tmp_path) as (process, address):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        assert address in lines[0]
        found = re.search(r"try\s+curl (\S+) .*-d '(.*)'", lines[1])
        assert found is not None, lines
        reply = httpx.post(
            found[1], content=found[2], headers={"content-type": "application/json"}, timeout=WAIT_S
        )
        assert reply.json()["choices"][0]["message"]["role"] == "assistant"
        stranger = httpx.get(address + "/health", headers={"host": "evil.example"}, timeout=WAIT_S)
        assert stranger.status_code == 421
        workers = children(process.pid)
        assert workers, "the backend has a process of its own"
        for _ in range(count):
            process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        wait_until(
            lambda: not any(is_alive(worker) for worker in workers), "a child was left behind"
        )
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_second_signal_does_not_wait_for_a_stuck_backend(tmp_path: Path) -> None:
    """Guards 'at once': a forward pass that never returns is cut short, not waited for."""
    body = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with served(tmp_path, program=("-c", SLOW_PROGRAM)) as (process, address):
        worker = backend_of(process.pid)
        with (
            httpx.Client(base_url=address, timeout=WAIT_S) as client,
            client.stream("POST", "/v1/completions", json=body) as stream,
        ):
            lines = lines_of(stream)
            next(lines)
            os.kill(worker, signal.SIGSTOP)
            process.send_signal(signal.SIGTERM)
            # Two that are on their way at once would arrive as one.
            wait_until(
                lambda: "Asked to stop" in (tmp_path / "log").read_text(), "the signal was lost"
            )
            process.send_signal(signal.SIGTERM)
            *_, last = events("\n".join(lines).lstrip() + "\n\n")
            assert "error" in last
        assert process.wait(WAIT_S) == 0
        assert not is_alive(worker)
    log = (tmp_path / "log").read_text()
    # Whoever waits is told for how long, and how not to.
    assert "for 30 s at most; Ctrl-C or SIGTERM again ends it at once" in log
    assert "left behind" not in log
    assert "Traceback" not in log
    assert "The backend is closed" not in log, "a stop that was wanted is no failure"


def test_a_killed_backend_is_started_again_and_streams_go_on(tmp_path: Path) -> None:
    """Guards callers against crashes of native code: the text is that of an undisturbed run."""
    body = {"prompt": "a", "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    with served(tmp_path, program=("-c", SLOW_PROGRAM)) as (process, address):
        with httpx.Client(base_url=address, timeout=WAIT_S) as client:
            whole = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
            for lost_count in range(1, TRIES + 1):
                worker = backend_of(process.pid)
                assert (
                    streamed_text(client, body, partial(os.kill, worker, signal.SIGKILL)) == whole
                )
                if is_lost(client, lost_count):
                    break
                # The stream was over before its backend was gone.
                wait_until(partial(is_lost, client, lost_count), "nobody noticed")
            else:
                pytest.fail("no stream was under way when its backend died")
            assert client.get("/health").json() == {"status": "ok"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def streamed_text(client: httpx.Client, body: dict[str, Any], on_ninth: Callable[[], None]) -> str:
    """The text of a stream that ends well; something is done when its ninth line is there."""
    lines: list[str] = []
    with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
        for line in lines_of(stream):
            lines.append(line)
            if len(lines) == 9:
                on_ninth()
    *chunks, done = events("\n".join(lines) + "\n\n")
    assert done == "[DONE]"
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


def is_lost(client: httpx.Client, count: int) -> bool:
    """Whether the server has seen so many losses of its backend."""
    told = client.get("/metrics").text
    sought = rf"^jitney:backend_losses_total\S* {count}(\.0)?$"
    return re.search(sought, told, re.MULTILINE) is not None


def is_gone(pid: int) -> bool:
    return not is_alive(pid)


def test_a_backend_lost_while_idle_is_seen_and_started_again(tmp_path: Path) -> None:
    """Guards the first request after a quiet night: every request is tokenised by the backend, so
    that no batch would ever find it dead or stuck. Guards the forward pass, too: where threads have
    a niceness, that of HTTP stands back, since all threads of a pass wait for the slowest."""
    with (
        served(tmp_path) as (process, address),
        httpx.Client(base_url=address, timeout=WAIT_S) as client,
    ):
        for lost_count, number in enumerate((signal.SIGKILL, signal.SIGSTOP), start=1):
            worker = backend_of(process.pid)
            if sys.platform == "linux":
                http, model = (os.getpriority(os.PRIO_PROCESS, x) for x in (process.pid, worker))
                assert http > model
            os.kill(worker, number)
            # Its end costs less to look at than the metrics; one that is stuck is ended.
            wait_until(partial(is_gone, worker), "nobody ended it")
            wait_until(partial(is_lost, client, lost_count), "nobody noticed")
            reply = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3})
            assert reply.status_code == 200
            assert client.get("/health").json() == {"status": "ok"}


def test_a_port_in_use_is_one_sentence(server: Running) -> None:
    """Guards a common mistake: said before the model is loaded."""
    done = jitney("serve", "--backend", "fake", "--port", str(server.port))
    expect_sentence(done, 2, "Address already in use")
