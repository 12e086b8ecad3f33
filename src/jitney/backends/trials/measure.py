"""How fast a backend runs a model on this machine: a short trial in a child process, remembered.

`python -m jitney.backends.trials.measure` takes a trial as JSON on standard input, loads the
backend, computes prompts and decodes for a moment, and prints the speed. `measure` runs that child,
and every way in which it can fail is a sentence in its `Trial`. The folder of trials is shared: any
number of processes may ask, and one measures at a time. Called at start-up, from any thread.
"""

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any  # Any: settings are plain values until a backend has checked them

from jitney.backends import load
from jitney.backends.trials import probes
from jitney.core.backend import Backend
from jitney.core.batch import Batch, Copy, Entry, MemoryOperation, Open, Release, Sampling
from jitney.errors import JitneyError, ModelError
from jitney.models.files import locked
from jitney.models.parts import size_of
from jitney.sandbox.die_with_parent import die_with_parent

PROMPT_TOKENS = 128
COMPLETION_TOKENS = 64
"""What a usual request is taken to be; the speed is that of one at each sequence."""
SLOT_TOKENS = 256
"""Memory of each sequence in a trial."""
STEPS_MAX = 48
STEPS_MIN = 3
DECODE_S = 1.5
PREFILL_S = 8.0
"""Prompts computed after so long are copies of the first one: large models take their time."""
START_S_MAX = 120.0
BYTES_PER_S_MIN = 20e6
"""The slowest disk from which a model is still waited for."""
MEMORY_BYTES_MAX = 65_536
FAILURE_CHARACTERS_MAX = 300
EXIT_REFUSED = 3
METHOD = 2
"""Part of what a trial is remembered by; another way to measure needs another number."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial found: tokens of completions a second, or why there is no such figure."""

    tokens_per_s: float | None
    failure: str | None = None
    is_lasting: bool = True
    """Whether it would surely end the same way again; lack of memory, for one, may pass."""


def measure(name: str, settings: Mapping[str, Any], sequences: int) -> Trial:
    """Try the backend of this name in a child, with as much memory as the trial needs."""
    given = {
        "backend": name,
        "settings": _trimmed(settings, sequences),
        "sequences": sequences,
        "parent": os.getpid(),
    }
    limit = START_S_MAX + model_bytes(Path(str(settings["model"]))) / BYTES_PER_S_MIN
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", __spec__.name],
            input=json.dumps(given).encode(),
            capture_output=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Trial(None, f"it did not end within {limit:.0f} s", is_lasting=False)
    except OSError as error:
        return Trial(None, f"it could not be started: {error.strerror}", is_lasting=False)
    return _read_trial(child)


def memory_path(cache: Path, facts: object) -> Path:
    """Where trials under these facts are remembered; `facts` are what JSON can say."""
    key = hashlib.sha256(json.dumps(["speed", METHOD, facts]).encode()).hexdigest()[:24]
    return cache / "probes" / f"{key}.json"


def recall(memory: Path, names: tuple[str, ...]) -> dict[str, Trial] | None:
    """The trials of all these backends; None when they are not there or make no sense."""
    try:
        if memory.stat().st_size > MEMORY_BYTES_MAX:
            return None
        kept = json.loads(memory.read_text(encoding="utf-8"))
        trials = {name: Trial(_speed(kept[name]), kept[name].get("failure")) for name in names}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return trials if any(trial.tokens_per_s for trial in trials.values()) else None


def remember(
    memory: Path, trials: Mapping[str, Trial], model: Path | None, distributions: Iterable[str]
) -> None:
    """Keep trials of this model and these libraries; without that they are only made again."""
    kept = {
        name: {"tokens_per_s": trial.tokens_per_s, "failure": trial.failure}
        for name, trial in trials.items()
    }
    probes.keep(memory, kept, model, distributions)


@contextmanager
def undisturbed(cache: Path, lock: str = "measuring.lock") -> Iterator[None]:
    """Only one process measures at a time: two would halve each other's figures."""
    with ExitStack() as stack:
        with suppress(OSError):
            folder = cache / "probes"
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / lock))
        yield


def run_trial(name: str, settings: Mapping[str, Any], sequences: int) -> float:
    """Tokens of completions a second, measured in this process: what the child does."""
    backend = load(name, settings)
    try:
        return Course(backend, sequences).speed()
    finally:
        backend.close()


