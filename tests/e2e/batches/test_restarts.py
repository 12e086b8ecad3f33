"""Servers that are killed, stopped and started again in the middle of a batch: a recount is exact.

Real processes and SIGKILL. Each wait is for progress, and has a limit.
"""

import contextlib
import os
import resource
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from jitney.backends.fake.script import read_script
from jitney.config import ServeSettings
from jitney.server.batches.database import PENDING
from tests.e2e.batches.batch_client import (
    FIRST,
    KEYS,
    OTHER,
    SLOW,
    client_of,
    counts_of,
    ended,
    line,
    refusal,
    results,
    submit,
    upload,
)
from tests.e2e.batches.batch_process import START_S, ServerProcess, server_process
from tests.e2e.server.harness import MODEL, WAIT_S, World, running, wait_until
from tests.e2e.server.processes import backend_of

LINES = 120
TRIES = 5
"""What must happen in the middle of a batch is tried again where a busy machine came too late."""
WORK = [line(f"c{number}", max_tokens=150, ignore_eos=True) for number in range(LINES)]


def done_count(client: OpenAI, batch_id: str) -> int:
    return sum(counts_of(client.batches.retrieve(batch_id))[1:])


def wait_progress(client: OpenAI, batch_id: str, count: int) -> None:
    wait_until(
        lambda: (
            done_count(client, batch_id) >= count
            or client.batches.retrieve(batch_id).status == "completed"
        ),
        "no more lines are done",
        START_S,
    )


