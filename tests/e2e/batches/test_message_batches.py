"""Batches of Anthropic's messages over HTTP: made, listed, read, cancelled and deleted."""

import json
import re
from pathlib import Path
from typing import Any

import httpx

from jitney.config import Key
from tests.e2e.batches.batch_client import BATCH_S, FIRST, KEYS, OTHER, SLOW
from tests.e2e.batches.batch_process import ServerProcess, server_process
from tests.e2e.server.harness import MODEL, WAIT_S, Running, World, check_error, running, wait_until

PATH = "/v1/messages/batches"
BETAS = {"anthropic-beta": "brand-new-2027-01-01"}
DONE = re.compile(r'^jitney:jobs_lines_total{result="done"} (\d+)', re.MULTILINE)


def asked(custom_id: str, **fields: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "temperature": 0}
    messages = [{"role": "user", "content": f"say {custom_id}"}]
    return {"custom_id": custom_id, "params": {**params, "messages": messages, **fields}}


def create(server: Running, *requests: Any, **headers: str) -> httpx.Response:
    return server.post(PATH, {"requests": list(requests)}, **headers)


def ended(server: Running, batch: Any, **headers: str) -> Any:
    """The batch, once it has ended."""
    seen: list[Any] = []

    def is_over() -> bool:
        seen[:] = [server.get(f"{PATH}/{batch['id']}", **headers).json()]
        return bool(seen[0]["processing_status"] == "ended")

    wait_until(is_over, "the batch did not end", BATCH_S)
    return seen[0]


def results(server: Running, batch: Any, **headers: str) -> dict[str, Any]:
    """The result of each request, by its id."""
    text = server.get(batch["results_url"], **headers).text
    rows = [json.loads(each) for each in text.splitlines()]
    assert len({each["custom_id"] for each in rows}) == len(rows)
    return {each["custom_id"]: each["result"] for each in rows}


def counts(**given: int) -> dict[str, int]:
    return dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0) | given


