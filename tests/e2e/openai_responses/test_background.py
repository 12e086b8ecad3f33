"""Background responses over a socket: polled, streamed and resumed by number, cancelled, bounded,
and taken up again by the next server after `kill -9`."""

import contextlib
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from jitney.backends.fake.script import read_script
from jitney.config import ServeSettings
from jitney.server.openai_responses import limits
from tests.e2e.batches.batch_client import FIRST, KEYS, OTHER, SLOW
from tests.e2e.batches.batch_process import START_S, ServerProcess, server_process
from tests.e2e.openai_responses.response_client import (
    PATH,
    TOOL,
    ask,
    check_numbers,
    deltas_of,
    events_of,
    read_events,
    replayed,
    text_of,
    timeless,
)
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import (
    MODEL,
    WAIT_S,
    Running,
    World,
    check_error,
    running,
    wait_until,
)
from tests.e2e.server.pace import SLOW_PROGRAM
from tests.e2e.server.processes import backend_of

ENDED = ("completed", "incomplete", "failed", "cancelled")
ANSWERS = 4
TOKENS = 1000
KILLS = 2
LONG = {"max_output_tokens": 3000, "ignore_eos": True}


def ended(server: Running, response_id: str) -> dict[str, Any]:
    """The response, once it has ended."""
    seen: list[dict[str, Any]] = []

    def is_over() -> bool:
        seen[:] = [server.get(f"{PATH}/{response_id}").json()]
        return seen[0]["status"] in ENDED

    wait_until(is_over, "the response did not end")
    return seen[0]


def test_it_answers_at_once_and_ends_by_itself(server: Running) -> None:
    """Guards polling: queued first, and in the end what a caller who waits gets."""
    queued = ask(server, background=True)
    assert queued.json()["status"] == "queued"
    assert queued.json()["background"] is True
    done = ended(server, queued.json()["id"])
    plain = ask(server).json()
    assert timeless(done) == timeless(plain)
    assert text_of(done) == text_of(plain)
    assert done["usage"]["output_tokens"] == plain["usage"]["output_tokens"]


def test_its_stream_is_what_is_stored(server: Running) -> None:
    """Guards streams of background responses: the first one and every later one are the same."""
    events = events_of(ask(server, background=True, stream=True, max_output_tokens=40).text)
    check_numbers(events)
    kinds = [each["type"] for each in events[:3]]
    assert kinds == ["response.created", "response.queued", "response.in_progress"]
    response = events[-1]["response"]
    assert replayed(server, response["id"]) == events
    assert server.get(f"{PATH}/{response['id']}").json() == response
    assert deltas_of(events) == text_of(response)


def test_a_call_of_a_tool_is_made_without_a_caller(server: Running) -> None:
    """Guards agents in the background: calls come apart as they do for a caller."""
    asked: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "max_output_tokens": 200}
    done = ended(server, ask(server, background=True, **asked).json()["id"])
    assert done["status"] == "completed"
    assert done["output"][0]["name"] == "look"
    assert done["output"][0]["arguments"] == ask(server, **asked).json()["output"][0]["arguments"]


def test_a_stream_is_resumed_by_number_while_it_runs(start: Start, tmp_path: Path) -> None:
    """Guards callers whose connection breaks: each event once, and none lost."""
    server = start(World(jobs_dir=tmp_path / "jobs", backend=SLOW))
    asked = {"background": True, "stream": True, "max_output_tokens": 200, "ignore_eos": True}
    body = {"model": MODEL, "input": "hi", "seed": 5, **asked}
    seen: list[dict[str, Any]] = []
    with server.client() as client, client.stream("POST", PATH, json=body) as reply:
        for event in _events(reply):
            seen.append(event)
            if len(seen) == 20:
                break
    response_id = seen[0]["response"]["id"]
    while seen[-1]["type"] != "response.incomplete":
        path = f"{PATH}/{response_id}?stream=true&starting_after={seen[-1]['sequence_number']}"
        with server.client() as client, client.stream("GET", path) as reply:
            for at, event in enumerate(_events(reply)):
                seen.append(event)
                if at == 30:
                    break
    check_numbers(seen)
    assert seen == replayed(server, response_id)


def _events(reply: httpx.Response) -> Iterator[dict[str, Any]]:
    """Events of a stream as they come, until it breaks off or has ended."""
    rest = ""
    with contextlib.suppress(httpx.TransportError):
        for part in reply.iter_raw():
            # Event by event: half a character never stands at the end of a block.
            *blocks, rest = (rest + part.decode("latin-1")).split("\n\n")
            for block in blocks:
                if block != "data: [DONE]":
                    yield from read_events([block.encode("latin-1").decode()])