def check_recount(client: OpenAI, batch_id: str) -> None:
    """Every line once, in order, with the text that it has alone."""
    done = ended(client, client.batches.retrieve(batch_id))
    assert done.status == "completed"
    assert counts_of(done) == (LINES, LINES, 0)
    rows = results(client, done.output_file_id)
    assert [row["custom_id"] for row in rows] == [each["custom_id"] for each in WORK]
    assert done.error_file_id is None
    for asked, row in list(zip(WORK, rows, strict=True))[:: LINES // 3]:
        reply = httpx.post(
            f"{client.base_url}completions", json=asked["body"], timeout=WAIT_S
        ).json()
        assert row["response"]["body"]["choices"] == reply["choices"]


def check_put_off(*calls: Callable[[], object]) -> None:
    """Each is refused, and told when to come again."""
    for call in calls:
        with refusal(503, "jobs_unavailable") as refused:
            call()
        assert refused.value.response.headers["retry-after"] == "5"


def test_a_server_that_is_killed_or_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    """Guards a night's work: kills of the server and of its backend cost time and nothing else. And
    an ordinary restart: it does not wait for the batch, and leaves the rest for the next."""
    done = (done_before_last_end(tmp_path / str(attempt)) for attempt in range(TRIES))
    assert any(each < LINES for each in done), "all was done before the last server ended"


def done_before_last_end(folder: Path) -> int:
    """Lines of a batch that were done before a server was killed, and one that went on stopped."""
    with server_process(folder) as server, server.client() as client:
        batch_id = submit(client, WORK).id
        wait_progress(client, batch_id, 10)
        os.kill(backend_of(server.pid), signal.SIGKILL)
        wait_progress(client, batch_id, 20)
        seen = done_count(client, batch_id)
        server.kill()
    with server_process(folder) as server, server.client() as client:
        before = done_count(client, batch_id)
        # What was told to be done stays done.
        assert before >= seen
        wait_progress(client, batch_id, before + 10)
        os.kill(backend_of(server.pid), signal.SIGKILL)
        wait_progress(client, batch_id, before + 20)
        server.kill()
    with server_process(folder) as server, server.client() as client:
        before = done_count(client, batch_id)
        wait_progress(client, batch_id, before + 10)
        seen = done_count(client, batch_id)
        server.popen.terminate()
        assert server.popen.wait(START_S) == 0
    assert not [each for each in server.log if "Traceback" in each], server.log
    with server_process(folder) as server, server.client() as client:
        assert done_count(client, batch_id) >= seen
        check_recount(client, batch_id)
    return seen


def test_a_store_has_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards results: a second server on the same folder is told, and does not start. And whoever
    runs two models: where it is the usual folder, the other one serves without jobs."""
    folder = tmp_path / "jitney" / "jobs"
    with server_process(folder) as server, server.client() as client:
        upload(client, b"x")
        with (
            pytest.raises(AssertionError, match="Another process uses the jobs"),
            server_process(folder),
        ):
            pass
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        with server_process(folder) as second, second.client() as other:
            assert other.models.list().data
            with refusal(503, "jobs_unavailable") as refused:
                upload(other, b"x")
            assert "/" not in refused.value.message.split("Error code")[-1].replace("503 - ", "")
            # What the other server has is not denied, and waiting does not help.
            with refusal(503, "jobs_unavailable") as unknown:
                other.files.list()
            assert unknown.value.response.headers["x-should-retry"] == "false"
        assert any("Another process uses the jobs" in each for each in second.log)
        assert client.files.list().data


def test_a_store_that_cannot_be_opened_is_asked_for_until_it_can(tmp_path: Path) -> None:
    """Guards batches whose disk is late: nobody is told that they are gone, and they go on."""
    store, aside = tmp_path / "jobs" / "jobs.sqlite", tmp_path / "aside"
    with server_process(tmp_path / "jobs") as server, server.client() as client:
        batch_id = submit(client, WORK).id
        wait_progress(client, batch_id, 20)
        server.kill()
    store.rename(aside)
    store.symlink_to(tmp_path / "nowhere" / "jobs.sqlite")
    with server_process(tmp_path / "jobs") as server, server.client() as client:
        check_put_off(
            client.batches.list,
            client.files.list,
            lambda: client.batches.retrieve(batch_id),
            lambda: client.batches.cancel(batch_id),
        )
        aside.replace(store)
        wait_until(
            lambda: httpx.get(f"{client.base_url}batches", timeout=WAIT_S).status_code == 200,
            "the store is not opened",
        )
        check_recount(client, batch_id)


def test_a_folder_that_is_away_for_a_moment_fails_no_line(tmp_path: Path) -> None:
    """Guards a disk that is unmounted and mounted again: the batch pauses, and calls are told to
    come again."""
    files, away = tmp_path / "jobs" / "files", tmp_path / "away"
    with server_process(tmp_path / "jobs") as server, server.client() as client:
        for _ in range(TRIES):
            batch_id = submit(client, WORK).id
            wait_progress(client, batch_id, 20)
            files.rename(away)
            wait_until(
                lambda batch=batch_id: (  # type: ignore[misc]
                    any("pauses until its input" in each for each in server.log)
                    or client.batches.retrieve(batch).status in ("completed", "finalizing")
                ),
                "nothing is said of the folder",
            )
            # An empty one in its place must not be taken for it.
            files.mkdir()
            check_put_off(
                lambda: upload(client, b"x"),
                lambda: client.files.content(client.files.list().data[0].id),
                lambda: client.files.delete(client.files.list().data[0].id),
            )
            shutil.rmtree(files)
            away.rename(files)
            check_recount(client, batch_id)
            if any("pauses until its input" in each for each in server.log):
                break
        else:
            pytest.fail("each batch was done before the folder was away")
    assert not [each for each in server.log if "Traceback" in each], server.log


def test_a_program_that_holds_the_database_is_waited_for(tmp_path: Path) -> None:
    """Guards callers and batches against a backup tool: a call is told to come again."""
    with server_process(tmp_path / "jobs") as server, server.client() as client:
        batch_id = submit(client, WORK).id
        other = sqlite3.connect(tmp_path / "jobs" / "jobs.sqlite", isolation_level=None, timeout=60)
        other.execute("BEGIN IMMEDIATE")
        with refusal(503, "jobs_unavailable"):
            upload(client, b"x")
        other.execute("ROLLBACK")
        other.close()
        check_recount(client, batch_id)
    assert not [each for each in server.log if "Traceback" in each], server.log


def test_a_batch_waits_for_its_model_and_its_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards whom work is done for, and by what: neither changes with a restart."""
    world = World(jobs_dir=tmp_path / "jobs", keys=KEYS, backend=SLOW)
    with running(world) as server, client_of(server, FIRST) as client:
        batch_id = submit(client, WORK[:20]).id
        # Then its lines are in the store.
        wait_progress(client, batch_id, 1)
    another = ServeSettings(served_model_name=("other",))
    script = tmp_path / "script.jsonl"
    script.write_text('{"text": "another model"}\n')
    others = (
        replace(world, settings=another),
        replace(world, keys=KEYS[1:]),
        replace(world, backend=replace(SLOW, script=read_script(script))),
    )
    for strange in others:
        before = unanswered(tmp_path / "jobs")
        assert 0 < before < 20
        caplog.clear()
        with running(strange) as server, client_of(server, OTHER) as client:
            wait_until(lambda: "waits: its key" in caplog.text, "nothing is said")
            model = server.service.model_name
            assert client.completions.create(model=model, prompt="a").choices
        assert unanswered(tmp_path / "jobs") == before
    quick = replace(world, backend=World().backend)
    with running(quick) as server, client_of(server, FIRST) as client:
        done = ended(client, client.batches.retrieve(batch_id))
        assert (done.status, done.to_dict()["model"]) == ("completed", MODEL)


def unanswered(folder: Path) -> int:
    """Lines without a result, as the store of a server that is gone has them."""
    with contextlib.closing(sqlite3.connect(folder / "jobs.sqlite")) as store:
        (count,) = store.execute(f"SELECT count(*) FROM lines WHERE state = {PENDING}").fetchone()
    return int(count)


@contextlib.contextmanager
def full_disk(server: ServerProcess) -> Iterator[None]:
    """Within this context the server cannot write to any file."""
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.skipif(sys.platform != "linux", reason="needs the limits of Linux")
def test_a_full_disk_makes_the_batch_wait_and_nobody_else(tmp_path: Path) -> None:
    """Guards a server whose disk is full: files are refused in words, live calls are answered, and
    the batch goes on when there is room."""
    with server_process(tmp_path / "jobs") as server, server.client() as client:
        with full_disk_within_a_batch(server, client) as batch_id:
            for size in (10, 100_000, 3_000_000):
                with refusal(507, "disk_full"):
                    upload(client, b"x" * size)
            assert client.completions.create(model=MODEL, prompt="a").choices
            assert httpx.get(f"{server.address}/health", timeout=WAIT_S).status_code == 200
            assert client.batches.retrieve(batch_id).status == "in_progress"
        assert upload(client, b"x" * 100_000).bytes == 100_000
        check_recount(client, batch_id)
    assert not [each for each in server.log if "Traceback" in each], server.log


@contextlib.contextmanager
def full_disk_within_a_batch(server: ServerProcess, client: OpenAI) -> Iterator[str]:
    """Within this context the server cannot write, and a batch has paused for it.

    A batch that was done before the disk was full is tried again.
    """
    for _ in range(TRIES):
        batch_id = submit(client, WORK).id
        wait_progress(client, batch_id, 20)
        with full_disk(server):
            wait_until(
                lambda batch=batch_id: (  # type: ignore[misc]
                    any("pause until the disk" in each for each in server.log)
                    or client.batches.retrieve(batch).status == "completed"
                ),
                "the runner does not say that it pauses",
            )
            if client.batches.retrieve(batch_id).status != "completed":
                yield batch_id
                return
    pytest.fail("each batch was done before the disk was full")
