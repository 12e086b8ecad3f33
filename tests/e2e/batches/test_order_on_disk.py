"""The order in which content reaches the disk: written, synced, noted, named.

A killed process shows nothing of this: what it wrote is in the memory of the system, and reaches
the disk later. So the calls are recorded, with what each file held when it was synced.
"""

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jitney.server.batches.database import Database
from jitney.server.batches.offline import RunPlaces, deliver
from jitney.server.batches.rows import BatchStatus
from jitney.server.batches.store import BatchStore
from tests.e2e.batches.batch_client import client_of, ended, line, submit
from tests.e2e.server.harness import World, running, wait_until
from tests.unit.server.batches.store_for_tests import NOW, begun, end, result


@dataclass
class Recorder:
    """What was done to the disk, in order: syncs by inode and size, names, and commits."""

    events: list[tuple[str, object]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, what: object) -> None:
        with self._lock:
            self.events.append((kind, what))

    def place(self, kind: str, what: object, before: int | None = None) -> int:
        """Where the first such event stands. Fails without one."""
        assert (kind, what) in self.events[:before], f"there was no {kind} of {what} in time"
        return self.events.index((kind, what))

    def check(self, path: Path) -> None:
        """Content was whole when it was synced, its folder after that, and its row came later."""
        file_id, size = path.name, path.stat().st_size
        noted = self.place("note", file_id)
        synced = self.place("sync", (path.stat().st_ino, size), noted)
        folder = ("sync", path.parent.stat().st_ino)
        assert folder in self.events[synced:noted], "the folder was not synced"
        assert self.place("name", str(path)) > noted


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    sync, name, transaction = os.fsync, Path.replace, Database.transaction
    link = Path.hardlink_to

    def note_sync(descriptor: int) -> None:
        sync(descriptor)
        found = os.fstat(descriptor)
        is_folder = stat.S_ISDIR(found.st_mode)
        made.add("sync", found.st_ino if is_folder else (found.st_ino, found.st_size))

    def note_name(path: Path, target: Path) -> Path:
        made.add("name", str(target))
        return name(path, target)

    def note_link(path: Path, target: Path) -> None:
        made.add("name", str(path))
        link(path, target)

    @contextmanager
    def note_transaction(database: Database) -> Iterator[None]:
        with transaction(database):
            known = _ids(database)
            yield
            noted = _ids(database) - known
            # The row is there for others from here on.
            for each in sorted(noted):
                made.add("note", each)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_name)
    monkeypatch.setattr(Path, "hardlink_to", note_link)
    monkeypatch.setattr(Database, "transaction", note_transaction)
    return made


def _ids(database: Database) -> set[str]:
    return {row[0] for row in database.rows("SELECT id FROM files")}


def test_uploads_and_outputs_are_on_the_disk_before_they_are_noted(
    tmp_path: Path, recorder: Recorder
) -> None:
    """Guards files against a loss of power: a row must not outlive its content."""
    world = World(jobs_dir=tmp_path / "jobs")
    with running(world) as server, client_of(server) as client:
        done = ended(client, submit(client, [line("a"), line("b", max_tokens=-7)]))
        ids = (done.input_file_id, done.output_file_id, done.error_file_id)
        for each in ids:
            assert each is not None
            path = tmp_path / "jobs" / "files" / each
            wait_until(path.exists, "it has no name")
            recorder.check(path)


def test_results_of_a_run_are_on_the_disk_before_they_have_their_names(
    tmp_path: Path, recorder: Recorder
) -> None:
    """Guards `jitney batch run`: an output that is there is complete."""
    store = BatchStore(tmp_path / "out.jsonl.jobs")
    batch = begun(store, 2)
    store.batches.settle([result(batch, 1), result(batch, 2)])
    store.batches.finalize(batch.serial, NOW, BatchStatus.COMPLETED)
    batch = end(store, store.batches.get(batch.serial))
    output = tmp_path / "out.jsonl"
    deliver(store, batch, RunPlaces(tmp_path / "in.jsonl", output))
    store.close()
    named = recorder.place("name", str(output))
    recorder.place("sync", (output.stat().st_ino, output.stat().st_size), named)
    assert ("sync", tmp_path.stat().st_ino) in recorder.events[named:]
