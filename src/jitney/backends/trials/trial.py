"""`Trial`: a backend is tried once on a machine, in child processes. Results are remembered.

A trial may ask whether a backend works here (`try_backend`), how fast it runs a model, or in which
shape of passes it computes every token alike. What a child does follows from its payload
(`trial_child`). A hash of what the results depend on is the name of their file. The file also names
the model and the libraries, so that `forget` can remove old results. Any number of processes may
ask: one tries at a time, and the others take its results. Where the cache cannot be written, each
process tries again. Called at start-up, from any thread.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any  # Any: what a file may hold, and settings before a backend has checked them

import msgspec

from jitney.backends.kind import Kind, Values
from jitney.backends.machine.processor import read_processor
from jitney.backends.trials.trial_process import TrialResult, ask
from jitney.config import Settings
from jitney.models.files import bytes_under, locked, locked_if_free, read_small, write_text
from jitney.models.parts import size_of
from jitney.version import version

CHILD = "jitney.backends.trials.trial_child"
METHOD = 3
"""Part of the key of a result. Another way to try needs another number."""
START_S_MAX = 120.0
SHAPE_S_MAX = 60.0
SHAPES_MIN = 3
BYTES_PER_S_MIN = 10e6
"""The slowest disk and processor that the time limit of a child allows for."""
SLOT_TOKENS = 256
"""The memory of each sequence in a trial."""
SHAPE_SLOTS, SHAPE_SLOT_TOKENS = 16, 384
"""The same in a trial of shapes, and its slots: one batch has this many sequences."""

TrialResults = Mapping[str, TrialResult]
Payload = Mapping[str, Any]

_log = logging.getLogger("jitney")


def payload_of(
    backend: str,
    values: Mapping[str, Any],
    *,
    sequences: int = 0,
    shapes: Iterable[Mapping[str, Any]] | None = None,
) -> Payload:
    """What a child is to do with a model, with only as much memory as it needs.

    It finds the first of the shapes in which all tokens are computed alike, and measures the speed
    with this many sequences. Without both it computes one answer.
    """
    slots, slot_tokens = max(sequences, 1), SLOT_TOKENS
    if shapes is not None:
        slots, slot_tokens = SHAPE_SLOTS, SHAPE_SLOT_TOKENS
    sizes = {
        "slots": slots,
        "kv_tokens": slots * slot_tokens,
        "max_num_batched_tokens": max(int(values["max_num_batched_tokens"]), slot_tokens),
    }
    if values.get("slot_tokens_max"):
        sizes["slot_tokens_max"] = slot_tokens
    payload = {"backend": backend, "settings": {**values, **sizes}, "sequences": sequences}
    return payload if shapes is None else payload | {"shapes": list(shapes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A trial: what the results depend on, and which of them are kept."""

    cache: Path
    names: tuple[str, ...]
    """There is a result for each name."""
    facts: object
    """What the results depend on besides the libraries and the processor, as JSON."""
    distributions: tuple[str, ...]
    keeps: Callable[[TrialResults], bool]
    """Whether the results make sense and would be the same again."""
    model: Path | None = None
    """None where the results hold for every model."""
    measures: bool = False
    """Whether it measures speed. Two measurements at once would halve each other's."""
    notice: str = ""
    """A log line before a child is started."""

    @property
    def file(self) -> Path:
        """The file of the results."""
        processor = asdict(read_processor())
        known = [METHOD, self.names, self.facts, builds(self.distributions), processor]
        key = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:24]
        return self.cache / "probes" / f"{key}.json"

    def recall(self) -> TrialResults | None:
        """The results of an earlier trial; None when there are none, or they make no sense."""
        try:
            stored = _read(self.file)
            found = {name: msgspec.convert(stored[name], TrialResult) for name in self.names}
            return found if self.keeps(found) else None
        except (OSError, ValueError, KeyError):
            return None

    def results(self, payloads: Mapping[str, Payload | TrialResult]) -> TrialResults:
        """The remembered results, or those of children, which are then remembered.

        A result in place of a payload says why there is nothing to try.
        """
        found = self.recall()
        if found is None:
            with self._alone():
                # Another process may have tried while this one waited.
                found = self.recall() or self._try(payloads)
                if self.keeps(found):
                    self._remember(found)
        return found

    def _try(self, payloads: Mapping[str, Payload | TrialResult]) -> TrialResults:
        if self.notice and not all(isinstance(each, TrialResult) for each in payloads.values()):
            _log.warning("%s", self.notice)
        return {
            name: each if isinstance(each, TrialResult) else _run(each)
            for name, each in payloads.items()
        }

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

    def _remember(self, results: TrialResults) -> None:
        """Write the results, all or nothing, if the folder can be written."""
        about = {
            "model": None if self.model is None else str(self.model.resolve()),
            "libraries": builds(self.distributions),
        }
        stored = {name: asdict(each) for name, each in results.items()}
        with suppress(OSError):
            write_text(self.file, json.dumps(stored | about))