class Course:
    """The passes of one trial, in order.

    Of each kind the fastest counts: first ones set up what later ones use, and whatever else runs
    on the machine only ever slows a pass down.
    """

    def __init__(self, backend: Backend, sequences: int) -> None:
        self._backend = backend
        self._sequences = sequences
        self._number = 0
        length_max = backend.traits.model_len_max
        self._prompt = min(PROMPT_TOKENS, max(length_max // 2, 2))
        self._steps = max(min(STEPS_MAX, length_max - self._prompt), 1)

    def speed(self) -> float:
        """Tokens a second while each sequence takes a usual prompt and writes its completion."""
        token_s = self._prefill_s() / self._prompt
        step_s = self._decode_s()
        request_s = self._sequences * token_s * PROMPT_TOKENS + COMPLETION_TOKENS * step_s
        return self._sequences * COMPLETION_TOKENS / request_s

    def _prefill_s(self) -> float:
        """Seconds of one prompt; all sequences have theirs afterwards."""
        taken = [self._prefill((self._open(0),), 0)]
        # Even where there is one sequence, more than a first pass is wanted.
        taken.append(self._prefill((Release(0), self._open(0)), 0))
        for slot in range(1, self._sequences):
            if sum(taken) < PREFILL_S:
                taken.append(self._prefill((self._open(slot),), slot))
            else:
                copied = (Copy(0, slot, self._prompt - 1), self._open(slot))
                self._prefill(copied, slot, start=self._prompt - 1)
        return min(taken)

    def _prefill(
        self, operations: tuple[MemoryOperation, ...], slot: int, *, start: int = 0
    ) -> float:
        tokens = tuple(self._token(slot + index) for index in range(start, self._prompt))
        return self._run(operations, (Entry(slot, start, tokens, wants_token=True),))

    def _decode_s(self) -> float:
        """Seconds of one pass that adds a token to every sequence."""
        taken: list[float] = []
        while len(taken) < self._steps and (len(taken) < STEPS_MIN or sum(taken) < DECODE_S):
            start = self._prompt + len(taken)
            entries = tuple(
                Entry(slot, start, (), wants_token=True, continues=True)
                for slot in range(self._sequences)
            )
            taken.append(self._run((), entries))
        return min(taken)

    def _run(self, operations: tuple[MemoryOperation, ...], entries: tuple[Entry, ...]) -> float:
        self._number += 1
        start = perf_counter()
        outcome = self._backend.execute(Batch(self._number, operations, entries))
        seconds = perf_counter() - start
        for sample in outcome.samples:
            if sample.fault is not None:
                raise ModelError(f"{sample.fault.rstrip('.')}; its weights are damaged.")
        return seconds

    def _open(self, slot: int) -> Open:
        return Open(slot, Sampling(seed=0, prompt_count=self._prompt))

    def _token(self, index: int) -> int:
        return index * 37 % len(self._backend.vocabulary.pieces)


def _trimmed(settings: Mapping[str, Any], sequences: int) -> dict[str, Any]:
    """The same layout of memory, and no more of it than a trial needs."""
    trimmed = dict(settings) | {
        "slots": sequences,
        "kv_tokens": sequences * SLOT_TOKENS,
        "max_num_batched_tokens": max(int(settings["max_num_batched_tokens"]), PROMPT_TOKENS),
    }
    if trimmed.get("slot_tokens_max"):
        trimmed["slot_tokens_max"] = SLOT_TOKENS
    return trimmed


def model_bytes(model: Path) -> int:
    """What a model takes on the disk, a file or a folder."""
    try:
        return (
            sum(file.stat().st_size for file in model.iterdir())
            if model.is_dir()
            else size_of(model)
        )
    except OSError:
        return 0  # the child will say what is wrong with it


def _read_trial(child: subprocess.CompletedProcess[bytes]) -> Trial:
    lines = child.stdout.decode("utf-8", "replace").split("\n")
    told = " ".join(lines).strip()[:FAILURE_CHARACTERS_MAX].rstrip(".")
    if child.returncode == EXIT_REFUSED:
        return Trial(None, told, is_lasting=False)
    if child.returncode == -signal.SIGKILL:
        return Trial(None, "it was killed, probably for lack of memory", is_lasting=False)
    if child.returncode < 0:
        return Trial(None, f"it crashed ({signal.Signals(-child.returncode).name})")
    if child.returncode != 0:
        lines = child.stderr.decode("utf-8", "replace").strip().split("\n")
        last = lines[-1][:FAILURE_CHARACTERS_MAX]
        return Trial(None, f"it ended with status {child.returncode}: {last}", is_lasting=False)
    try:
        # A library may have written before it.
        return Trial(_speed(json.loads([line for line in lines if line][-1])))
    except (ValueError, KeyError, TypeError, IndexError):
        return Trial(None, "it ended without a figure")


def _speed(kept: Mapping[str, Any]) -> float | None:
    """The figure in what a child or an earlier process wrote. Raises where it makes no sense."""
    speed = kept["tokens_per_s"]
    if speed is None and isinstance(kept["failure"], str):
        return None
    if not isinstance(speed, float) or not math.isfinite(speed) or speed <= 0:
        raise ValueError(speed)
    return speed


def main() -> int:
    """The child: 0 and a figure, or EXIT_REFUSED and a sentence."""
    given = json.load(sys.stdin)
    # A trial that nobody waits for would only slow the next one down.
    if not die_with_parent(given["parent"]):
        return EXIT_REFUSED
    try:
        speed = run_trial(given["backend"], given["settings"], given["sequences"])
    except JitneyError as error:
        sys.stdout.write(f"{error}\n")
        return EXIT_REFUSED
    sys.stdout.write(f"\n{json.dumps({'tokens_per_s': speed})}\n")
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Native libraries may hang in their clean-up, and nothing here needs one.
    os._exit(status)
