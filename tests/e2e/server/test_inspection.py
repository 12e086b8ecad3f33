"""Statistics and slots as JSON: names, shape, who sees what, and an engine that is stuck."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

from jitney.config import Key, ServeSettings
from jitney.engine.stats import Stats
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import MODEL, WAIT_S, Running, World, check_error, wait_until
from tests.e2e.server.pace import SLOW, Gated

KEYS = {name: f"secret-of-{name}" for name in ("one", "two")}
ALWAYS = {"id", "id_task", "n_ctx", "speculative", "is_processing", "jitney"}
BUSY = ALWAYS | {
    "n_prompt_tokens", "n_prompt_tokens_processed", "n_prompt_tokens_cache", "params",
    "next_token",
}  # fmt: skip


def headers(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


@contextmanager
def asking(server: Running, **fields: Any) -> Iterator[None]:
    """A request that has begun to stream and goes on until the block is left."""
    sent = headers(fields.pop("name")) if "name" in fields else {}
    body = {"prompt": "hello", "max_tokens": 3000, "stream": True, **fields}
    with (
        server.client(headers=sent) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        yield


def test_metrics_may_be_switched_off(start: Start) -> None:
    """Guards ThemisDB's `enable_metrics: false`: there is no such path, and the rest is there."""
    settings = ServeSettings(served_model_name=(MODEL,), enable_metrics=False)
    server = start(World(settings=settings))
    assert "enable_metrics" in check_error(server.get("/metrics"), 404)["message"]
    assert server.get("/stats").status_code == 200


def test_every_statistic_is_told_under_its_name(server: Running) -> None:
    """Guards BatchStats and ContinuousBatchingStats over HTTP, and the rest of ours; and the whole
    way from usage in replies to totals in Prometheus' format."""
    usages = [server.complete(f"prompt {at}").json()["usage"] for at in range(3)]
    told = server.get("/stats").json()
    assert set(told) == {each.name for each in fields(Stats)}
    assert told["completed_requests"] == told["total_requests"] == 3
    metrics = server.get("/metrics").text
    for name in ("completion_tokens", "prompt_tokens"):
        assert told[name] == sum(each[name] for each in usages)
        assert f"\njitney:{name}_total {told[name]:.1f}\n" in metrics
    assert told["idle_slots"] == told["slot_count"] == 8
    shares = [told[f"{kind}_share"] for kind in ("prefill", "decode", "idle")]
    assert abs(sum(shares) - 1.0) < 1e-9
    assert told["counters"]["accepted"] == 3


def test_slots_have_llama_servers_shape_busy_or_idle(start: Start) -> None:
    """Guards tools made for llama-server: every slot is listed, and busy ones tell how far."""
    server = start(World(backend=SLOW, sequences=3))
    rows = slots(server)
    assert [set(row) for row in rows] == [ALWAYS] * 3
    assert {row["id_task"] for row in rows} == {-1}
    with asking(server, request_id="mine", max_tokens=2500), asking(server, max_tokens=2500):
        wait_until(lambda: len(processing(server)) == 2, "two should run")
        rows = server.get("/slots").json()
        assert [row["id"] for row in rows] == sorted({row["id"] for row in rows})
        assert len(rows) == 3
        busy = [row for row in rows if row["is_processing"]]
        assert [set(row) for row in busy] == [BUSY] * 2
        (mine,) = (row for row in busy if "mine" in row["id_task"])
        assert mine["params"] == {"n_predict": 2500, "max_tokens": 2500}
        (token,) = mine["next_token"]
        assert token["has_next_token"]
        assert token["n_decoded"] + token["n_remain"] == 2500
        assert mine["n_prompt_tokens_processed"] == mine["n_prompt_tokens"] > 0
        assert mine["n_ctx"] == 4096
        assert server.get("/slots?fail_on_no_slot=1").status_code == 200
        with asking(server):
            wait_until(lambda: len(processing(server)) == 3, "three should run")
            told = server.get("/slots?fail_on_no_slot=1")
            assert check_error(told, 503)["code"] == "no_slot"
    server.check_idle()
    wait_until(lambda: processing(server) == [], "nobody runs")
    assert "cached" in {row["jitney"]["state"] for row in server.get("/slots").json()}


def slots(server: Running) -> list[Any]:
    """All slots, once the engine has told of them; it may need a moment for that."""
    wait_until(lambda: server.get("/slots").status_code == 200, "the engine says nothing")
    rows: list[Any] = server.get("/slots").json()
    return rows


def processing(server: Running) -> list[Any]:
    return [row for row in slots(server) if row["is_processing"]]


def test_another_keys_slots_have_numbers_and_no_name(start: Start) -> None:
    """Guards tenants: neither id nor text of a request is told to whom it is not."""
    keys = tuple(Key(name=name, secret=secret) for name, secret in KEYS.items())
    server = start(World(backend=SLOW, keys=keys))
    for path in ("/slots", "/stats"):
        assert server.get(path).status_code == 401, path
    with ExitStack() as stack:
        for name in KEYS:
            body = {"prompt": f"secret words of {name}", "request_id": f"private-{name}"}
            stack.enter_context(asking(server, name=name, **body))
        for name, other in (("one", "two"), ("two", "one")):
            wait_until(partial(both_run, server, name), "both should run")
            rows = server.get("/slots", **headers(name)).json()
            busy = [row for row in rows if row["is_processing"]]
            assert [set(row) for row in busy] == [BUSY] * 2
            assert [row["id_task"] for row in busy].count(None) == 1
            told = json.dumps(rows) + server.get("/stats", **headers(name)).text
            assert f"private-{other}" not in told
            assert f"private-{name}" in told
            assert "secret words" not in told


def both_run(server: Running, name: str) -> bool:
    rows = server.get("/slots", **headers(name)).json()
    return [row["is_processing"] for row in rows].count(True) == 2


def test_a_stuck_engine_is_not_waited_for(start: Start) -> None:
    """Guards whoever polls: the wait for a look is bounded, and an old one says how old it is."""
    server = start(World(wrap=Gated))
    server.backend.may_run.clear()
    with one_that_waits(server):
        assert check_error(server.get("/slots"), 503)["code"] == "no_answer"
        assert server.get("/stats").json()["live_requests"] == 1, "statistics wait for nobody"
    assert len(slots(server)) == 8
    server.backend.may_run.clear()
    with one_that_waits(server):
        wait_until(lambda: seen_ms(server) > 500, "an old look was told as a new one")


@contextmanager
def one_that_waits(server: Running) -> Iterator[None]:
    """A call whose forward pass stands still until the block is left."""
    server.backend.waits.clear()
    with ThreadPoolExecutor() as pool:
        pool.submit(server.complete)
        try:
            assert server.backend.waits.wait(WAIT_S), "no pass was begun"
            yield
        finally:
            server.backend.may_run.set()


def seen_ms(server: Running) -> int:
    told = server.get("/slots")
    assert told.status_code == 200, told.text
    return int(told.headers["x-jitney-seen-ms"])
