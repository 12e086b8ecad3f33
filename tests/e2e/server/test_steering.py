"""Pause, resume and reprioritise over HTTP: one's own calls, and nobody else's."""

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from jitney.config import Key
from jitney.core.request import Priority
from jitney.core.scheduler_settings import Candidate, Policy
from jitney.engine.engine import Engine
from jitney.engine.served_engine import ServedEngine
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import WAIT_S, Running, World, check_error, lines_of, wait_until
from tests.e2e.server.pace import Pace, StillClock

LONG = {"prompt": "a", "max_tokens": 800, "stream": True, "temperature": 0}
KEYS = (
    {"authorization": "Bearer first-secret-of-tests"},
    {"authorization": "Bearer other-secret-of-tests"},
)


def keyed() -> tuple[Key, ...]:
    return (
        Key(name="first", secret="first-secret-of-tests", priority_max=Priority.HIGH),
        Key(name="other", secret="other-secret-of-tests"),
    )


class Stream:
    """A call that is read on a thread of its own."""

    def __init__(
        self,
        server: Running,
        headers: dict[str, str] | None = None,
        own_id: str | None = None,
        prompts: Sequence[str] = ("a",),
    ) -> None:
        self._server = server
        self._body = {**LONG, "prompt": prompts, "request_id": own_id}
        self._headers = headers or {}
        self.id = ""
        self.text = ""
        self.is_done = False
        self._has_id = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self._has_id.wait(WAIT_S)

    def post(self, what: str, priority: Any = None) -> httpx.Response:
        """Steer it, as its own caller."""
        return post(self._server, f"{self.id}/{what}", self._headers, priority)

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert self.is_done

    def _read(self) -> None:
        with (
            self._server.client() as client,
            client.stream(
                "POST", "/v1/completions", json=self._body, headers=self._headers
            ) as reply,
        ):
            for chunk in _chunks(reply):
                self.id = chunk["id"]
                self.text += chunk["choices"][0]["text"] if chunk["choices"] else ""
                self._has_id.set()
        self.is_done = True


class Calls:
    """A server, and streams that go on until the test is done with them."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self.pace = Pace()
        self.streams: list[Stream] = []

    def serve(self, **fields: Any) -> Running:
        return self._start(World(wrap=self.pace.wrap, **fields))

    def begin(self, *fields: Any, **options: Any) -> Stream:
        self.streams.append(Stream(*fields, **options))
        return self.streams[-1]


@pytest.fixture
def calls(start: Start) -> Iterator[Calls]:
    """Calls, each of which ends well when the test is over."""
    made = Calls(start)
    yield made
    made.pace.may_hurry.set()
    for stream in made.streams:
        stream.join()


def _chunks(reply: httpx.Response) -> Iterator[Any]:
    for line in lines_of(reply):
        data = line.removeprefix("data: ")
        if line.startswith("data: ") and data != "[DONE]":
            yield json.loads(data)


def post(
    server: Running, path: str, headers: dict[str, str] | None = None, priority: Any = None
) -> httpx.Response:
    given = {} if priority is None else {"priority": priority}
    with server.client() as client:
        return client.post(f"/v1/requests/{path}", params=given, headers=headers or {})


def _is_reprioritised(engine: ServedEngine, count: int) -> bool:
    return engine.stats().counters["reprioritised"] == count


def test_a_stream_stands_still_while_it_is_paused(calls: Calls) -> None:
    """Guards pause and resume: the text is that of an undisturbed call, and health is ok."""
    server = calls.serve()
    alone = calls.begin(server)
    calls.pace.may_hurry.set()
    alone.join()
    calls.pace.may_hurry.clear()
    paused = calls.begin(server)
    assert paused.post("pause").json()["status"] == "pausing"
    engine = server.service.engine
    wait_until(lambda: engine.snapshot().paused_count == 1, "it was not paused")
    assert engine.snapshot().running_count == 0
    assert server.get("/health").json() == {"status": "ok"}
    waiting = server.get("/page/state").json()["queue"]
    assert [each["reason"] for each in waiting] == ["its caller paused it"]
    assert paused.post("resume").json()["status"] == "resuming"
    calls.pace.may_hurry.set()
    paused.join()
    assert paused.text == alone.text
    story = server.get(f"/page/requests/{paused.id}").json()
    assert "paused once by its caller" in story["words"]
    server.check_idle()


def test_who_leaves_while_paused_frees_the_place(calls: Calls) -> None:
    """Guards the queue: a paused call whose client is gone is nobody's."""
    server = calls.serve()
    with server.client() as client, client.stream("POST", "/v1/completions", json=LONG) as reply:
        chunks = _chunks(reply)
        post(server, f"{next(chunks)['id']}/pause")
        wait_until(lambda: server.service.engine.snapshot().paused_count == 1, "not paused")
    server.check_idle()


class OwnPolicy:
    def rank(self, candidate: Candidate) -> float:
        return -candidate.priority


@pytest.mark.parametrize("policy", [Policy.PRIORITY, OwnPolicy()], ids=["ours", "own"])
def test_a_call_is_put_into_another_class(calls: Calls, policy: Policy | OwnPolicy) -> None:
    """Guards the direction of numbers: those that only vLLM has are its own, others are refused."""
    server = calls.serve(policy=policy)
    stream = calls.begin(server)
    engine = server.service.engine
    for count, (given, told) in enumerate(((-1, "high"), ("low", "low"), (-7, "critical")), 1):
        assert stream.post("priority", given).json()["status"] == told
        # Of two that come between two ticks, only the last would count.
        wait_until(partial(_is_reprioritised, engine, count), "it stayed in its class")
    check_error(stream.post("priority", "urgent"), 400, "priority")
    check_error(stream.post("priority"), 400)
    assert "3 is low in vLLM" in check_error(stream.post("priority", 3), 400, "priority")["message"]
    assert "and high among levels" in check_error(server.complete(priority=2), 400)["message"]
    assert _is_reprioritised(engine, 3)