def test_a_cancel_ends_it_and_frees_its_place(start: Start, tmp_path: Path) -> None:
    """Guards `cancel`: nothing more is made, what was made stays, and a second one changes
    nothing."""
    server = start(World(jobs_dir=tmp_path / "jobs", backend=SLOW))
    response_id = ask(server, background=True, **LONG).json()["id"]
    path = f"{PATH}/{response_id}"
    wait_until(lambda: len(text_of(server.get(path).json())) > 20, "it made nothing")
    done = server.post(f"{path}/cancel", {}).json()
    assert done["status"] == "cancelled"
    server.check_idle()
    assert text_of(server.get(path).json()) == text_of(done)
    assert server.post(f"{path}/cancel", {}).json() == done
    last = replayed(server, response_id)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    check_error(server.post(f"{PATH}/{ask(server).json()['id']}/cancel", {}), 400)
    told = check_error(ask(server, previous_response_id=response_id), 400, "previous_response_id")
    assert "is cancelled" in told["message"]
    assert "wait" not in told["message"]


def test_one_that_is_deleted_makes_no_more(start: Start, tmp_path: Path) -> None:
    """Guards `DELETE`: its place is free, and nothing of it comes back."""
    server = start(World(jobs_dir=tmp_path / "jobs", backend=SLOW))
    response_id = ask(server, background=True, **LONG).json()["id"]
    with server.client() as client:
        assert client.delete(f"{PATH}/{response_id}").status_code == 200
    server.check_idle()
    check_error(server.get(f"{PATH}/{response_id}"), 404)


def test_whoever_reads_one_that_is_deleted_is_told(start: Start, tmp_path: Path) -> None:
    """Guards readers: a stream that breaks off would be read again, and the id is gone."""
    server = start(World(jobs_dir=tmp_path / "jobs", backend=SLOW))
    body = {"model": MODEL, "input": "hi", "background": True, "stream": True, **LONG}
    seen: list[dict[str, Any]] = []
    with server.client() as client, client.stream("POST", PATH, json=body) as reply:
        for event in _events(reply):
            if not seen:
                with server.client() as other:
                    other.delete(f"{PATH}/{event['response']['id']}")
            seen.append(event)
    check_numbers(seen)
    assert (seen[-1]["type"], seen[-1]["code"]) == ("error", "response_not_found")
    assert "was deleted" in seen[-1]["message"]


