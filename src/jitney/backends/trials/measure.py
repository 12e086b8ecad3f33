"""Measures how fast a backend runs a model on this machine, in a child process.

The child is this module run as a program. It loads the backend, computes prompts and decodes for a
short time, and answers with the speed. Called at start-up, from any thread.
"""

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any  # Any: settings are plain values until a backend has checked them

from jitney.backends.kinds import load
from jitney.backends.trials.remembered import TrialResults
from jitney.backends.trials.trial_process import EXIT_REFUSED, TrialResult, answer, ask
from jitney.core.backend import Backend
from jitney.core.batch import Batch, Copy, Entry, MemoryOperation, Open, Release, Sampling
from jitney.errors import ModelError
from jitney.models.files import bytes_under
from jitney.models.parts import size_of

PROMPT_TOKENS = 128
COMPLETION_TOKENS = 64
"""The lengths of a usual request. The speed is for one such request per sequence."""
SLOT_TOKENS = 256
"""The memory of each sequence in a trial."""
STEPS_MAX = 48
STEPS_MIN = 3
DECODE_S = 1.5
PREFILL_S = 8.0
"""After this time, prompts are copies of the first one: large models are slow."""
START_S_MAX = 120.0
BYTES_PER_S_MIN = 20e6
"""The slowest disk that the time limit allows for."""
METHOD = 2
"""Part of the key of a remembered trial. Another way to measure needs another number."""


def measure(name: str, settings: Mapping[str, Any], sequences: int) -> TrialResult:
    """Measure a backend in a child, with only as much memory as the trial needs."""
    given = {
        "backend": name,
        "settings": _trimmed(settings, sequences),
        "sequences": sequences,
    }
    limit_s = START_S_MAX + model_bytes(Path(str(settings["model"]))) / BYTES_PER_S_MIN
    found = ask(__spec__.name, given, limit_s)
    if found.failure is None and not speed_of(found):
        return replace(found, failure="it ended without a figure")
    return found


def speed_of(answer: TrialResult) -> float:
    """Tokens of completions per second; 0 where the answer has no such figure."""
    speed = answer.found.get("tokens_per_s")
    if not isinstance(speed, float) or not math.isfinite(speed):
        return 0.0
    return max(speed, 0.0)


def is_settled(answers: TrialResults) -> bool:
    """Whether one backend has a figure, and the others would fail again.

    A backend may have refused for lack of memory, so that is not final.
    """
    return any(map(speed_of, answers.values())) and all(
        speed_of(each) or (each.failure and each.would_repeat and each.status != EXIT_REFUSED)
        for each in answers.values()
    )


def run_trial(name: str, settings: Mapping[str, Any], sequences: int) -> float:
    """Tokens of completions per second, measured in this process. Called in the child."""
    with closing(load(name, settings)) as backend:
        return SpeedMeasurement(backend, sequences).speed()


class SpeedMeasurement:
    """The passes of one measurement, in order.

    Of each kind of pass the fastest counts: the first ones prepare things for later ones, and other
    programs on the machine can only slow a pass down.
    """

    def __init__(self, backend: Backend, sequences: int) -> None:
        self._backend = backend
        self._sequences = sequences
        self._number = 0
        length_max = backend.traits.model_len_max
        self._prompt = min(PROMPT_TOKENS, max(length_max // 2, 2))
        self._steps = max(min(STEPS_MAX, length_max - self._prompt), 1)

    def speed(self) -> float:
        """Tokens per second where each sequence is a usual request."""
        token_s = self._prefill_s() / self._prompt
        step_s = self._decode_s()
        request_s = self._sequences * token_s * PROMPT_TOKENS + COMPLETION_TOKENS * step_s
        return self._sequences * COMPLETION_TOKENS / request_s

    def _prefill_s(self) -> float:
        """Seconds of one prompt. Afterwards all sequences have computed theirs."""
        taken = [self._prefill((self._open(0),), 0)]
        # A second pass is needed even for one sequence: the first one may be slow.
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
                raise ModelError(f"{sample.fault.message.rstrip('.')}; its weights are damaged.")
        return seconds

    def _open(self, slot: int) -> Open:
        return Open(slot, Sampling(seed=0, prompt_count=self._prompt))

    def _token(self, index: int) -> int:
        return index * 37 % len(self._backend.vocabulary.pieces)


def _trimmed(settings: Mapping[str, Any], sequences: int) -> dict[str, Any]:
    """The same layout of memory, but only as much as a trial needs."""
    trimmed = dict(settings) | {
        "slots": sequences,
        "kv_tokens": sequences * SLOT_TOKENS,
        "max_num_batched_tokens": max(int(settings["max_num_batched_tokens"]), PROMPT_TOKENS),
    }
    if trimmed.get("slot_tokens_max"):
        trimmed["slot_tokens_max"] = SLOT_TOKENS
    return trimmed


def model_bytes(model: Path) -> int:
    """The size of a model on the disk, a file or a folder."""
    try:
        return bytes_under(model) if model.is_dir() else size_of(model)
    except OSError:
        return 0  # the child reports what is wrong with it


def find(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The work of the child."""
    speed = run_trial(given["backend"], given["settings"], given["sequences"])
    return {"tokens_per_s": speed}


if __name__ == "__main__":
    answer(find)