def try_backend(
    name: str, numbers: Mapping[str, Any], distributions: tuple[str, ...], cache: Path
) -> TrialResult:
    """Whether the backend works here: it must compute a tiny model as numpy does."""
    trial = Trial(
        cache=cache,
        names=(name,),
        facts=["works", version(), dict(numbers)],
        distributions=distributions,
        keeps=lambda results: results[name].would_repeat,
    )
    return trial.results({name: {"backend": name, "numbers": dict(numbers)}})[name]


def try_shapes(
    payloads: Mapping[str, Payload],
    facts: object,
    distributions: tuple[str, ...],
    cache: Path,
    notice: str,
) -> TrialResults:
    """In which shape of passes all tokens are computed alike: `shape` in each result, or None."""
    trial = Trial(
        cache=cache,
        names=tuple(payloads),
        facts=["shapes", facts, {name: each["shapes"] for name, each in payloads.items()}],
        distributions=distributions,
        keeps=have_shapes,
        measures=True,
        notice=notice,
    )
    return trial.results(payloads)


def alike_values(
    kind: Kind,
    settings: Settings,
    values: Values,
    shapes: Iterable[Mapping[str, Any]],
    fact_names: Iterable[str],
) -> Values:
    """The shape of passes in which all tokens are computed alike; tried once and remembered."""
    if settings.batch_invariant == "off":
        return {}
    payloads = {kind.name: payload_of(kind.name, values, shapes=shapes)}
    facts = [[name, values[name]] for name in fact_names]
    notice = "Trying in which batches this model is computed alike here, once"
    results = try_shapes(payloads, facts, kind.distributions(), settings.cache_dir, notice)
    result = results[kind.name]
    shape = result.found.get("shape")
    if shape is not None:
        return {**shape, "batch_invariant": True}
    failure = (result.failure or "").rstrip(".")
    kind.report_differences(settings.batch_invariant, failure and f"the trial ended: {failure}")
    return {}


def have_shapes(results: TrialResults) -> bool:
    """Whether every child of a trial of shapes has looked for one, and found it or not."""
    return all("shape" in each.found for each in results.values())


def _run(payload: Payload) -> TrialResult:
    """Run one child. Its time limit allows for the size of the model."""
    limit_s = START_S_MAX
    if "shapes" in payload:
        limit_s += SHAPE_S_MAX * max(SHAPES_MIN, len(payload["shapes"]))
    model = payload.get("settings", {}).get("model")
    if model is not None:
        # The child reports what is wrong with it.
        with suppress(OSError):
            path = Path(str(model))
            limit_s += (bytes_under(path) if path.is_dir() else size_of(path)) / BYTES_PER_S_MIN
    found = ask(CHILD, payload, limit_s)
    if payload.get("sequences") and found.failure is None and not found.speed:
        return replace(found, failure="it ended without a figure")
    return found


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
    """Remove results about models and libraries that are gone; the number of bytes freed."""
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
        stored = _read(file)
        libraries = stored["libraries"]
        names = [str(each[0]) for each in libraries]
        is_there = stored["model"] is None or Path(str(stored["model"])).exists()
        return is_there and bool(libraries == builds(names))
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return False


def _read(file: Path) -> dict[str, Any]:
    """The contents of a file. Raises ValueError or OSError where it is not from a trial."""
    return msgspec.json.decode(read_small(file), type=dict[str, Any])
