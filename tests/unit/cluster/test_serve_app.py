"""Tests of the ingress of `jitney.cluster:app` that need no Ray to run: how it leaves."""

import asyncio
import json
from pathlib import Path

import pytest

from jitney.config import ServeSettings, Settings
from jitney.loading.compose import assemble
from jitney.server.batches.limits import WINDOW_S
from jitney.server.batches.rows import StoredLine
from jitney.server.batches.store import BatchStore
from jitney.server.service import now_s
from tests.unit.server.batches.runner_for_tests import run_until
from tests.unit.server.batches.store_for_tests import add_file, new_batch

serve_app = pytest.importorskip("jitney_cluster.serve_app", reason="Ray is not installed here")

LINES = 2000


def test_an_ingress_that_leaves_stops_its_jobs_before_their_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the lines that run: they are given up, and wait in the store for the next ingress."""
    assembly = assemble(Settings(backend="fake"))
    # One engine in the place of replicas: this test needs no Ray.
    monkeypatch.setattr(serve_app, "RayDispatch", lambda replicas, key: None)
    monkeypatch.setattr(serve_app, "own_host", lambda: "127.0.0.1")
    monkeypatch.setattr(serve_app, "ClusterAssembly", lambda *given: assembly)
    serial = _begun_batch(tmp_path, assembly.model_name)

    async def leave() -> None:
        serving = ServeSettings(jobs_dir=tmp_path)
        ingress = serve_app.RayIngress(None, Settings(backend="fake"), serving, 1)
        jobs = ingress._application.batches
        assert jobs is not None

        async def is_running() -> bool:
            return bool(jobs.runner.in_flight_count)

        await run_until(is_running)
        await ingress.__del__()
        assert jobs.runner.in_flight_count == 0
        # As Serve does: nobody calls it again.
        monkeypatch.delattr(serve_app.RayIngress, "__del__")

    asyncio.run(leave())
    store = BatchStore(tmp_path)
    pending, batch = store.batches.pending_lines(serial, 0, LINES), store.batches.get(serial)
    assert pending
    assert (batch.completed + len(pending), batch.failed) == (LINES, 0)
    store.close()


def _begun_batch(folder: Path, model: str) -> int:
    """A store with a batch whose lines take a while; its serial."""
    body = {"prompt": "a", "max_tokens": 200, "ignore_eos": True}
    asked = {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": body}
    text = json.dumps(asked).encode()
    store = BatchStore(folder)
    file = add_file(store, text)
    now = now_s()
    batch = store.batches.create(
        new_batch(file, model=model, created_at=now, expires_at=now + WINDOW_S)
    )
    lines = [
        StoredLine(number=number, start=0, length=len(text), custom_id=f"c{number}")
        for number in range(1, LINES + 1)
    ]
    store.batches.add_lines(batch, lines, len(text), LINES)
    assert store.batches.begin(batch.serial, now)
    store.close()
    return batch.serial
