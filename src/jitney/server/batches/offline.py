"""`jitney batch run`: the same store and runner for one file, without a server. Main thread.

The store is a folder beside the output, and is removed when the results have their final names. So
a run that was killed goes on where it was: the same command finds the folder. The input is not
copied; it is held open, and compared by its content.

Tests: tests/e2e/batches/test_batch_run.py.
"""

import asyncio
import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from errno import EMLINK, ENOTSUP, EPERM
from pathlib import Path

from jitney.errors import ConfigError, EngineStopped
from jitney.models.files import locked_if_free, publish, sha256_of, sync, write_text
from jitney.server.batches.batch_input import HeldInput, InputChanged
from jitney.server.batches.batches import Batches
from jitney.server.batches.database import StoreTaken
from jitney.server.batches.rows import BatchStatus, NewBatch, Purpose, StoredBatch, StoredFile
from jitney.server.batches.stages import BatchBounds
from jitney.server.batches.store import BatchStore
from jitney.server.batches.store_folder import is_store, remove_store
from jitney.server.service import now_s

POLL_S = 0.1
NAME_BYTES_MAX = 230
"""Of the output: other names are made from it, and a name has 255 bytes at most."""
NO_BOUNDS = BatchBounds(lines_max=None, bytes_max=None)
"""The bounds of a server are for strangers."""

_OWNER = ""


class StoreGone(Exception):
    """The store of this run was removed, with the results so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a run has put in place: digests of the input and of both files, and counts of lines.

    A run that was killed after its last step has left its results, and no store that knows them.
    With the receipt beside them the same command finds that all is done. Another input with the
    same ids is not the same command.
    """

    input_sha256: str
    model: str
    output_sha256: str
    errors_sha256: str | None
    answered: int
    failed: int

    def are_results(self, output: Path, errors: Path) -> bool:
        """Whether these files are what was put in place."""
        found = [sha256_of(each) if each.is_file() else None for each in (output, errors)]
        return found == [self.output_sha256, self.errors_sha256]


