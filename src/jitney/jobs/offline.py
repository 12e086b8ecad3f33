"""`jitney batch run`: the same store and runner for one file, without a server. Main thread.

The store is a folder beside the output, and is removed when the results have their final names. So
a run that was killed goes on where it was: the same command finds the folder. The input is not
copied; it is compared by its content.

Tests: tests/e2e/jobs/test_batch_run.py.
"""

import asyncio
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jitney.errors import ConfigError, EngineStopped
from jitney.jobs.jobs import Jobs
from jitney.jobs.stages import JobBounds
from jitney.jobs.store import JobStore
from jitney.jobs.stored import BatchStatus, NewBatch, Purpose, StoredBatch, StoredFile
from jitney.models.files import publish, sha256_of
from jitney.server.service import now_s

POLL_S = 0.1
NO_BOUNDS = JobBounds(lines_max=None, bytes_max=None)
"""The bounds of a server are for strangers."""

_OWNER = ""


@dataclass(frozen=True, slots=True)
class RunPlaces:
    """The files of one run."""

    source: Path
    output: Path

    @property
    def errors(self) -> Path:
        """Where failed lines go: out.jsonl has out.errors.jsonl."""
        return self.output.with_name(f"{self.output.stem}.errors{self.output.suffix}")

    @property
    def folder(self) -> Path:
        """The store, while the run is not complete."""
        return self.output.with_name(f"{self.output.name}.jobs")

    def check(self) -> None:
        """Refuse what cannot be run, before a model is loaded. Raises ConfigError."""
        if not self.source.is_file():
            raise ConfigError(f"There is no file {self.source}.")
        if not self.output.parent.is_dir():
            raise ConfigError(f"There is no folder {self.output.parent} for the output.")
        if self.folder.exists():
            return
        for path in (self.output, self.errors):
            if path.exists():
                raise ConfigError(
                    f"{path} is there already; move it away, or give another --output."
                )


def adopt(places: RunPlaces, model: str) -> StoredBatch:
    """The batch of this run: that of an earlier run, or a new one. Raises ConfigError."""
    digest = sha256_of(places.source)
    store = JobStore(places.folder)
    try:
        earlier = store.batches.listed(_OWNER, None, 1)
        if earlier:
            _check_same(places, earlier[0], digest, model)
            if earlier[0].status.is_live:
                _link(store, earlier[0].input_file_id, places.source)
            return earlier[0]
        return _begin(store, places.source, digest, model)
    finally:
        store.close()


async def run(jobs: Jobs, serial: int, tell: Callable[[StoredBatch], None]) -> StoredBatch:
    """Run a batch to its end; `tell` is called now and then. Raises EngineStopped."""
    jobs.start()
    try:
        while True:
            batch = await jobs.call(lambda store: store.batches.get(serial))
            tell(batch)
            if not batch.status.is_live:
                return batch
            if jobs.is_over:
                raise EngineStopped("The engine stopped before the batch was done.")
            await asyncio.sleep(POLL_S)
    finally:
        await jobs.stop()


def deliver(store: JobStore, batch: StoredBatch, places: RunPlaces) -> None:
    """Give the results their final names; there are none if the batch failed as a whole.

    To be repeated where it was cut short. Raises OSError.
    """
    if batch.status is BatchStatus.FAILED:
        return
    named = ((batch.output_file_id, places.output), (batch.error_file_id, places.errors))
    for file_id, target in named:
        # An earlier run may have moved it, and ended then.
        if file_id is not None and store.path_of(file_id).exists():
            publish(store.path_of(file_id), target)
    places.output.touch()


def remove_store(places: RunPlaces) -> None:
    """The results are where they belong: nothing else is needed."""
    shutil.rmtree(places.folder)


def _check_same(places: RunPlaces, batch: StoredBatch, digest: str, model: str) -> None:
    begun = f"{places.folder} holds a run that was begun"
    otherwise = "Remove that folder to begin again, or give another --output."
    if batch.input_sha256 != digest:
        raise ConfigError(f"{begun} with another input than {places.source}. {otherwise}")
    if batch.model != model:
        raise ConfigError(f"{begun} with the model {batch.model}, not {model}. {otherwise}")


def _begin(store: JobStore, source: Path, digest: str, model: str) -> StoredBatch:
    file = StoredFile(
        id=f"file-{uuid.uuid4().hex}",
        owner=_OWNER,
        filename=source.name,
        purpose=Purpose.BATCH,
        bytes=source.stat().st_size,
        sha256=digest,
        created_at=now_s(),
    )
    _link(store, file.id, source)
    store.files.add(file)
    return store.batches.create(
        NewBatch(
            owner=_OWNER,
            endpoint=None,
            model=model,
            input_file_id=file.id,
            created_at=now_s(),
            expires_at=None,
        )
    )


def _link(store: JobStore, file_id: str, source: Path) -> None:
    """Let the store find the input where it is now."""
    path = store.path_of(file_id)
    path.unlink(missing_ok=True)
    path.symlink_to(source.resolve())
