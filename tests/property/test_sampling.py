"""The fast sampler chooses what the reference chooses, for any row and any parameters."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from jitney.core.batch import Sampling
from jitney.sampling.choose import best_ids
from jitney.sampling.sampler import SlotSampler
from tests import reference_sampler as reference


@st.composite
def rows(draw: st.DrawFn) -> NDArray[np.float32]:
    """Rows of every temper: peaked, flat, with ties, with impossible tokens, of any length."""
    size = draw(st.sampled_from([1, 2, 5, 127, 128, 129, 300, 2000, 5000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    row = rng.normal(scale=draw(st.sampled_from([0.0, 0.01, 1.0, 4.0, 30.0])), size=size)
    if draw(st.booleans()):
        row = np.round(row)
    if draw(st.booleans()):
        row[rng.integers(0, size, max(1, size // 50))] += 10
    if draw(st.booleans()):
        row[rng.integers(0, size, size // 3)] = -np.inf
    return row.astype(np.float32)


@st.composite
def samplings(draw: st.DrawFn) -> Sampling:
    def some(default: float, *others: float) -> float:
        return draw(st.one_of(st.just(default), st.sampled_from(others)))

    return Sampling(
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        prompt_count=3,
        temperature=some(1.0, 0.0, 1e-6, 1e-4, 0.1, 0.7, 2.0),
        top_k=int(some(0, -1, 1, 2, 40, 500, 10**6)),
        top_p=some(1.0, 1e-6, 0.1, 0.5, 0.9, 0.95, 0.999999),
        min_p=some(0.0, 0.001, 0.1, 0.5, 1.0),
        repetition_penalty=some(1.0, 0.5, 1.1, 2.0),
        frequency_penalty=some(0.0, -1.0, 0.3),
        presence_penalty=some(0.0, 0.4),
        logit_bias=draw(st.sampled_from([(), ((0, 3.0), (4, -100.0), (9999, 1.0))])),
        min_tokens=draw(st.sampled_from([0, 3])),
        end_tokens=(1, 2),
        logprobs=draw(st.sampled_from([None, 0, 5])),
    )


@settings(max_examples=200, deadline=None)
@given(rows(), samplings(), st.lists(st.integers(0, 130), min_size=3, max_size=8))
def test_the_sampler_chooses_the_token_of_the_reference(
    row: NDArray[np.float32], sampling: Sampling, tokens: list[int]
) -> None:
    """Guards every shortcut of the fast path: thresholds, block sums, float32, ties."""
    expected = reference.sample(row, sampling, tokens)
    found = SlotSampler(sampling).sample(tokens, row)
    assert (found.token, found.fault) == (expected.token, expected.fault)
    if expected.logprob is not None:
        assert found.logprob is not None
        assert found.logprob.logprob == pytest.approx(expected.logprob.logprob, abs=1e-4)
        assert [token for token, _ in found.logprob.top] == [
            token for token, _ in expected.logprob.top
        ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"top_p": 0.9},
        {"top_k": 50},
        {"top_k": 50, "top_p": 0.95, "min_p": 0.005},
        {"min_p": 0.02},
    ],
)
def test_draws_from_a_row_of_a_models_size_equal_the_reference(changes: dict[str, float]) -> None:
    """Guards the paths that only long rows take: few candidates, many blocks. Seeds are fixed."""
    rng = np.random.default_rng(5)
    row = rng.normal(scale=2.5, size=49_152).astype(np.float32)
    row[rng.integers(0, len(row), 40)] += 9
    sampling = Sampling(seed=9, prompt_count=0, temperature=1.0, **changes)  # type: ignore[arg-type]
    sampler = SlotSampler(sampling)
    chosen: list[int | None] = []
    for position in range(60):
        tokens = [0] * position
        chosen.append(sampler.sample(tokens, row).token)
        assert chosen[-1] == reference.sample(row, sampling, tokens).token
    assert len(set(chosen)) > 3


def test_frequencies_follow_the_probabilities() -> None:
    """Guards the draw as a whole. Fixed seeds; 4,000 draws deviate by 32 at most at one sigma."""
    probabilities = np.array([0.1, 0.2, 0.3, 0.4])
    row = np.log(probabilities).astype(np.float32)
    sampler = SlotSampler(Sampling(seed=2, prompt_count=0, temperature=1.0))
    counts = [0, 0, 0, 0]
    tokens: list[int] = []
    for _ in range(4000):
        chosen = sampler.sample(tokens, row).token
        assert chosen is not None
        counts[chosen] += 1
        tokens.append(0)
    assert counts == pytest.approx(list(4000 * probabilities), abs=130)


@settings(max_examples=200, deadline=None)
@given(rows(), st.integers(1, 600))
def test_best_ids_are_the_best_in_order_of_id(row: NDArray[np.float32], count: int) -> None:
    """Guards the preselection by block maxima, ties at its edge above all."""
    expected = np.sort(np.argsort(-row, kind="stable")[:count])
    assert best_ids(row, count).tolist() == expected.tolist()
