"""Batches over HTTP, with OpenAI's own client: from an input to its results."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai import OpenAI

from jitney.config import Key
from jitney.core.scheduler_settings import Policy
from jitney.engine.clock import SystemClock
from jitney.server.batches.stages import Times
from tests.e2e.batches.batch_client import (
    CHAT,
    FIRST,
    SLOW,
    client_of,
    counts_of,
    create,
    custom_ids,
    ended,
    jsonl,
    line,
    refusal,
    results,
    submit,
    two_keys,
    upload,
)
from tests.e2e.server.harness import Running, World, check_error, running, wait_until
from tests.e2e.server.pace import Pace

LONG = 3000


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Running]:
    with running(World(backend=SLOW, sequences=4, jobs_dir=tmp_path / "jobs")) as made:
        yield made


@pytest.mark.parametrize("url", ["/v1/completions", CHAT])
def test_every_line_is_answered_in_order_as_a_live_call_would_be(
    client: OpenAI, server: Running, url: str
) -> None:
    """Guards the whole way: states, counts, usage, order, and the same text as a live call."""
    lines = [line(f"c{number}", url) for number in range(50)]
    batch = submit(client, lines, url)
    assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", url)
    done = ended(client, batch)
    assert done.status == "completed"
    assert counts_of(done) == (50, 50, 0)
    assert done.error_file_id is None
    assert done.errors is None
    moments = (done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at)
    assert list(moments) == sorted(each or 0 for each in moments)
    assert done.expires_at == done.created_at + 86_400
    rows = results(client, done.output_file_id)
    assert custom_ids(rows) == [each["custom_id"] for each in lines]
    assert len({each["id"] for each in rows}) == 50
    used = 0
    for asked, row in zip(lines, rows, strict=True):
        assert row["error"] is None
        assert row["response"]["status_code"] == 200
        live = server.post(url, asked["body"]).json()
        assert row["response"]["body"]["choices"] == live["choices"]
        used += row["response"]["body"]["usage"]["total_tokens"]
    assert done.usage is not None
    assert done.usage.total_tokens == used
    server.check_idle()


def test_batches_are_listed_newest_first_in_pages(client: OpenAI) -> None:
    """Guards `after` and `limit`: every batch once, whatever the size of a page."""
    made = [submit(client, [line("a")]).id for _ in range(5)]
    assert [each.id for each in client.batches.list(limit=2)] == made[::-1]
    first = client.batches.list(limit=3)
    assert (len(first.data), first.has_more) == (3, True)
    with pytest.raises(openai.NotFoundError):
        client.batches.list(after="batch_nowhere")


def test_metadata_is_kept_and_other_fields_are_refused_by_name(
    client: OpenAI, server: Running
) -> None:
    """Guards the promise about fields: none is accepted and ignored."""
    file = upload(client, jsonl([line("a")]))
    body = {
        "input_file_id": file.id,
        "endpoint": "/v1/completions",
        "completion_window": "24h",
        "metadata": {"for": "tests"},
    }
    assert server.post("/v1/batches", body).json()["metadata"] == {"for": "tests"}
    for name, value, code in (
        ("output_expires_after", {"anchor": "created_at", "seconds": 9}, "unsupported_parameter"),
        ("priority", "high", "unknown_parameter"),
        ("endpoint", "/v1/embeddings", "invalid_value"),
        ("completion_window", "1h", "invalid_value"),
        ("input_file_id", 5, "invalid_type"),
    ):
        error = check_error(server.post("/v1/batches", body | {name: value}), 400, name)
        assert error["code"] == code
    check_error(server.post("/v1/batches", {}), 400)
    for name in ("file-x", "../jobs.sqlite"):
        error = check_error(server.post("/v1/batches", body | {"input_file_id": name}), 404)
        assert error["code"] == "file_not_found"


def test_one_idempotency_key_is_one_batch(client: OpenAI) -> None:
    """Guards a caller who sends again because an answer was lost: the same content is one job."""
    keyed = {"Idempotency-Key": "once"}
    # The file is sent again, too.
    files = [upload(client, jsonl([line("a")])) for _ in range(2)]
    made = [create(client, file.id, **keyed) for file in files]
    assert made[0].id == made[1].id
    other = upload(client, jsonl([line("b")]))
    with refusal(400, "idempotency_key_reused"):
        create(client, other.id, **keyed)
    assert submit(client, [line("a")]).id != made[0].id
    assert len(client.batches.list().data) == 2


def test_another_key_finds_neither_files_nor_batches(tmp_path: Path) -> None:
    """Guards tenants against each other: what belongs to another key is not there."""
    with two_keys(tmp_path / "jobs") as (_, first, other):
        batch = ended(first, submit(first, [line("a")]))
        assert batch.output_file_id is not None
        for file_id in (batch.input_file_id, batch.output_file_id):
            for asked in (other.files.retrieve, other.files.content, other.files.delete):
                with pytest.raises(openai.NotFoundError):
                    asked(file_id)
        for asked_batch in (other.batches.retrieve, other.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                asked_batch(batch.id)
        with pytest.raises(openai.NotFoundError):
            create(other, batch.input_file_id)
        assert list(other.files.list()) == []
        assert list(other.batches.list()) == []
        assert results(first, batch.output_file_id)


def test_lines_do_not_count_against_the_rate_of_their_key(tmp_path: Path) -> None:
    """Guards live calls of the key: 100 lines leave its 30 requests a minute to them."""
    key = Key(name="first", secret=FIRST, requests_per_minute=30, tokens_per_minute=600)
    with (
        running(World(jobs_dir=tmp_path / "jobs", keys=(key,))) as server,
        client_of(server, FIRST) as client,
    ):
        done = ended(client, submit(client, [line(f"c{each}") for each in range(100)]))
        assert counts_of(done) == (100, 100, 0)
        reply = client.completions.create(model="fake", prompt="a", max_tokens=2)
        assert reply.choices


@pytest.mark.parametrize("policy", list(Policy))
def test_live_calls_are_answered_while_a_batch_runs(tmp_path: Path, policy: Policy) -> None:
    """Guards whoever waits in person: a batch fills every slot, and gives one back for them."""
    pace = Pace()
    world = World(wrap=pace.wrap, sequences=4, policy=policy, jobs_dir=tmp_path / "jobs")
    with running(world) as server, client_of(server) as client:
        engine = server.service.engine
        batch = submit(client, [line(f"c{each}", max_tokens=200) for each in range(16)])
        wait_until(lambda: engine.snapshot().background_running == 4, "lines leave slots idle")
        assert server.get("/slots?fail_on_no_slot=1").status_code == 200
        assert server.complete("a", max_tokens=3).status_code == 200
        assert engine.snapshot().counters["displaced"] >= 1
        assert engine.stats().live_requests <= 4
        assert client.batches.retrieve(batch.id).status == "in_progress"
        pace.may_hurry.set()
        assert counts_of(ended(client, batch)) == (16, 16, 0)
        text = server.get("/metrics").text
        assert "jitney:first_token_seconds_count 1.0" in text, "that of the live call"
        assert 'jitney:requests_ended_total{reason="length"} 17.0' in text


def test_a_cancel_keeps_what_is_done(slow: Running) -> None:
    """Guards who changes their mind: results so far are theirs, and the rest is told."""
    with client_of(slow) as client:
        lines = [line(f"c{each}", max_tokens=1 if each < 5 else LONG) for each in range(40)]
        batch = submit(client, lines)
        wait_until(lambda: completed(client, batch.id) == 5, "the short lines were not done")
        assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        done = ended(client, batch)
        assert done.status == "cancelled"
        assert done.cancelled_at is not None
        kept = results(client, done.output_file_id)
        unrun = results(client, done.error_file_id)
        assert custom_ids(kept) == [f"c{each}" for each in range(5)]
        assert custom_ids(kept + unrun) == [each["custom_id"] for each in lines]
        assert {each["error"]["code"] for each in unrun} == {"batch_cancelled"}
        assert client.batches.cancel(batch.id).status == "cancelled"
        finished = ended(client, submit(client, [line("a")]))
        with refusal(400, "batch_ended"):
            client.batches.cancel(finished.id)
    slow.check_idle()


def completed(client: OpenAI, batch_id: str) -> int:
    return counts_of(client.batches.retrieve(batch_id))[1]


class LateClock(SystemClock):
    """The machine's clock, and what the test adds to it."""

    late_s = 0.0

    def now(self) -> float:
        return super().now() + self.late_s


