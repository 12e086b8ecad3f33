"""The tiny model in numpy: what backends are compared with must itself be right."""

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf", reason="needs the gguf package")

from jitney.backends.kinds import load
from jitney.core.batch import Batch, Entry, Open, Sampling
from jitney.models.tiny import TinyShape, tiny_logprobs, write_tiny_gguf
from tests.backends_for_tests import needs

TEXT = tuple(4 + (at * 37 + at * at * 5) % 256 for at in range(48))
TOLERANCE = 0.1
"""llama.cpp with float32 weights is at 0.03: its keys and values are of 16 bits."""


def told_by_llamacpp(model: Path) -> list[float]:
    """The log probability of each token of the text but the first, and of the greedy next one."""
    sizes = {"slots": 1, "kv_tokens": 256, "max_num_batched_tokens": 64, "threads": 1}
    backend = load("llamacpp", {"model": str(model), **sizes})
    sampling = Sampling(seed=0, prompt_count=len(TEXT), logprobs=0, prompt_logprobs=0)
    batch = Batch(0, (Open(0, sampling),), (Entry(0, 0, TEXT, wants_token=True),))
    try:
        sample = backend.execute(batch).samples[0]
    finally:
        backend.close()
    assert sample.logprob is not None
    return [each.logprob for each in (*sample.prompt_logprobs, sample.logprob)]


@pytest.mark.parametrize(
    "shape",
    [TinyShape(), TinyShape(layers=3, width=64, heads=2, heads_kv=1, inner=96), TinyShape(heads=8)],
    ids=["usual", "small", "many heads"],
)
def test_numpy_computes_what_llamacpp_does(tmp_path: Path, shape: TinyShape) -> None:
    """Guards the reference: attention, its groups, positions, norms and the gate, in any shape."""
    needs("llamacpp")
    model = tmp_path / "tiny.gguf"
    write_tiny_gguf(model, seed=3, shape=shape)
    rows = tiny_logprobs(TEXT, seed=3, shape=shape)
    expected = [*(rows[at, token] for at, token in enumerate(TEXT[1:])), rows[-1].max()]
    assert told_by_llamacpp(model) == pytest.approx(expected, abs=TOLERANCE)


def test_each_row_is_a_distribution_of_what_came_before() -> None:
    """Guards causality: a token that follows changes nothing."""
    rows = tiny_logprobs(TEXT)
    assert rows.shape == (len(TEXT), 268)
    assert np.exp(rows).sum(axis=1) == pytest.approx(1.0)
    assert tiny_logprobs(TEXT[:9]) == pytest.approx(rows[:9])


def test_the_seed_the_order_and_the_position_matter() -> None:
    """Guards the trial: a model that ignores something would not show that it is ignored."""
    rows = tiny_logprobs(TEXT)
    turned = tiny_logprobs((TEXT[1], TEXT[0], *TEXT[2:]))
    later = tiny_logprobs((TEXT[0], TEXT[1], TEXT[0], TEXT[1]))
    for other in (tiny_logprobs(TEXT, seed=2)[-1], turned[-1]):
        assert np.abs(other - rows[-1]).mean() > 0.5
    assert np.abs(later[3] - rows[1]).mean() > 0.5
    assert math.isclose(later[1, 5], rows[1, 5])
