"""Stored responses over a socket: read again, continued, listed, deleted; whose they are, and how
many and how long they are kept."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from jitney.backends.fake.backend import FakeSettings
from jitney.backends.fake.script import read_script
from jitney.config import ServeSettings
from jitney.server.batches.database import DiskError
from jitney.server.openai_responses import limits
from jitney.server.openai_responses.response_table import ResponseTable
from tests.e2e.batches.batch_client import FIRST, KEYS, OTHER
from tests.e2e.openai_responses.response_client import (
    PATH,
    TOOL,
    ask,
    check_numbers,
    events_of,
    replayed,
    text_of,
)
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import MODEL, Running, World, check_error, wait_until


def find(server: Running, response_id: str, **headers: str) -> Any:
    return server.get(f"{PATH}/{response_id}", **headers)


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_there_as_it_was_told(server: Running, stream: bool) -> None:
    """Guards whoever asks again: object, items and events are the same, by their numbers."""
    reply = ask(server, stream=stream, metadata={"a": "b"}, tools=[TOOL])
    told = events_of(reply.text)[-1]["response"] if stream else reply.json()
    assert told["store"] is True
    assert find(server, told["id"]).json() == told
    if stream:
        assert replayed(server, told["id"]) == events_of(reply.text)


def test_events_can_be_read_from_any_number_on(server: Running) -> None:
    """Guards resumed streams: each event once, none lost, and nothing behind the last."""
    response_id = ask(server).json()["id"]
    whole = replayed(server, response_id)
    check_numbers(whole)
    for after in range(len(whole)):
        assert replayed(server, response_id, after) == whole[after + 1 :]
    assert replayed(server, response_id, 2**53) == []


def test_a_conversation_goes_on_behind_a_stored_response(server: Running) -> None:
    """Guards `previous_response_id`: the prompt is that of the whole conversation."""
    first = ask(server, "one").json()
    second = ask(server, "two", previous_response_id=first["id"]).json()
    third = ask(server, "three", previous_response_id=second["id"]).json()
    items: list[dict[str, Any]] = [{"role": "user", "content": "one"}, *first["output"]]
    items += [{"role": "user", "content": "two"}, *second["output"]]
    items += [{"role": "user", "content": "three"}]
    plain = ask(server, items).json()
    assert third["usage"]["input_tokens"] == plain["usage"]["input_tokens"]
    assert text_of(third) == text_of(plain)
    assert third["previous_response_id"] == second["id"]


def test_a_tool_loop_goes_on_behind_a_stored_response(server: Running) -> None:
    """Guards agents that send outputs alone."""
    asked = {"tools": [TOOL], "tool_choice": "required", "max_output_tokens": 200}
    first = ask(server, **asked).json()
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"]}
    second = ask(server, [{**output, "output": "a tree"}], previous_response_id=first["id"])
    assert second.status_code == 200, second.text


def test_an_item_of_a_stored_answer_is_named_by_its_id(server: Running) -> None:
    """Guards clients that send `item_reference` for what they know to be stored: the prompt is that
    of the item, and the item is stored again."""
    one, two = ({"role": "user", "content": each} for each in ("one", "two"))
    (item,) = ask(server, [one]).json()["output"]
    plain = ask(server, [one, item, two]).json()
    for reference in ({"type": "item_reference", "id": item["id"]}, {"id": item["id"]}):
        told = ask(server, [one, reference, two]).json()
        assert text_of(told) == text_of(plain)
        assert told["usage"]["input_tokens"] == plain["usage"]["input_tokens"]
        listed = server.get(f"{PATH}/{told['id']}/input_items?order=asc").json()["data"]
        assert listed[1] == item
    for unknown in ("msg_0", item["id"] + "0", "x", listed[0]["id"]):
        reply = ask(server, [one, {"type": "item_reference", "id": unknown}])
        told = check_error(reply, 404, "input[1]")
        assert told["code"] == "response_not_found"
    again = [{"type": "item_reference", "id": item["id"]}] * 2
    assert ask(server, [one, *again, two], store=False).status_code == 200


def test_input_items_are_listed_in_pages(server: Running) -> None:
    """Guards `input_items`: each has an id, newest first, and a page is bounded."""
    given = [{"role": "user", "content": f"{number}"} for number in range(5)]
    response_id = ask(server, given).json()["id"]
    path = f"{PATH}/{response_id}/input_items"
    page = server.get(f"{path}?limit=2").json()
    assert [each["content"][0]["text"] for each in page["data"]] == ["4", "3"]
    assert page["has_more"]
    rest = server.get(f"{path}?after={page['last_id']}&limit=100").json()
    assert [each["content"][0]["text"] for each in rest["data"]] == ["2", "1", "0"]
    assert not rest["has_more"]
    assert server.get(f"{path}?order=asc&limit=1").json()["data"][0]["content"][0]["text"] == "0"
    check_error(server.get(f"{path}?after=msg_0"), 400, "after")
    check_error(server.get(f"{path}?limit=101"), 400, "limit")


def test_a_deleted_response_is_gone(server: Running) -> None:
    """Guards privacy: what was deleted is not read, not listed, and nothing goes on behind it."""
    response_id = ask(server).json()["id"]
    behind = ask(server, previous_response_id=response_id).json()["id"]
    with server.client() as client:
        assert client.delete(f"{PATH}/{response_id}").json() == {
            "id": response_id,
            "object": "response",
            "deleted": True,
        }
        check_error(client.delete(f"{PATH}/{response_id}"), 404)
    check_error(find(server, response_id), 404)
    check_error(server.get(f"{PATH}/{response_id}/input_items"), 404)
    check_error(server.get(f"{PATH}/{response_id}?stream=true"), 404)
    for previous in (response_id, behind):
        check_error(ask(server, previous_response_id=previous), 404, "previous_response_id")


def test_a_response_that_is_not_stored_is_not_there(server: Running) -> None:
    """Guards `store: false`: nothing of it is on the disk."""
    told = ask(server, "a-very-secret-word", store=False).json()
    assert told["store"] is False
    check_error(find(server, told["id"]), 404)
    assert server.batches is not None
    folder = server.batches.thread.folder
    assert not [each for each in folder.glob("jobs.sqlite*") if b"very-secret" in each.read_bytes()]


def test_a_response_belongs_to_its_key(start: Start, tmp_path: Path) -> None:
    """Row 55: for another key it is not there, whatever is asked of it."""
    server = start(World(jobs_dir=tmp_path / "jobs", keys=KEYS))
    mine, others = ({"authorization": f"Bearer {key}"} for key in (FIRST, OTHER))
    body = {"model": MODEL, "input": "hi", "max_output_tokens": 4}
    response = server.post(PATH, body, **mine).json()
    response_id, (item,) = response["id"], response["output"]
    with server.client(headers=others) as client:
        for path in ("", "/input_items", "?stream=true"):
            check_error(client.get(f"{PATH}/{response_id}{path}"), 404)
        check_error(client.delete(f"{PATH}/{response_id}"), 404)
        check_error(client.post(f"{PATH}/{response_id}/cancel"), 404)
        check_error(client.post(PATH, json={**body, "previous_response_id": response_id}), 404)
        named = {**body, "input": [{"type": "item_reference", "id": item["id"]}]}
        check_error(client.post(PATH, json=named), 404)
    assert find(server, response_id, **mine).status_code == 200


def test_without_a_folder_nothing_is_kept(start: Start) -> None:
    """Guards `--jobs-dir none`: answers come, and what needs a folder is named or refused."""
    server = start(World())
    plain = ask(server)
    assert plain.json()["store"] is False
    assert "x-jitney-ignored" not in plain.headers
    asked = ask(server, store=True)
    assert asked.json()["store"] is False
    assert asked.headers["x-jitney-ignored"] == "store"
    check_error(ask(server, background=True), 400, "background")
    check_error(ask(server, previous_response_id="resp_0"), 400, "previous_response_id")
    check_error(ask(server, [{"type": "item_reference", "id": "msg_0"}]), 400, "input")
    check_error(find(server, plain.json()["id"]), 404)
    strict = start(World(settings=ServeSettings(served_model_name=(MODEL,), strict=True)))
    check_error(ask(strict, store=True), 400, "store")


def test_a_folder_that_cannot_be_used_is_named_to_all(start: Start, tmp_path: Path) -> None:
    """Guards callers of Responses, who know of no files and batches."""
    (tmp_path / "jobs").touch()
    server = start(World(jobs_dir=tmp_path / "jobs" / "inside"))
    for reply in (ask(server, background=True), ask(server, store=True)):
        assert "folder of jobs cannot be used" in check_error(reply, 503)["message"]
    assert ask(server).json()["store"] is False


def test_the_oldest_are_forgotten_where_there_are_too_many(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 56: a key keeps so many, and so many bytes; the oldest make room."""
    server = start(World(jobs_dir=tmp_path / "jobs"))
    monkeypatch.setattr(limits, "KEPT_MAX", 3)
    kept = [ask(server).json()["id"] for _ in range(5)]
    assert [find(server, each).status_code for each in kept] == [404, 404, 200, 200, 200]
    monkeypatch.setattr(limits, "KEPT_BYTES_MAX", 1)
    last = ask(server).json()["id"]
    assert [find(server, each).status_code for each in (*kept, last)] == [404] * 5 + [200]


