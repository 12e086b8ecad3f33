"""The child of `selftest`: lets a backend continue four prompts of a tiny model, together.

`python -m jitney.backends.trials.selftest_run` takes a backend's name and numbers as JSON on
standard input. The model is written here and made ready as a real one would be. Its probabilities
are computed by numpy as well: a backend may round, but not differ. Status 0 when they agree,
another one after a line that says what went wrong.
"""

import importlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: settings are plain values until a backend has checked them

from jitney.backends import load
from jitney.backends.trials.selftest import EXIT_NO_ROOM, EXIT_REFUSED
from jitney.core.backend import Backend
from jitney.core.batch import Batch, Entry, Open, Sampling
from jitney.errors import JitneyError, NoRoom
from jitney.models.tiny import TinyShape, tiny_logprobs, write_tiny_gguf
from jitney.sandbox.die_with_parent import die_with_parent

SEED = 1
SHAPE = TinyShape(packed=True)
PROMPTS = 4
PROMPT_TOKENS = 40
COMPLETION_TOKENS = 8
SIZES = {"slots": PROMPTS, "kv_tokens": 1024, "max_num_batched_tokens": 256}
DIFFERENCE_MAX = 0.5
"""Mean distance of log probabilities. Weights and activations of 8 bits, or bfloat16, are at 0.2 or
below; a wrong kernel is at several."""


def run(name: str, numbers: Mapping[str, Any]) -> str | None:
    """Try the backend in this process. Why it cannot be used, or None when it can."""
    usable = importlib.import_module(f"jitney.backends.{name}.usable")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny.gguf"
        write_tiny_gguf(model, seed=SEED, shape=SHAPE)
        backend = load(name, usable.trial_settings(model, Path(folder), numbers) | SIZES)
        try:
            difference = mean_difference(backend)
        finally:
            backend.close()
    is_right = difference <= DIFFERENCE_MAX
    return None if is_right else "it computes wrongly on this processor"


def prompt(number: int) -> tuple[int, ...]:
    """The tokens of one of the prompts; none of them is a control token."""
    offsets = range(PROMPT_TOKENS)
    return tuple(4 + (number * 61 + at * 37 + at * at * 5) % 256 for at in offsets)


def mean_difference(backend: Backend) -> float:
    """How far the backend is from numpy over four prompts and their greedy continuations."""
    sampling = Sampling(seed=0, prompt_count=PROMPT_TOKENS, logprobs=0, prompt_logprobs=0)
    opened = tuple(Open(slot, sampling) for slot in range(PROMPTS))
    entries = tuple(Entry(slot, 0, prompt(slot), wants_token=True) for slot in range(PROMPTS))
    texts = [list(prompt(slot)) for slot in range(PROMPTS)]
    told: list[list[float]] = [[] for _ in range(PROMPTS)]
    for number in range(COMPLETION_TOKENS):
        outcome = backend.execute(Batch(number, opened if number == 0 else (), entries))
        for slot, sample in enumerate(outcome.samples):
            if sample.token is None or sample.logprob is None:
                return math.inf
            texts[slot].append(sample.token)
            told[slot] += [each.logprob for each in (*sample.prompt_logprobs, sample.logprob)]
        start = PROMPT_TOKENS + number
        entries = tuple(
            Entry(slot, start, (), wants_token=True, continues=True) for slot in range(PROMPTS)
        )
    distances = [
        abs(found - wanted)
        for text, row in zip(texts, told, strict=True)
        for found, wanted in zip(row, _expected(text), strict=True)
    ]
    return sum(distances) / len(distances)


def _expected(text: list[int]) -> list[float]:
    """The log probability of each token but the first, by numpy."""
    rows = tiny_logprobs(tuple(text), seed=SEED, shape=SHAPE)
    return [float(rows[at, token]) for at, token in enumerate(text[1:])]


def main() -> int:
    """The child."""
    given = json.load(sys.stdin)
    # Nobody reads what an orphan finds.
    if not die_with_parent(given["parent"]):
        return EXIT_REFUSED
    try:
        failure = run(given["backend"], given["numbers"])
        status = EXIT_REFUSED if failure else 0
    except NoRoom as error:
        failure, status = str(error), EXIT_NO_ROOM
    except JitneyError as error:
        failure, status = str(error), EXIT_REFUSED
    sys.stdout.write(f"\n{failure or ''}\n")
    return status


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Native libraries may hang in their clean-up, and nothing here needs one.
    os._exit(status)
