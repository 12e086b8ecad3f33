"""Models that two backends are asked about, and how far apart their answers are.

`tests.families` compares OpenVINO with llama.cpp, `tests/e2e/test_torch.py` PyTorch.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jitney.backends.kinds import load
from jitney.core.backend import Backend
from jitney.core.batch import Open, Release
from jitney.tokenizers.tokenizer import read_tokenizer
from tests.conformance.driver import Driver, greedy
from tests.families_for_tests import FAMILIES, write_family

LENGTHS = (8, 40, 150, 400)
"""Tokens of the prompts: a rotary embedding that is a little wrong shows late."""
LENGTHS_REAL = (64, 1100)
LENGTHS_LONG = (1100,)
OBSERVED = 4
"""Positions at the end of each prompt whose logprobs are compared."""
LIKELY = -4.0
ROOM = 512
"""Tokens of memory: the checkpoints' original length, beyond which some have other factors."""
ROOM_REAL = 2048

Listed = list[dict[int, float]]
"""The logprobs of the likeliest tokens at each position that was observed."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and what it is asked."""

    model: Path
    prompts: tuple[tuple[int, ...], ...]
    room: int = ROOM


def tiny_case(folder: Path, name: str, lengths: Sequence[int] = LENGTHS, room: int = ROOM) -> Case:
    """A random checkpoint of a family, written into the folder."""
    model = folder / f"{name}.gguf"
    write_family(model, FAMILIES[name])
    random = np.random.default_rng(0)
    # The first four tokens are special.
    prompts = (random.integers(4, 268, length) for length in lengths)
    return Case(model, tuple(tuple(map(int, prompt)) for prompt in prompts), room)


def real_case(model: Path, text: str, lengths: Sequence[int] = LENGTHS_REAL) -> Case:
    """A model that somebody has, asked about beginnings of a text."""
    tokenizer = read_tokenizer(model)
    tokens = tuple(tokenizer.encode(text, special=False))
    first = (tokenizer.vocabulary.bos_token,) if tokenizer.vocabulary.adds_bos else ()
    begins = tuple(token for token in first if token is not None)
    prompts = tuple((begins + tokens)[:length] for length in lengths)
    return Case(model, prompts, ROOM_REAL)


def by_llamacpp(case: Case) -> Listed:
    """What llama.cpp says, on one thread and without its fused attention."""
    settings = {
        "model": str(case.model),
        "kv_tokens": case.room,
        "slots": 1,
        "max_num_batched_tokens": case.room,
        "threads": 1,
        "flash_attention": False,
    }
    with closing(load("llamacpp", settings)) as backend:
        return observed(backend, case)


def difference(found: Listed, expected: Listed) -> float:
    """The largest difference in the logprob of a token that is likely by `expected`."""
    assert len(found) == len(expected) > 0, "each side is to be asked the same"
    gaps = [
        # One that is not listed is at most as likely as the last that is.
        abs(here.get(token, min(here.values())) - logprob)
        for here, there in zip(found, expected, strict=True)
        for token, logprob in there.items()
        if logprob >= LIKELY
    ]
    return max(gaps)


def observed(backend: Backend, case: Case) -> Listed:
    """What a backend says at the last positions of each prompt."""
    driver = Driver(backend)
    listed: Listed = []
    for prompt in case.prompts:
        driver.run(operations=[Open(0, greedy(len(prompt)))])
        samples = driver.observe(0, prompt, len(prompt) - OBSERVED, span=case.room)
        driver.run(operations=[Release(0)])
        for sample in samples:
            assert sample.logprob is not None, sample.fault
            listed.append(dict(sample.logprob.top))
    return listed
