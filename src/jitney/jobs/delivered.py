"""Whether the results of a run are in place already: its files against its input. Main thread.

A run that was killed after its last step has left its results and nothing else. The same command
must find that all is done, and not answer everything again.

Tests: tests/unit/jobs/test_delivered.py.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitney.jobs import limits
from jitney.jobs.batch_input import HeldInput
from jitney.jobs.lines import RawLine, read_lines_of

Row = dict[str, Any]  # Any: a JSON value


@dataclass(frozen=True, slots=True)
class Delivered:
    """How many lines have their results in place."""

    answered: int = 0
    failed: int = 0


def find_delivered(source: HeldInput, output: Path, errors: Path, model: str) -> Delivered | None:
    """The results of every line of this input, by this model; None if these files are not that."""
    try:
        done, failed = _Rows(output), _Rows(errors)
        number = 0
        for raw in read_lines_of(source.file, 0, limits.FILE_BYTES_MAX):
            number += raw.count
            if not (raw.is_blank or done.take_answer(_id_of(raw), model)):
                failed.take_failure(_id_of(raw), number)
        if done.next is not None or failed.next is not None:
            return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return Delivered(done.count, failed.count)


class _Rows:
    """The rows of a file of results, in order. Without a file there are none."""

    def __init__(self, path: Path) -> None:
        self._rows = _read(path)
        self.next = next(self._rows, None)
        self.count = 0

    def take_answer(self, custom_id: object, model: str) -> bool:
        """Whether the next row is the answer to this line."""
        row = self.next
        if row is None or custom_id is None or row["custom_id"] != custom_id:
            return False
        if row["response"]["body"]["model"] != model:
            raise ValueError(model)
        self._go_on()
        return True

    def take_failure(self, custom_id: object, number: int) -> None:
        """The next row says why this line failed. Raises ValueError if it does not."""
        row = self.next
        if row is None:
            raise ValueError(number)
        error = row["error"]
        is_it = row["custom_id"] == custom_id if error is None else error["line"] == number
        if not is_it:
            raise ValueError(number)
        self._go_on()

    def _go_on(self) -> None:
        self.count += 1
        self.next = next(self._rows, None)


def _read(path: Path) -> Iterator[Row]:
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                yield json.loads(line)


def _id_of(raw: RawLine) -> object:
    try:
        return json.loads(raw.content or b"")["custom_id"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
