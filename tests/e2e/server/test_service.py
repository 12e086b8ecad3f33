"""The server as a whole: who leaves, who waits, who may; health, drain and the end."""

import os
import re
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from jitney.config import Key, ServeSettings
from jitney.core.request import Priority
from jitney.server import lifecycle, limits
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import (
    JSON,
    MODEL,
    WAIT_S,
    Running,
    World,
    check_error,
    events,
    lines_of,
    wait_until,
)
from tests.e2e.server.pace import SLOW, SLOW_PROGRAM, Gated, Pace
from tests.e2e.server.processes import backend_of, children, is_alive, served, wait_until_gone

LONG = {"prompt": "a", "max_tokens": 4000}
SECRET = "a-secret-of-the-tests"
TRIES = 5
"""What must happen in the middle of an answer is tried again where a busy machine came too late."""


@pytest.mark.parametrize(
    ("sequences", "fields"), [(1, {}), (1, {"stream": True}), (8, {"request_id": "same"})]
)
def test_leaving_harms_nobody_else(start: Start, sequences: int, fields: dict[str, Any]) -> None:
    """Guards the queue: who left while waiting never runs. Guards ids that callers choose: a second
    one of the same name is a request of its own, and its end is not the other's."""
    server = start(World(backend=SLOW, sequences=sequences))
    first = server.send({**LONG, **fields})
    wait_until(lambda: server.stats.active_slots == 1, "it did not start")
    second = server.send({**LONG, **fields})
    wait_until(lambda: server.stats.live_requests == 2, "it was not accepted")
    second.close()
    wait_until(lambda: server.stats.live_requests == 1, "it goes on for nobody")
    assert server.stats.active_slots == 1
    first.close()
    server.check_idle()


def test_what_can_never_be_accepted_is_no_overload(start: Start) -> None:
    """Guards clients that try again after 429: more completions than may wait are a mistake."""
    server = start(World(queue=16))
    check_error(server.complete(["a"] * 17), 400, "prompt")
    check_error(server.complete(["a"] * 9, n=2), 400, "prompt")
    assert len(server.complete(["a"] * 16, max_tokens=1).json()["choices"]) == 16


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


def test_a_key_has_a_highest_priority(start: Start) -> None:
    """Guards other keys: by name and by number, and what is below it is fine. test_rates.py has the
    other limits of a key."""
    keys = (Key(name="low", secret=SECRET, priority_max=Priority.NORMAL),)
    server = start(World(keys=keys))
    for priority, status in (("critical", 400), (-5, 400), (0, 200), (None, 200)):
        body = {"prompt": "abc", "max_tokens": 8, "priority": priority}
        reply = server.post("/v1/completions", body, authorization=f"Bearer {SECRET}")
        assert reply.status_code == status, priority
        if status == 400:
            check_error(reply, 400, "priority")