def error_of(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert body["type"] == "error"
    return f"{body['error']['type']}: {body['error']['message']}"


def test_each_request_has_one_result_in_anthropics_form(server: Running) -> None:
    """Guards the whole way: what a live call would be answered, and what is wrong with one
    request alone."""
    made = create(
        server,
        asked("good"),
        asked("cached", system=[{"type": "text", "text": "s", "cache_control": {}}]),
        asked("wrong", max_tokens=0),
        asked("stream", stream=True),
        asked("model", model="gpt-5"),
    ).json()
    assert made["type"] == "message_batch"
    assert made["request_counts"]["processing"] == 5 or made["processing_status"] == "ended"
    batch = ended(server, made)
    assert batch["request_counts"] == counts(succeeded=2, errored=3)
    assert server.get(f"/v1/batches/{batch['id']}").json()["metadata"] is None
    found = results(server, batch)
    live = server.post("/v1/messages", asked("good")["params"]).json()
    assert found["good"]["type"] == "succeeded"
    assert found["good"]["message"]["content"] == live["content"]
    assert found["cached"]["ignored"] == ["system.cache_control"]
    kinds = {name: found[name]["error"]["error"]["type"] for name in ("wrong", "stream", "model")}
    invalid = "invalid_request_error"
    assert kinds == {"wrong": invalid, "stream": invalid, "model": "not_found_error"}


def test_a_batch_of_betas_may_have_unknown_fields(server: Running) -> None:
    """Guards clients: the header of the call means for its requests what it means for live ones."""
    new = asked("a", brand_new=1, tools=[{"name": "f", "input_schema": {}, "brand_new": 1}])
    batch = ended(server, create(server, new, asked("b"), **BETAS).json())
    found = results(server, batch)
    assert found["a"]["ignored"] == ["unknown-fields"]
    assert "ignored" not in found["b"]
    assert batch["request_counts"] == counts(succeeded=2)
    plain = ended(server, create(server, new).json())
    assert plain["request_counts"] == counts(errored=1)


def test_lists_have_pages_and_batches_are_deleted_with_their_files(server: Running) -> None:
    """Guards pages in both directions, and the disk: nothing of a deleted batch stays."""
    made = [ended(server, create(server, asked(name)).json())["id"] for name in "abc"]
    newest = made[::-1]
    page = server.get(f"{PATH}?limit=2").json()
    assert ([each["id"] for each in page["data"]], page["has_more"]) == (newest[:2], True)
    page = server.get(f"{PATH}?after_id={newest[1]}").json()
    assert ([each["id"] for each in page["data"]], page["has_more"]) == (newest[2:], False)
    page = server.get(f"{PATH}?before_id={newest[2]}&limit=1").json()
    assert ([each["id"] for each in page["data"]], page["has_more"]) == ([newest[1]], True)
    for batch_id in made:
        with server.client() as client:
            gone = client.delete(f"{PATH}/{batch_id}").json()
        assert gone == {"id": batch_id, "type": "message_batch_deleted"}
        error_of(server.get(f"{PATH}/{batch_id}"), 404)
    assert server.get(PATH).json()["data"] == []
    assert server.get("/v1/files").json()["data"] == []


def test_results_whose_file_was_deleted_are_not_there(server: Running) -> None:
    """Guards clients that try again after a 503: what was deleted does not come back."""
    batch = ended(server, create(server, asked("a")).json())
    with server.client() as client:
        for file in client.get("/v1/files").json()["data"]:
            client.delete(f"/v1/files/{file['id']}")
    assert "was deleted" in error_of(server.get(batch["results_url"]), 404)


def test_without_a_folder_the_reason_is_told() -> None:
    """Guards `--jobs-dir none`: the path is right, and the server has no place for it."""
    with running(World()) as server:
        for path in (PATH, f"{PATH}/msgbatch_1"):
            assert "folder of jobs" in error_of(server.get(path), 404)
        for path in ("/v1/files", "/v1/batches"):
            assert "--jobs-dir" in check_error(server.get(path), 404)["message"]
        assert "--jobs-dir" not in check_error(server.get("/v1/filesystem"), 404)["message"]


def test_a_cancelled_batch_says_which_requests_were_not_answered(tmp_path: Path) -> None:
    """Guards the counts: done, wrong and cancelled are kept apart, and each has a result."""
    with running(World(jobs_dir=tmp_path / "jobs", backend=SLOW)) as server:
        requests = [asked("wrong", max_tokens=0), *(asked(str(at)) for at in range(400))]
        made = create(server, *requests).json()
        error_of(server.get(f"{PATH}/{made['id']}/results"), 400)
        with server.client() as client:
            assert "cancel it first" in error_of(client.delete(f"{PATH}/{made['id']}"), 400)
        store = server.batches
        assert store is not None
        wait_until(lambda: store.runner.failed_count > 0, "the wrong one has no result", BATCH_S)
        cancelled = server.post(f"{PATH}/{made['id']}/cancel", {}).json()
        assert cancelled["processing_status"] in ("canceling", "ended")
        batch = ended(server, made)
        assert batch["cancel_initiated_at"] is not None
        found = results(server, batch)
        kinds = [each["type"] for each in found.values()]
        assert len(found) == len(requests)
        assert found["wrong"]["type"] == "errored"
        assert kinds.count("canceled") > 0
        names = ("succeeded", "errored", "canceled")
        assert batch["request_counts"] == counts(**{name: kinds.count(name) for name in names})


def test_a_batch_is_its_keys_alone(tmp_path: Path) -> None:
    """Guards tenants: for another key it is not there."""
    assert isinstance(KEYS[0], Key)
    mine, other = {"x-api-key": FIRST}, {"x-api-key": OTHER}
    with running(World(jobs_dir=tmp_path / "jobs", keys=KEYS)) as server:
        made = create(server, asked("a"), **mine).json()
        batch = ended(server, made, **mine)
        path = f"{PATH}/{batch['id']}"
        for wrong in (path, f"{path}/results"):
            error_of(server.get(wrong, **other), 404)
        error_of(server.post(f"{path}/cancel", {}, **other), 404)
        assert server.get(PATH, **other).json()["data"] == []
        assert results(server, batch, **mine)["a"]["type"] == "succeeded"


def test_the_same_call_again_is_the_same_batch(server: Running) -> None:
    """Guards clients that send a call again: the key tells, and no file is left over."""
    first, again = (create(server, asked("a"), **{"idempotency-key": "k"}).json() for _ in range(2))
    assert first["id"] == again["id"]
    ended(server, first)
    assert create(server, asked("a"), **{"idempotency-key": "k"}).json()["id"] == first["id"]
    inputs = server.get("/v1/files?purpose=batch").json()["data"]
    assert len(inputs) == 1
    other = create(server, asked("b"), **{"idempotency-key": "k"})
    assert "another batch" in error_of(other, 400)
    assert len(server.get("/v1/files?purpose=batch").json()["data"]) == 1


def test_row_59_bad_bodies_of_batches_store_nothing(server: Running) -> None:
    """Guards the disk: what is refused leaves no file and no batch."""
    for requests in ([], [asked("a"), asked("a")], [{"custom_id": "a"}], "x", [asked("")]):
        assert "requests" in error_of(server.post(PATH, {"requests": requests}), 400)
    for path in ("batch_1", "msgbatch_1"):
        error_of(server.get(f"{PATH}/{path}"), 404)
    assert server.get("/v1/files").json()["data"] == []
    assert server.get(PATH).json()["data"] == []


def wait_results(server: ServerProcess, url: str) -> None:
    """Wait until this process has some results of its own, or the batch has ended."""

    def has_some() -> bool:
        found = DONE.search(httpx.get(f"{server.address}/metrics", timeout=WAIT_S).text)
        batch = httpx.get(f"{server.address}{url}", timeout=WAIT_S).json()
        has_ended = batch["processing_status"] == "ended"
        return has_ended or (found is not None and int(found[1]) >= 10)

    wait_until(has_some, "no requests are answered", BATCH_S)


def test_a_server_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """Guards the promise in this form too: killed twice, each request has one result, with the
    text that a live call has."""
    requests = [asked(f"r{at}", max_tokens=150, brand_new=1) for at in range(120)]
    folder = tmp_path / "jobs"
    with server_process(folder) as server:
        body = {"requests": requests}
        made = httpx.post(f"{server.address}{PATH}", json=body, headers=BETAS).json()
        url = f"{PATH}/{made['id']}"
        wait_results(server, url)
        server.kill()
    with server_process(folder) as server:
        wait_results(server, url)
        server.kill()
    with server_process(folder) as server:

        def batch() -> Any:
            return httpx.get(f"{server.address}{url}", timeout=WAIT_S).json()

        wait_until(lambda: batch()["processing_status"] == "ended", "it did not end", BATCH_S)
        assert batch()["request_counts"] == counts(succeeded=len(requests))
        text = httpx.get(f"{server.address}{url}/results", timeout=WAIT_S).text
        rows = [json.loads(each) for each in text.splitlines()]
        assert [each["custom_id"] for each in rows] == [each["custom_id"] for each in requests]
        for row, given in list(zip(rows, requests, strict=True))[::40]:
            url = f"{server.address}/v1/messages"
            live = httpx.post(url, json=given["params"], timeout=WAIT_S, headers=BETAS)
            assert row["result"]["message"]["content"] == live.json()["content"]