def read_receipt(path: Path) -> Receipt | None:
    """The receipt in a file; None if there is none."""
    try:
        return Receipt(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@dataclass
class RunPlaces:
    """The files of one run."""

    source: Path
    output: Path

    def __post_init__(self) -> None:
        # Not `with_name`: a folder such as . or / has no name, and `check` says so.
        beside, name = self.output.parent, self.output.name
        self.errors = beside / f"{self.output.stem}.errors{self.output.suffix}"
        """Where failed lines go: out.jsonl has out.errors.jsonl."""
        self.folder = beside / f"{name}.jobs"
        """The store, while the run is not complete."""
        self.done_folder = beside / f"{name}.jobs.done"
        """The name of the store while it is being removed."""
        self.receipt = beside / f"{name}.done"
        """What was put in place."""
        self.lock = beside / f"{name}.lock"
        """Held by the one run that there may be."""

    def check(self) -> None:
        """Refuse what cannot be run, before anything is read. Raises ConfigError."""
        for path, name in ((self.source, "The input"), (self.output, "The output")):
            if str(path) == "-":
                raise ConfigError(
                    f"{name} is -, and only a file can be gone on with after a crash; name one."
                )
            if path.is_dir():
                raise ConfigError(f"{name} is the folder {path}; name a file.")
        if len(self.output.name.encode()) > NAME_BYTES_MAX:
            raise ConfigError(f"The name of the output is longer than {NAME_BYTES_MAX} bytes.")
        if not self.source.is_file():
            if self.source.exists():
                raise ConfigError(
                    f"{self.source} is no plain file, and a run that goes on reads it again; put "
                    "the lines into one."
                )
            raise ConfigError(f"There is no file {self.source}.")
        if not self.output.parent.is_dir():
            raise ConfigError(f"There is no folder {self.output.parent} for the output.")


def find_results(places: RunPlaces, source: HeldInput, model: str) -> Receipt | None:
    """The results of a run that is done already; None if there is something to do.

    Raises ConfigError where the results would take the place of something else.
    """
    present = [path for path in (places.output, places.errors) if path.exists()]
    if is_store(places.folder) or not present:
        return None
    receipt = read_receipt(places.receipt)
    if (
        receipt is None
        or (receipt.input_sha256, receipt.model) != (source.sha256, model)
        or not receipt.are_results(places.output, places.errors)
    ):
        if present[0].samefile(source.path):
            raise ConfigError(f"{present[0]} is the input; give another --output.")
        raise ConfigError(f"{present[0]} is there already; move it away, or give another --output.")
    remove_store(places.done_folder)
    return receipt


@contextmanager
def locked(places: RunPlaces) -> Iterator[None]:
    """From the first look to the last step: the one run with this output. Raises StoreTaken."""
    with locked_if_free(places.lock) as is_ours:
        if not is_ours:
            raise StoreTaken(
                f"Another process answers into {places.output}; wait for it, or give another "
                "--output."
            )
        try:
            yield
        finally:
            places.lock.unlink(missing_ok=True)


def adopt(places: RunPlaces, source: HeldInput, model: str) -> StoredBatch:
    """The batch of this run: that of an earlier run, or a new one. Raises ConfigError."""
    store = BatchStore(places.folder)
    try:
        earlier = store.batches.listed(_OWNER, None, 1)
        if earlier:
            _check_same(places, earlier[0], source.sha256, model)
            for path in (places.output, places.errors):
                if earlier[0].status.is_live and path.exists():
                    raise ConfigError(
                        f"{path} is there already, and is not of this run; move it away."
                    )
            return earlier[0]
        return _begin(store, source, model)
    finally:
        store.close()


async def run(
    batches: Batches, batch: StoredBatch, show: Callable[[StoredBatch], None]
) -> StoredBatch:
    """Run a batch to its end; `show` is called now and then.

    Raises EngineStopped, InputChanged and StoreGone.
    """
    serial, batch_id = batch.serial, batch.id
    batches.start()
    try:
        while True:
            found = await batches.thread.call(lambda store: store.batches.find(_OWNER, batch_id))
            if found is None:
                raise StoreGone
            batch = found
            show(batch)
            if not batch.status.is_live:
                return batch
            error = batches.runner.input_errors.get(serial)
            if isinstance(error, InputChanged):
                raise error
            if batches.runner.is_over:
                raise EngineStopped("The engine stopped before the batch was done.")
            await asyncio.sleep(POLL_S)
    finally:
        await batches.stop()


def deliver(store: BatchStore, batch: StoredBatch, places: RunPlaces) -> None:
    """Give the results their final names; there are none if the batch failed as a whole.

    To be repeated where it was cut short. Raises OSError.
    """
    if batch.status is BatchStatus.FAILED:
        return
    output = _put(store, batch.output_file_id, places.output)
    errors = None
    if batch.error_file_id is not None:
        errors = _put(store, batch.error_file_id, places.errors)
    receipt = Receipt(
        input_sha256=batch.input_sha256,
        model=batch.model,
        output_sha256=output,
        errors_sha256=errors,
        answered=batch.completed,
        failed=batch.failed,
    )
    write_text(places.receipt, json.dumps(asdict(receipt), indent=1) + "\n")


def _put(store: BatchStore, file_id: str | None, target: Path) -> str:
    """Put a result where it belongs, or an empty file; its digest. Nothing else is overwritten."""
    # A copy: until all is in place, the store has what it knows.
    partial = target.with_name(f"file-{uuid.uuid4().hex}.partial")
    digest = ""
    try:
        if file_id is None:
            partial.touch(exist_ok=False)
        else:
            shutil.copyfile(store.content.path_of(file_id), partial)
        digest = sha256_of(partial)
        sync(partial)
        # Unlike a new name, a second one never takes the place of another file.
        target.hardlink_to(partial)
        sync(target.parent)
    except FileExistsError:
        if not target.is_file() or sha256_of(target) != digest:
            raise
    except OSError as error:
        if target.exists() or error.errno not in (EPERM, ENOTSUP, EMLINK):
            raise
        publish(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return digest


def remove_folder(places: RunPlaces) -> None:
    """The results are where they belong: nothing else is needed."""
    # Out of the way in one step: a run that is killed here must not find half of a store.
    remove_store(places.done_folder)
    places.folder.replace(places.done_folder)
    remove_store(places.done_folder)


def _check_same(places: RunPlaces, batch: StoredBatch, digest: str, model: str) -> None:
    begun = f"{places.folder} holds a run that was begun"
    otherwise = "Remove that folder to begin again, or give another --output."
    if batch.input_sha256 != digest:
        raise ConfigError(f"{begun} with another input than {places.source}. {otherwise}")
    if batch.model != model:
        raise ConfigError(f"{begun} with the model {batch.model}, not {model}. {otherwise}")


def _begin(store: BatchStore, source: HeldInput, model: str) -> StoredBatch:
    file = StoredFile(
        id=f"file-{uuid.uuid4().hex}",
        owner=_OWNER,
        filename=source.path.name,
        purpose=Purpose.BATCH,
        bytes=source.bytes,
        sha256=source.sha256,
        created_at=now_s(),
    )
    store.add_file(file)
    # For people who look: the content is read where it is.
    store.content.path_of(file.id).symlink_to(source.path.resolve())
    new = NewBatch(owner=_OWNER, model=model, input_file_id=file.id, created_at=now_s())
    return store.batches.create(new)