@pytest.mark.parametrize("what", ["pause", "resume", "priority"])
def test_only_ones_own_live_calls_are_found(calls: Calls, what: str) -> None:
    """Guards callers against each other: another key's call does not exist."""
    server = calls.serve(keys=keyed(), policy=Policy.PRIORITY)
    first, other = KEYS
    stream = calls.begin(server, first)
    given = "low" if what == "priority" else None
    assert check_error(post(server, f"{stream.id}/{what}", other, priority=given), 404)
    assert check_error(post(server, f"nobody/{what}", first, priority=given), 404)
    assert check_error(post(server, f"{stream.id}/{what}", priority=given), 401)
    assert stream.post(what, given).status_code == 200
    stream.post("resume")
    calls.pace.may_hurry.set()
    stream.join()
    assert check_error(stream.post(what, given), 404)


def test_what_would_have_no_effect_is_refused(calls: Calls) -> None:
    """Guards whoever raises a class and believes it helps: first come, first served."""
    server = calls.serve()
    stream = calls.begin(server)
    error = check_error(stream.post("priority", "high"), 400, "priority")
    assert "no effect" in error["message"]


def test_only_so_many_are_paused_and_steering_counts_against_the_rate(calls: Calls) -> None:
    """Guards everybody else against callers who pause all they have, or do nothing but steer."""
    key = Key(name="first", secret="first-secret-of-tests", requests_per_minute=4)
    server = calls.serve(queue=4, keys=(key,), clock=StillClock())
    one, two = calls.begin(server, KEYS[0]), calls.begin(server, KEYS[0])
    one.post("pause")
    wait_until(lambda: server.service.engine.snapshot().paused_count == 1, "it was not paused")
    error = check_error(two.post("pause"), 429)
    assert error["code"] == "too_many_paused"
    assert check_error(two.post("pause"), 429)["code"] != "too_many_paused"
    engine = server.service.engine
    assert isinstance(engine, Engine)
    engine.drain()


def paused_counts(server: Running) -> tuple[int, int]:
    """How many were paused so far, and how many pauses ended since."""
    counters = server.stats.counters
    return counters["paused"], counters["resumed"]


def test_a_pause_beyond_the_share_of_a_key_is_refused(calls: Calls) -> None:
    """Guards whoever pauses: of eleven pauses that were called done, eight were."""
    server = calls.serve(queue=16, keys=keyed())
    streams = [calls.begin(server, KEYS[0]) for _ in range(3)]
    for stream in streams[:2]:
        assert stream.post("pause").json()["status"] == "pausing"
    error = check_error(streams[2].post("pause"), 429)
    assert error["code"] == "too_many_paused"
    assert streams[0].post("pause").status_code == 200
    other = calls.begin(server, KEYS[1])
    assert other.post("pause").status_code == 200
    assert paused_counts(server) == (3, 0)
    for stream in (*streams, other):
        stream.post("resume")


def test_of_two_pauses_at_once_the_one_without_room_is_refused(calls: Calls) -> None:
    """Guards the answer against being given before the engine has decided."""
    server = calls.serve(queue=4)
    one, two = calls.begin(server), calls.begin(server)
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda each: each.post("pause"), (one, two)))
    assert sorted(each.status_code for each in answers) == [200, 429]
    assert paused_counts(server) == (1, 0)
    for stream in (one, two):
        stream.post("resume")


def test_a_call_of_which_a_part_has_no_room_goes_on_as_a_whole(calls: Calls) -> None:
    """Guards a call of several prompts: who is told that it is not paused is not half paused."""
    server = calls.serve(queue=4)
    stream = calls.begin(server, prompts=("a", "b"))
    check_error(stream.post("pause"), 429)
    wait_until(lambda: paused_counts(server) == (1, 1), "a part of it is paused")


def test_a_shutdown_lets_the_paused_go_on_and_pauses_nobody(calls: Calls) -> None:
    """Guards a shutdown: it would wait for what is paused until its time is over, and cut it."""
    server = calls.serve()
    paused, running = calls.begin(server), calls.begin(server)
    paused.post("pause")
    wait_until(lambda: server.service.engine.snapshot().paused_count == 1, "it was not paused")
    server.service.drain()
    check_error(running.post("pause"), 503)
    calls.pace.may_hurry.set()
    for stream in (paused, running):
        stream.join()
        assert len(stream.text) > 0


def test_a_call_is_found_by_its_own_id_and_by_that_of_its_slot(calls: Calls) -> None:
    """Guards who waits and has no reply yet, and who looks at /slots."""
    server = calls.serve()
    stream = calls.begin(server, own_id="mine")
    assert stream.id == "cmpl-mine"
    (row,) = [each for each in server.get("/slots").json() if each["is_processing"]]
    for name in ("mine", "cmpl-mine", row["id_task"]):
        assert post(server, f"{name}/resume").status_code == 200, name


def test_a_key_stays_below_its_highest_class(calls: Calls) -> None:
    """Guards `max_priority` of a key against a detour."""
    server = calls.serve(keys=keyed(), policy=Policy.PRIORITY)
    stream = calls.begin(server, KEYS[0])
    error = check_error(stream.post("priority", "critical"), 400, "priority")
    assert "high at most" in error["message"]
