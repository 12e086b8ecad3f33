"""Draws on the device, against the sampler on the host."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch

from jitney.backends.torch.kernels import choice
from jitney.backends.torch.kernels.best import best_tokens
from jitney.backends.torch.kernels.choice import Draws, choose_tokens
from jitney.core.batch import Sampling
from jitney.sampling.draw import uniform
from jitney.sampling.sampler import SlotSampler

GREEDY = Sampling(seed=1, prompt_count=0)
HOT = dataclasses.replace(GREEDY, temperature=0.9)
SAMPLINGS = {
    "greedy": GREEDY,
    "temperature": HOT,
    "top_k": dataclasses.replace(HOT, top_k=7),
    "top_p": dataclasses.replace(HOT, top_p=0.7),
    "min_p": dataclasses.replace(HOT, min_p=0.2),
    "all": dataclasses.replace(HOT, top_k=20, top_p=0.9, min_p=0.01),
    "one": dataclasses.replace(HOT, top_p=1e-9),
}


def _choose(
    logits: torch.Tensor, samplings: list[Sampling], position: int
) -> tuple[list[int], list[int]]:
    numbers = [
        [each.temperature, each.top_p, each.min_p, uniform(each.seed, position)]
        for each in samplings
    ]
    counts = [[each.top_k, slot] for slot, each in enumerate(samplings)]
    tokens = torch.zeros(len(logits), dtype=torch.int32)
    sampled = torch.zeros(len(logits), dtype=torch.int32)
    draws = Draws(
        torch.tensor(numbers, dtype=torch.float64), torch.tensor(counts, dtype=torch.int32)
    )
    choose_tokens(logits, best_tokens(logits), draws, sampled, tokens)
    return tokens.tolist(), sampled.tolist()


@pytest.mark.parametrize("kind", ["spread", "equal", "steps"])
def test_tokens_are_those_of_the_host(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request must get the same text wherever its tokens are chosen; also among equal logits."""
    monkeypatch.setattr(choice, "CHUNK", 16)
    generator = np.random.default_rng(0)
    spread = generator.normal(scale=3.0, size=24).astype(np.float32)
    row = {"spread": spread, "equal": np.zeros_like(spread), "steps": np.round(spread)}[kind]
    row[3] = -np.inf
    samplings = list(SAMPLINGS.values())
    logits = torch.from_numpy(np.tile(row, (len(samplings), 1)))
    position = 5
    want = [SlotSampler(each).sample([0] * position, row).token for each in samplings]
    tokens, sampled = _choose(logits, samplings, position)
    assert dict(zip(SAMPLINGS, tokens, strict=True)) == dict(zip(SAMPLINGS, want, strict=True))
    assert sampled == tokens


def test_rows_without_a_choice_say_why() -> None:
    """Such a row is a fault of its sequence; the pass after it still needs some token."""
    logits = torch.zeros(2, 20)
    logits[0, 4] = torch.nan
    logits[1] = -torch.inf
    tokens, sampled = _choose(logits, [HOT, GREEDY], 2)
    assert tokens == [choice.NOT_A_NUMBER, choice.NOTHING_LEFT]
    assert sampled == [0, 0]