def test_more_than_may_live_are_refused(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 58: a key has so many that have not ended; the others run, and those after it can come
    again."""
    monkeypatch.setattr(limits, "LIVE_MAX", 3)
    server = start(World(jobs_dir=tmp_path / "jobs", backend=SLOW, sequences=2))
    ids = [ask(server, background=True, **LONG).json()["id"] for _ in range(3)]
    error = check_error(ask(server, background=True), 429)
    assert error["code"] == "too_many_responses"
    wait_until(lambda: server.stats.active_slots == 2, "they do not run")
    assert server.get(f"{PATH}/{ids[2]}").json()["status"] == "queued"
    told = server.get("/metrics").text
    still = ("responses_running 2.0", "responses_waiting 1.0", 'responses_limit{limit="live_max"}')
    assert [each for each in still if f"jitney:{each}" not in told] == []
    for each in ids:
        server.post(f"{PATH}/{each}/cancel", {})
    assert ask(server, background=True).status_code == 200


def test_what_is_wrong_is_refused_before_it_is_stored(server: Running) -> None:
    """Guards the store: a request that can never run is the caller's to know at once."""
    check_error(ask(server, "x" * 200_000, background=True), 400, "input")
    check_error(ask(server, background=True, deadline_ms=5), 400, "deadline_ms")
    check_error(ask(server, background=True, tool_choice="required"), 400, "tool_choice")


OF_ROW = {
    "task": ("'{'", "'[]'", "'{}'", "NULL", "x'ff'", "9"),
    "asked": ("'3'", "x'ff'"),
    "input": ("'{}'", "'[3]'"),
    "usage": ("'7'",),
    "error": ("'['",),
    "created_at": ("'soon'",),
    "completed_at": ("'soon'",),
}
OF_PIECE = {
    "number": ("9",),
    "deltas": ("'7'", "'[3]'"),
    "text": ("x'ff'",),
    "tokens": ("""'["x"]'""", "'[true]'", "'[999999]'", "'[-5]'", "'7'", "'{'"),
}


def test_rows_that_cannot_be_read_fail_alone(tmp_path: Path) -> None:
    """Row 57: at a start, whatever column is damaged, that response fails, and the others are
    answered."""
    folder = tmp_path / "jobs"
    damages = [
        f"UPDATE {table} SET {column} = {value} WHERE {key} = ?"
        for table, key, columns in (
            ("responses", "serial", OF_ROW),
            ("response_pieces", "response", OF_PIECE),
        )
        for column, values in columns.items()
        for value in values
    ]
    with server_process(folder, *SLOWLY) as server:
        ids = [begun(server, number) for number in range(len(damages) + 1)]
        server.kill()
    with sqlite3.connect(folder / "jobs.sqlite") as database:
        database.execute("UPDATE responses SET status = 'queued'")
        database.execute("DELETE FROM response_pieces")
        piece = "INSERT INTO response_pieces VALUES (?, 1, '[]', 'a', '[97]')"
        for serial, damage in enumerate(damages, 1):
            database.execute(piece, (serial,))
            database.execute(damage, (serial,))
    with server_process(folder) as server:
        wait_until(lambda: found(server, ids[-1])["status"] == "incomplete", "it was not answered")
        with sqlite3.connect(folder / "jobs.sqlite", timeout=30) as database:
            query = "SELECT serial FROM responses WHERE status != 'failed' ORDER BY serial"
            wait_until(
                lambda: database.execute(query).fetchall() == [(len(ids),)], "not all have failed"
            )
        for each in ids[:-1]:
            reply = httpx.get(f"{server.address}{PATH}/{each}", timeout=WAIT_S)
            code = (reply.json()["error"] or {}).get("code")
            assert code in ("server_error", "invalid_prompt", "response_damaged"), each
        assert not [each for each in server.log if "backend was lost" in each]


def test_one_with_more_tokens_than_fit_ends_with_its_text(tmp_path: Path) -> None:
    """Guards starts: a context may be shorter than it was, and every later server would end by the
    same response."""
    folder = tmp_path / "jobs"
    with server_process(folder, *SLOWLY, program=PACED) as server:
        # Those that wait behind others, so that nothing is made of them yet.
        *_, long, other = (begun(server, number) for number in range(6))
        server.kill()
    began(folder, long, "a" * 700, b"a" * 700)
    with server_process(folder, "--max-model-len", "512") as server:
        for each in (long, other):
            wait_until(lambda: found(server, each)["status"] in ENDED, "it did not end")  # noqa: B023, at once
        done, anew = found(server, long), found(server, other)
    assert (done["status"], text_of(done)) == ("incomplete", "a" * 700)
    assert done["usage"]["output_tokens"] == 700
    assert anew["status"] == "incomplete"
    assert anew["usage"]["output_tokens"] < 512


def began(folder: Path, response_id: str, text: str, made: bytes) -> None:
    """Have these tokens, which are bytes, stored as all that was made of a response."""
    with sqlite3.connect(folder / "jobs.sqlite") as database:
        query = "SELECT serial FROM responses WHERE id = ?"
        ((serial,),) = database.execute(query, (response_id,))
        database.execute("DELETE FROM response_pieces WHERE response = ?", (serial,))
        deltas = json.dumps([{"delta": {"content": text}}])
        piece = (serial, 1, deltas, text, json.dumps(list(made)))
        database.execute("INSERT INTO response_pieces VALUES (?, ?, ?, ?, ?)", piece)


def test_it_waits_while_its_key_or_its_model_is_not_served(tmp_path: Path) -> None:
    """Guards answers from strangers: neither another key nor another model of its name goes on with
    it, and when both are back it ends."""
    script, jobs = tmp_path / "script.jsonl", tmp_path / "jobs"
    script.write_text('{"text": "another model"}\n')
    world = World(jobs_dir=jobs, keys=KEYS, backend=SLOW)
    others = (
        replace(world, keys=KEYS[1:]),
        replace(world, settings=ServeSettings(served_model_name=("other",))),
        replace(world, backend=replace(SLOW, script=read_script(script))),
    )
    body = {"model": MODEL, "input": "hi", "background": True}
    mine, theirs = ({"authorization": f"Bearer {key}"} for key in (FIRST, OTHER))
    with running(world) as server:
        reply = server.post(PATH, {**body, "max_output_tokens": 100}, **mine).json()
    with sqlite3.connect(jobs / "jobs.sqlite") as database:
        database.execute("UPDATE responses SET status = 'queued'")
    for each in others:
        with running(each) as server:
            short = {**body, "model": server.service.model_name, "max_output_tokens": 4}
            done = server.post(PATH, short, **theirs).json()
            path = f"{PATH}/{done['id']}"
            wait_until(lambda: server.get(path, **theirs).json()["status"] in ENDED, "it waits")  # noqa: B023, at once
            with sqlite3.connect(jobs / "jobs.sqlite", timeout=30) as database:
                query = "SELECT status FROM responses WHERE id = ?"
                ((status,),) = database.execute(query, (reply["id"],))
            assert status == "queued", each
    with running(world) as server:
        path = f"{PATH}/{reply['id']}"
        wait_until(lambda: server.get(path, **mine).json()["status"] in ENDED, "it still waits")
        assert server.get(path, **mine).json()["usage"]["output_tokens"] == 100


def test_half_a_character_outlives_a_kill(tmp_path: Path) -> None:
    """Guards streams of any script: what came in two parts is one character, once."""
    script, folder = tmp_path / "script.jsonl", tmp_path / "jobs"
    text = "\u00e4\u4e2d\U0001f600" * 40
    script.write_text(json.dumps({"text": text}) + "\n")
    flags = ("--script", str(script))
    with server_process(folder, *SLOWLY, *flags, program=PACED) as server:
        *_, last = (begun(server, number) for number in range(6))
        server.kill()
    began(folder, last, text[:2], text[:3].encode()[:-2])
    with server_process(folder, *flags) as server:
        path = f"{server.address}{PATH}/{last}?stream=true"
        events = events_of(httpx.get(path, timeout=WAIT_S).text)
        check_numbers(events)
        assert deltas_of(events) == text_of(events[-1]["response"])
        assert deltas_of(events).startswith(text)


SLOWLY = ("--max-num-seqs", "2")
PACED = (sys.executable, "-c", SLOW_PROGRAM)


def begun(server: ServerProcess, number: int) -> str:
    body = {"model": MODEL, "input": f"answer {number}", "seed": number, "background": True}
    body |= {"max_output_tokens": TOKENS, "ignore_eos": True}
    reply = httpx.post(f"{server.address}{PATH}", json=body, timeout=WAIT_S)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


def found(server: ServerProcess, response_id: str) -> dict[str, Any]:
    reply = httpx.get(f"{server.address}{PATH}/{response_id}", timeout=WAIT_S)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


class Reader(threading.Thread):
    """Reads the events of one response over all servers, going on by number."""

    def __init__(self, response_id: str) -> None:
        super().__init__(daemon=True)
        self.response_id = response_id
        self.seen: list[dict[str, Any]] = []
        self.address = ""

    def run(self) -> None:
        deadline = time.monotonic() + 4 * START_S
        # One for all calls: each makes a context for TLS, which takes long.
        client = httpx.Client(timeout=WAIT_S)
        while time.monotonic() < deadline:
            after = self.seen[-1]["sequence_number"] if self.seen else -1
            path = f"{PATH}/{self.response_id}?stream=true&starting_after={after}"
            with (
                contextlib.suppress(httpx.TransportError),
                client.stream("GET", f"{self.address}{path}") as reply,
            ):
                self.seen += _events(reply)
            if self.seen and self.seen[-1]["type"] == "response.incomplete":
                break
            time.sleep(0.1)
        client.close()


def wait_progress(readers: list[Reader]) -> None:
    """Wait until some of them have read more, or all have read all."""
    before = sum(len(each.seen) for each in readers)
    wait_until(
        lambda: (
            sum(len(each.seen) for each in readers) > before + 2
            or not any(each.is_alive() for each in readers)
        ),
        "no events came",
        START_S,
    )


def cut_count(folder: Path, readers: list[Reader]) -> int:
    """How many answers were under way when servers and backends were killed."""
    count = 0
    for kill in range(KILLS):
        with server_process(folder, *SLOWLY) as server:
            if not readers:
                readers += [Reader(begun(server, number)) for number in range(ANSWERS)]
            for each in readers:
                each.address = server.address
                if kill == 0:
                    each.start()
            wait_progress(readers)
            if kill == 1:
                os.kill(backend_of(server.pid), signal.SIGKILL)
                wait_progress(readers)
            states = [found(server, each.response_id)["status"] for each in readers]
            count += sum(each not in ENDED for each in states)
            server.kill()
    return count


def test_answers_outlive_servers_and_backends_that_are_killed(tmp_path: Path) -> None:
    """Guards the promise: after `kill -9` of the server or its backend, each background answer goes
    on; streams go on by number, with no event twice and none lost; texts are those of a calm
    run."""
    folder = tmp_path / "jobs"
    readers: list[Reader] = []
    assert cut_count(folder, readers) > 0, "all had ended before the first kill"
    with server_process(folder) as server:
        for each in readers:
            each.address = server.address
        for number, each in enumerate(readers):
            each.join(START_S)
            check_numbers(each.seen)
            last = each.seen[-1]["response"]
            assert found(server, each.response_id) == last
            assert deltas_of(each.seen) == text_of(last)
            assert last["usage"]["output_tokens"] == TOKENS
            body = {"model": MODEL, "input": f"answer {number}", "seed": number, "store": False}
            body |= {"max_output_tokens": TOKENS, "ignore_eos": True}
            calm = httpx.post(f"{server.address}{PATH}", json=body, timeout=WAIT_S).json()
            assert text_of(last) == text_of(calm)
