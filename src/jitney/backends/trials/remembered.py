"""`Trial`: something that is tried once on a machine, and remembered in the cache folder.

A hash of what the answers depend on is the name of their file. The file also names the model and
the libraries, so that `forget` can remove old answers. Any number of processes may ask: one tries
at a time, and the others take its answers. Where the cache cannot be written, each process tries
again. Any thread.

Tests: tests/unit/backends/trials/test_measure.py and test_selftest.py.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any  # Any: what a file may hold

from jitney.backends.machine.processor import read_processor
from jitney.backends.trials.trial_process import TrialResult
from jitney.models.files import locked, locked_if_free

MEMORY_BYTES_MAX = 65_536

TrialResults = Mapping[str, TrialResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A trial: what the answers depend on, and which of them are kept."""

    cache: Path
    names: tuple[str, ...]
    """There is an answer for each name."""
    facts: object
    """What the answers depend on besides the libraries and the processor, as JSON."""
    distributions: tuple[str, ...]
    keeps: Callable[[TrialResults], bool]
    """Whether the answers make sense and would be the same again."""
    model: Path | None = None
    """None where the answers hold for every model."""
    measures: bool = False
    """Whether it measures speed. Two measurements at once would halve each other's."""

    @property
    def file(self) -> Path:
        """The file of the answers."""
        processor = asdict(read_processor())
        known = [self.names, self.facts, builds(self.distributions), processor]
        key = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:24]
        return self.cache / "probes" / f"{key}.json"

    def recall(self) -> TrialResults | None:
        """The answers of an earlier trial; None when there are none, or they make no sense."""
        try:
            kept = _read(self.file)
            answers = {name: _checked(kept[name]) for name in self.names}
            return answers if self.keeps(answers) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def results(self, attempt: Callable[[], TrialResults]) -> TrialResults:
        """The remembered answers, or those of the attempt, which are then remembered."""
        found = self.recall()
        if found is None:
            with self._alone():
                # Another process may have tried while this one waited.
                found = self.recall() or attempt()
                if self.keeps(found):
                    self._remember(found)
        return found

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from the same trial, or from any measurement."""
        lock = self.file.with_suffix(".lock")
        with ExitStack() as stack:
            with suppress(OSError):
                lock.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(
                    locked(lock.with_name("measuring.lock") if self.measures else lock)
                )
            yield

    def _remember(self, answers: TrialResults) -> None:
        """Write the answers, all or nothing, if the folder can be written."""
        about = {
            "model": None if self.model is None else str(self.model.resolve()),
            "libraries": builds(self.distributions),
        }
        kept = {name: asdict(each) for name, each in answers.items()}
        partial = self.file.with_suffix(f".{os.getpid()}.partial")
        with suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(kept | about), encoding="utf-8")
            partial.replace(self.file)


def builds(distributions: Iterable[str]) -> list[list[str]]:
    """Version and digest of each installed distribution. A new build has another digest."""
    found = []
    for name in distributions:
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            found.append([name])
            continue
        record = installed.read_text("RECORD") or ""
        found.append([name, installed.version, hashlib.sha256(record.encode()).hexdigest()])
    return found


def forget(cache: Path) -> int:
    """Remove answers about models and libraries that are gone; the number of bytes freed."""
    freed = 0
    for file in list((cache / "probes").glob("*.json")):
        size = file.stat().st_size
        if not _holds(file):
            file.unlink(missing_ok=True)
            freed += size
            lock = file.with_suffix(".lock")
            with suppress(OSError), locked_if_free(lock) as is_held:
                if is_held:
                    lock.unlink()
    return freed


def _holds(file: Path) -> bool:
    """Whether the model exists and the same libraries are installed."""
    try:
        kept = _read(file)
        libraries = kept["libraries"]
        names = [str(each[0]) for each in libraries]
        is_there = kept["model"] is None or Path(str(kept["model"])).exists()
        return is_there and bool(libraries == builds(names))
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return False


def _read(file: Path) -> dict[str, Any]:
    """The contents of a file. Raises ValueError or OSError where it is not from a trial."""
    if file.stat().st_size > MEMORY_BYTES_MAX:
        raise ValueError(file)
    kept = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(kept, dict):
        raise ValueError(file)
    return kept


def _checked(kept: Mapping[str, Any]) -> TrialResult:
    found = TrialResult(found=kept["found"], failure=kept["failure"], status=kept["status"])
    kinds = ((found.found, dict), (found.failure, str | None), (found.status, int))
    if not all(isinstance(value, kind) for value, kind in kinds):
        raise ValueError(kept)
    return found
