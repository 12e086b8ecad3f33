"""Checks that a backend computes as numpy does: it continues four prompts of a tiny model together.

Called in the child of a trial. It writes the model and makes it ready like a real one. It computes
the probabilities with numpy as well: a backend may round, but not differ.
"""

import math
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any  # Any: settings are plain values until a backend has checked them

from jitney.backends.kinds import kind_of
from jitney.backends.trials.trial_batches import TrialBatches
from jitney.core.backend import Backend
from jitney.core.batch import Sampling
from jitney.errors import ModelError
from jitney.models.tiny import TinyShape, tiny_logprobs, write_tiny_gguf

SEED = 1
SHAPE = TinyShape(packed=True)
PROMPTS = 4
PROMPT_TOKENS = 40
COMPLETION_TOKENS = 8
SIZES = {"slots": PROMPTS, "kv_tokens": 1024, "max_num_batched_tokens": 256}
DIFFERENCE_MAX = 0.5
"""Mean distance of log probabilities. Weights and activations of 8 bits, or bfloat16, have 0.2 or
less. A wrong kernel has several."""


def check_backend(name: str, numbers: Mapping[str, Any]) -> None:
    """Try the backend in this process. Raises ModelError where it computes something else."""
    kind = kind_of(name)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny.gguf"
        write_tiny_gguf(model, seed=SEED, shape=SHAPE)
        values = kind.trial_values(model, Path(folder), numbers) | SIZES
        with closing(kind.load(values)) as backend:
            difference = mean_difference(backend)
    if not difference <= DIFFERENCE_MAX:
        raise ModelError("it computes wrongly on this processor.")


def prompt(number: int) -> tuple[int, ...]:
    """The tokens of one prompt, without control tokens."""
    offsets = range(PROMPT_TOKENS)
    return tuple(4 + (number * 61 + at * 37 + at * at * 5) % 256 for at in offsets)


def mean_difference(backend: Backend) -> float:
    """How far the backend is from numpy for four prompts and their greedy continuations."""
    sampling = Sampling(seed=0, prompt_count=PROMPT_TOKENS, logprobs=0, prompt_logprobs=0)
    batches, slots = TrialBatches(backend, sampling), range(PROMPTS)
    batches.open(*slots)
    texts = [list(prompt(slot)) for slot in slots]
    entries = [batches.span(slot, texts[slot]) for slot in slots]
    logprobs: list[list[float]] = [[] for _ in slots]
    for _ in range(COMPLETION_TOKENS):
        for slot, sample in enumerate(batches.run(entries)):
            if sample.token is None or sample.logprob is None:
                return math.inf
            texts[slot].append(sample.token)
            logprobs[slot] += [each.logprob for each in (*sample.prompt_logprobs, sample.logprob)]
        entries = [batches.next_token(slot) for slot in slots]
    distances = [
        abs(found - expected)
        for text, row in zip(texts, logprobs, strict=True)
        for found, expected in zip(row, _expected(text), strict=True)
    ]
    return sum(distances) / len(distances)


def _expected(text: list[int]) -> list[float]:
    """The log probability of each token but the first, by numpy."""
    rows = tiny_logprobs(tuple(text), seed=SEED, shape=SHAPE)
    return [float(rows[at, token]) for at, token in enumerate(text[1:])]