def test_what_is_not_done_in_time_is_told(tmp_path: Path) -> None:
    """Guards the window: a batch ends after a day, with what is done, and reasons for the rest."""
    clock = LateClock()
    now = 1_700_000_000
    world = World(
        backend=SLOW, sequences=4, jobs_dir=tmp_path / "jobs", jobs_times=Times(clock, lambda: now)
    )
    with running(world) as server, client_of(server) as client:
        lines = [line(f"c{each}", max_tokens=1 if each < 3 else LONG) for each in range(20)]
        batch = submit(client, lines)
        wait_until(lambda: completed(client, batch.id) == 3, "the short lines were not done")
        clock.late_s = 86_400.0
        done = ended(client, batch)
        assert (done.status, done.expired_at) == ("expired", now)
        assert custom_ids(results(client, done.output_file_id)) == ["c0", "c1", "c2"]
        unrun = results(client, done.error_file_id)
        assert custom_ids(unrun) == [f"c{each}" for each in range(3, 20)]
        assert {each["error"]["code"] for each in unrun} == {"batch_expired"}
        server.check_idle()


def test_the_metrics_count_lines_and_batches(client: OpenAI, server: Running) -> None:
    """Guards operators: what is done and what waits is told, with every bound."""
    ended(client, submit(client, [line("a"), line("b"), line("c", max_tokens=-7)]))

    figures = (
        'jitney:jobs_batches{status="completed"} 1.0',
        'jitney:jobs_lines_total{result="done"} 2.0',
        'jitney:jobs_lines_total{result="failed"} 1.0',
        "jitney:jobs_lines_pending 0.0",
        'jitney:jobs_limit{limit="lines_max"}',
    )

    def are_shown() -> bool:
        text = server.get("/metrics").text
        return all(each in text for each in figures)

    wait_until(are_shown, "the metrics do not have them")
    assert server.get("/metrics").status_code == 200


def test_a_server_that_gets_no_file_leaves_nothing_on_the_disk(
    server: Running, tmp_path: Path
) -> None:
    """Guards whoever never asks for it: no folder, and empty lists."""
    assert server.get("/v1/files").json()["data"] == []
    assert server.get("/v1/batches").json()["data"] == []
    check_error(server.get("/v1/files/x"), 404)
    check_error(server.post("/v1/batches/x/cancel", {}), 404)
    assert not (tmp_path / "jobs").exists()