def test_health_tells_of_a_backend_that_is_stuck(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the truth: 200 while nothing moves would keep callers coming."""
    monkeypatch.setattr(limits, "STALL_S_MAX", 0.2)
    server = start(World(wrap=Gated))
    assert server.complete().status_code == 200
    server.backend.may_run.clear()
    with ThreadPoolExecutor() as pool:
        pool.submit(server.complete)
        try:
            wait_until(lambda: server.get("/health").status_code == 503, "nobody noticed")
            health = server.get("/health").json()
            assert health["status"] == "stalled"
            assert "1 requests" in health["reason"]
            assert server.get("/ready").status_code == 503
        finally:
            server.backend.may_run.set()
    server.check_idle()


def test_a_drain_lets_streams_finish_and_refuses_the_rest(start: Start) -> None:
    """Guards a restart: nobody loses an answer, and newcomers are sent elsewhere."""
    pace = Pace()
    settings = ServeSettings(served_model_name=(MODEL,), shutdown_timeout=600.0)
    server = start(World(wrap=pace.wrap, settings=settings))
    with ThreadPoolExecutor(8) as pool:
        ask = partial(server.complete, max_tokens=1000, stream=True)
        replies = [pool.submit(ask) for _ in range(8)]
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
    assert all(events(each.result().text)[-1] == "[DONE]" for each in replies)


def test_what_outlives_the_drain_gets_one_error(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the bound on a shutdown: the rest is told so, as an event or as a status."""
    monkeypatch.setattr(lifecycle, "LAST_RESPONSES_S_MAX", WAIT_S)
    settings = ServeSettings(served_model_name=(MODEL,), shutdown_timeout=0.2)
    server = start(World(backend=SLOW, settings=settings))
    lines: list[str] = []

    def listen() -> None:
        body = {**LONG, "stream": True}
        with server.client() as client, client.stream("POST", "/v1/completions", json=body) as got:
            lines.extend(lines_of(got))

    with ThreadPoolExecutor() as pool:
        asking, _ = pool.submit(server.post, "/v1/completions", LONG), pool.submit(listen)
        wait_until(lambda: server.stats.active_slots == 2, "they did not start")
        wait_until(lambda: len(lines) > 2, "nothing was streamed")
        server.lifecycle.stop()
    *_, last = events("\n".join(lines) + "\n\n")
    for error in (check_error(asking.result(), 503), last["error"]):
        assert error["code"] == "shutting_down"
        assert "cut short" in error["message"]
    assert asking.result().headers["connection"] == "close"
    assert "data: [DONE]" not in lines


def test_the_command_serves_its_own_curl_line_and_leaves_nothing(tmp_path: Path) -> None:
    """Guards `jitney serve` end to end: exit code 0 on SIGTERM, and no child is left."""
    with served(tmp_path) as server:
        assert server.popen.stdout is not None
        lines = [server.popen.stdout.readline() for _ in range(2)]
        assert server.address in lines[0]
        found = re.search(r"try\s+curl (\S+) .*-d '(.*)'", lines[1])
        assert found is not None, lines
        reply = server.client.post(found[1], content=found[2], headers=JSON)
        assert reply.json()["choices"][0]["message"]["role"] == "assistant"
        stranger = server.client.get("/health", headers={"host": "evil.example"})
        assert stranger.status_code == 421
        assert children(server.popen.pid), "the backend has a process of its own"
        server.end()
    assert "Traceback" not in server.log.read_text()


def test_a_second_signal_does_not_wait_for_a_stuck_backend(tmp_path: Path) -> None:
    """Guards 'at once': a forward pass that never returns is cut short, not waited for."""
    body = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with served(tmp_path, program=(sys.executable, "-c", SLOW_PROGRAM)) as server:
        worker = backend_of(server.popen.pid)
        with server.client.stream("POST", "/v1/completions", json=body) as stream:
            lines = lines_of(stream)
            next(lines)
            os.kill(worker, signal.SIGSTOP)
            server.popen.send_signal(signal.SIGTERM)
            # Two that are on their way at once would arrive as one.
            wait_until(lambda: "Asked to stop" in server.log.read_text(), "the signal was lost")
            server.popen.send_signal(signal.SIGTERM)
            *_, last = events("\n".join(lines).lstrip() + "\n\n")
            assert "error" in last
        assert server.popen.wait(WAIT_S) == 0
        assert not is_alive(worker)
    log = server.log.read_text()
    # Whoever waits is told for how long, and how not to.
    assert "for 30 s at most; Ctrl-C or SIGTERM again ends it at once" in log
    assert "left behind" not in log
    assert "Traceback" not in log
    assert "The backend is closed" not in log, "a stop that was wanted is no failure"


def test_a_killed_backend_is_started_again_and_streams_go_on(tmp_path: Path) -> None:
    """Guards callers against crashes of native code: the text is that of an undisturbed run."""
    body = {"prompt": "a", "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    with served(tmp_path, program=(sys.executable, "-c", SLOW_PROGRAM)) as server:
        client = server.client
        whole = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        for lost_count in range(1, TRIES + 1):
            kill = partial(os.kill, backend_of(server.popen.pid), signal.SIGKILL)
            assert streamed_text(client, body, kill) == whole
            if is_lost(client, lost_count):
                break
            # The stream was over before its backend was gone.
            wait_until(partial(is_lost, client, lost_count), "nobody noticed")
        else:
            pytest.fail("no stream was under way when its backend died")
        assert client.get("/health").json() == {"status": "ok"}
        server.end()


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


def test_a_backend_lost_while_idle_is_seen_and_started_again(tmp_path: Path) -> None:
    """Guards the first request after a quiet night: every request is tokenised by the backend, so
    that no batch would ever find it dead or stuck. Guards the forward pass, too: where threads have
    a niceness, that of HTTP stands back, since all threads of a pass wait for the slowest."""
    with served(tmp_path) as server:
        client = server.client
        for lost_count, number in enumerate((signal.SIGKILL, signal.SIGSTOP), start=1):
            worker = backend_of(server.popen.pid)
            if sys.platform == "linux":
                http, model = (
                    os.getpriority(os.PRIO_PROCESS, x) for x in (server.popen.pid, worker)
                )
                assert http > model
            os.kill(worker, number)
            # Its end costs less to look at than the metrics; one that is stuck is ended.
            wait_until(partial(wait_until_gone, worker), "nobody ended it")
            wait_until(partial(is_lost, client, lost_count), "nobody noticed")
            reply = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3})
            assert reply.status_code == 200
            assert client.get("/health").json() == {"status": "ok"}
