"""Exactly once, whatever is killed: a store driven step by step, and cut between any two of them.

A process that ends at any moment leaves what SQLite has committed and what files hold. Here the
folder is copied at a moment of the draw, as a process that dies there would leave it, and a new
store goes on from the copy.
"""

import contextlib
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.server.batches.content_files import OutputFiles
from jitney.server.batches.rows import BatchStatus, StoredBatch, StoredLine
from jitney.server.batches.store import BatchStore
from tests.unit.server.batches.store_for_tests import NOW, add_file, ids_in, new_batch, result

LINES = 12
PART = 5


class Killed(Exception):
    """The process ends here."""


class Process:
    """One process that works on a store, one small step after the other, until it is killed."""

    def __init__(self, folder: Path, steps: int, draw: Callable[[int], int]) -> None:
        self.store = BatchStore(folder)
        self._left = steps
        self._draw = draw
        self._files: OutputFiles | None = None

    def step(self) -> None:
        """Between two steps the process may end."""
        if self._left == 0:
            raise Killed
        self._left -= 1

    def close(self) -> None:
        """Give back what the system takes from a process that has ended."""
        if self._files is not None:
            self._files.discard()
        self.store.close()

    def run(self) -> StoredBatch:
        """Bring the batch to its end, whatever its state is."""
        store = self.store
        while True:
            found = store.batches.listed("", None, 1)
            if not found:
                self._create()
                continue
            batch = found[0]
            self.step()
            match batch.status:
                case BatchStatus.VALIDATING:
                    self._check(batch)
                case BatchStatus.IN_PROGRESS if not batch.is_settled:
                    self._settle(batch)
                case BatchStatus.IN_PROGRESS:
                    store.batches.finalize(batch.serial, NOW, BatchStatus.COMPLETED)
                case BatchStatus.FINALIZING:
                    self._write(batch)
                case _:
                    return batch

    def _create(self) -> None:
        self.step()
        file = add_file(self.store, b"x")
        self.step()
        self.store.batches.create(new_batch(file, idempotency_key="k"))

    def _check(self, batch: StoredBatch) -> None:
        last = min(batch.read_lines + PART, LINES)
        lines = [
            StoredLine(
                number=number,
                start=number,
                length=1,
                custom_id=f"c{number}",
                reply=b'{"custom_id":"c%d"}' % number if number % 4 == 0 else None,
            )
            for number in range(batch.read_lines + 1, last + 1)
        ]
        self.store.batches.add_lines(batch, lines, last, last)
        self.step()
        if last == LINES:
            self.store.batches.begin(batch.serial, NOW)

    def _settle(self, batch: StoredBatch) -> None:
        """Answers come in any order, some of them twice, a few at once."""
        pending = list(self.store.batches.pending_lines(batch.serial, 0, LINES))
        chosen = [pending[self._draw(len(pending))] for _ in range(1 + self._draw(3))]
        self.step()
        results = [result(batch, each.number, is_done=bool(self._draw(3))) for each in chosen]
        self.store.batches.settle(results)

    def _write(self, batch: StoredBatch) -> None:
        files = self._files = OutputFiles(self.store.content, batch)
        after = 0
        while lines := self.store.batches.written_lines(batch.serial, after):
            self.step()
            files.add(lines)
            after = lines[-1].number
        self.step()
        files.sync()
        self.step()
        self.store.batches.end(batch, NOW, *files.records(NOW))
        self.step()
        files.name()
        self.step()
        self.store.batches.sweep()


@settings(max_examples=60)
@given(lives=st.lists(st.integers(0, 14), max_size=12), seed=st.integers(0, 2**32))
def test_each_line_is_in_the_results_once_and_in_order(lives: list[int], seed: int) -> None:
    """Guards the promise: after any number of kills, at any steps, a recount is exact."""
    choices = random.Random(seed)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "0"
        folder.mkdir()
        for number, steps in enumerate(lives, 1):
            process = Process(folder, steps, choices.randrange)
            with contextlib.suppress(Killed):
                process.run()
            # What a process leaves that ends here: no close, no clean-up.
            left = Path(root) / str(number)
            shutil.copytree(folder, left)
            process.close()
            folder = left
        last = Process(folder, -1, choices.randrange)
        batch = last.run()
        assert batch.status is BatchStatus.COMPLETED
        assert (batch.total, batch.completed + batch.failed) == (LINES, LINES)
        found = []
        for file_id in (batch.output_file_id, batch.error_file_id):
            if file_id is not None:
                ids = ids_in(last.store.content.path_of(file_id))
                assert ids == sorted(ids, key=lambda each: int(each[1:]))
                found += ids
        assert sorted(found) == sorted(f"c{number}" for number in range(1, LINES + 1))
        listed = last.store.batches.listed("", None, 10)
        assert listed is not None
        assert len(listed) == 1
        last.store.close()
        # Nothing is left of outputs that were never complete.
        again = BatchStore(folder)
        left_names = {each.name for each in (folder / "files").iterdir()}
        assert left_names == again.file_ids() | {"store"}
        again.close()