def changed(server: Running, query: str, *values: object) -> None:
    """Change the store behind the server's back."""
    assert server.batches is not None
    with sqlite3.connect(server.batches.thread.folder / "jobs.sqlite", timeout=30) as database:
        database.execute(query, values)


def test_a_response_expires(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the disk and privacy: after thirty days it goes, with all its pieces."""
    monkeypatch.setattr(limits, "SWEEP_S", 0.05)
    server = start(World(jobs_dir=tmp_path / "jobs"))
    old, young = (ask(server).json()["id"] for _ in range(2))
    age = limits.EXPIRY_S + 10
    changed(server, "UPDATE responses SET created_at = created_at - ? WHERE id = ?", age, old)
    wait_until(lambda: find(server, old).status_code == 404, "it did not expire")
    assert find(server, young).status_code == 200
    with sqlite3.connect(tmp_path / "jobs" / "jobs.sqlite", timeout=30) as database:
        query = "SELECT count(DISTINCT response) FROM response_pieces"
        assert database.execute(query).fetchone() == (1,)


def test_a_stream_that_fails_is_not_stored_and_says_so(start: Start, tmp_path: Path) -> None:
    """Guards honesty: what ended with an error cannot be read again."""
    script = tmp_path / "script.jsonl"
    script.write_text('{"text": "1234567890 is what the schema forbids"}')
    settings = FakeSettings(kv_tokens=65_536, script=read_script(script))
    server = start(World(jobs_dir=tmp_path / "jobs", backend=settings))
    wanted = {"type": "json_schema", "name": "number", "schema": {"type": "integer"}}
    reply = ask(server, stream=True, max_output_tokens=64, text={"format": wanted})
    last = events_of(reply.text)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["store"] is False
    check_error(find(server, last["response"]["id"]), 404)


@pytest.mark.parametrize(
    "query",
    [
        "UPDATE responses SET asked = '{' WHERE id = ?",
        "UPDATE responses SET asked = '3' WHERE id = ?",
        "UPDATE responses SET input = x'ff' WHERE id = ?",
        "UPDATE response_pieces SET deltas = '[3]' WHERE response = "
        "(SELECT serial FROM responses WHERE id = ?)",
        "UPDATE response_pieces SET deltas = '3' WHERE response = "
        "(SELECT serial FROM responses WHERE id = ?)",
        "UPDATE response_pieces SET number = 7 WHERE response = "
        "(SELECT serial FROM responses WHERE id = ?)",
    ],
)
def test_a_damaged_row_harms_no_other(server: Running, query: str) -> None:
    """Row 57: what cannot be read is told, nobody goes on behind it, and it can be deleted."""
    broken, whole = (ask(server).json()["id"] for _ in range(2))
    changed(server, query, broken)
    assert check_error(find(server, broken), 500)["code"] == "response_damaged"
    check_error(ask(server, previous_response_id=broken), 500)
    streamed = server.get(f"{PATH}/{broken}?stream=true")
    assert "cannot be read any more" in streamed.text
    assert find(server, whole).status_code == 200
    with server.client() as client:
        assert client.delete(f"{PATH}/{broken}").status_code == 200


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("starting_after=x", "starting_after"),
        ("starting_after=-9", "starting_after"),
        ("include_obfuscation=true", "include_obfuscation"),
        ("include[]=nonsense", "include[0]"),
    ],
)
def test_a_number_that_is_none_is_refused(server: Running, query: str, param: str) -> None:
    """Guards resumed streams: a mistake is no beginning, and no field is ignored in silence."""
    response_id = ask(server).json()["id"]
    check_error(server.get(f"{PATH}/{response_id}?stream=true&{query}"), 400, param)


@pytest.mark.parametrize("path", ["", "/input_items"])
def test_what_a_reader_asks_in_vain_is_named(server: Running, start: Start, path: str) -> None:
    """Guards `include`, which OpenAI's client writes with brackets: as in a body, its names are
    known, and those that add nothing are in the header."""
    path = f"{PATH}/{ask(server).json()['id']}{path}"
    names = "include[]=reasoning.encrypted_content&include=message.output_text.logprobs"
    reply = server.get(f"{path}?{names}")
    assert reply.status_code == 200
    assert reply.headers["x-jitney-ignored"] == "include.reasoning.encrypted_content"
    check_error(server.get(f"{path}?include=nonsense"), 400, "include[0]")
    strict = start(World(settings=ServeSettings(served_model_name=(MODEL,), strict=True)))
    check_error(strict.get(f"{path}?{names}"), 400, "include[0]")


def test_an_answer_that_could_not_be_kept_says_so(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards honesty: where the disk fails at the end, the answer comes, with `store` false."""
    server = start(World(jobs_dir=tmp_path / "jobs"))

    def fail(*values: object) -> None:
        raise DiskError("the disk is full", is_full=True)

    monkeypatch.setattr(ResponseTable, "add", fail)
    assert ask(server).json()["store"] is False
    assert events_of(ask(server, stream=True).text)[-1]["response"]["store"] is False
    check_error(ask(server, background=True), 507)
