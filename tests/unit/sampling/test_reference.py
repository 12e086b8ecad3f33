"""Each parameter's meaning, checked by hand on rows small enough to work out."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from jitney.core.batch import Sampling
from tests import reference_sampler as reference

BAD = (math.nan, math.inf)


def row_of(*logits: float) -> NDArray[np.float32]:
    return np.array(logits, dtype=np.float32)


def greedy(**changes: object) -> Sampling:
    return Sampling(seed=0, prompt_count=2, **changes)  # type: ignore[arg-type]


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    """Guards determinism: ties must not depend on the order of a reduction."""
    assert reference.sample(row_of(1, 3, 3, 2), greedy(), [0, 0]).token == 1


def test_bias_moves_the_choice_and_tokens_outside_the_row_are_passed_over() -> None:
    """Guards a bias for a token that the model does not have."""
    sampling = greedy(logit_bias=((3, 5.0), (99, 100.0)))
    assert reference.sample(row_of(1, 3, 3, 2), sampling, [0, 0]).token == 3


def test_end_tokens_are_impossible_until_min_tokens_are_there() -> None:
    """Guards the count: the prompt does not belong to it."""
    sampling = greedy(min_tokens=2, end_tokens=(1,))
    logits = row_of(0, 9, 1)
    assert reference.sample(logits, sampling, [0, 0, 5]).token == 2
    assert reference.sample(logits, sampling, [0, 0, 5, 5]).token == 1


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    """Guards the sign: dividing a negative logit would reward the repetition."""
    sampling = greedy(repetition_penalty=2.0)
    adjusted = reference.adjust(row_of(4, -4, 4, -4), sampling, [0, 1])
    assert adjusted.tolist() == [2, -8, 4, -4]


def test_frequency_and_presence_count_the_completion_only() -> None:
    """Guards the boundary: prompt tokens are not penalised."""
    sampling = greedy(frequency_penalty=0.5, presence_penalty=1.0)
    adjusted = reference.adjust(row_of(4, 4, 4), sampling, [0, 0, 1, 1])
    assert adjusted.tolist() == [4, 2, 4]


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"top_k": 1}, {2}),
        ({"top_k": 2}, {0, 2}),
        ({"top_k": -1}, {0, 1, 2, 3}),
        ({"top_p": 0.5}, {2}),
        ({"top_p": 0.51}, {0, 2}),
        ({"top_p": 1e-9}, {2}),
        ({"min_p": 0.6}, {2}),
        ({"min_p": 0.4}, {0, 2}),
        ({"top_k": 3, "top_p": 0.9}, {0, 1, 2}),
    ],
)
def test_truncations_keep_the_stated_tokens(changes: dict[str, float], kept: set[int]) -> None:
    """Guards the edges of top_k, top_p and min_p; the probabilities are 2/8, 1/8, 4/8, 1/8."""
    logits = np.log(np.array([2, 1, 4, 1])).astype(np.float32)
    logits[2] = np.nextafter(logits[2], np.float32(9))  # a hair over a half, so that 0.5 is reached
    sampling = greedy(temperature=1.0, **changes)
    drawn = np.linspace(0, 1, 1000, endpoint=False)
    assert {reference.choose(logits, sampling, float(at)) for at in drawn} == kept


def test_the_draw_divides_the_line_by_id_in_proportion() -> None:
    """Guards the inverse CDF: order by id, half-open borders."""
    logits = np.log(np.array([0.25, 0.25, 0.5])).astype(np.float32)
    sampling = greedy(temperature=1.0)
    chosen = [reference.choose(logits, sampling, at) for at in (0.0, 0.24, 0.26, 0.49, 0.51, 0.99)]
    assert chosen == [0, 0, 1, 1, 2, 2]


def test_temperature_sharpens_and_flattens() -> None:
    """Guards the direction of the division."""
    logits = np.log(np.array([0.2, 0.8])).astype(np.float32)
    assert reference.choose(logits, greedy(temperature=0.5), 0.1) == 1
    assert reference.choose(logits, greedy(temperature=2.0), 0.3) == 0


def test_logprobs_are_those_of_the_model_whatever_the_parameters() -> None:
    """Guards the raw distribution: bias, penalties and temperature leave it alone."""
    logits = np.log(np.array([0.5, 0.25, 0.25])).astype(np.float32)
    sampling = greedy(temperature=2.0, logit_bias=((0, -100.0), (1, -100.0)), logprobs=2)
    found = reference.sample(logits, sampling, [0, 0]).logprob
    assert found is not None
    assert found.token == 2
    assert found.logprob == pytest.approx(math.log(0.25))
    assert [token for token, _ in found.top] == [0, 1]
    assert found.top[0][1] == pytest.approx(math.log(0.5))


def test_zero_logprobs_gives_the_chosen_one_and_none_gives_nothing() -> None:
    """Guards the difference between 0 and None."""
    none = reference.sample(row_of(1, 2), greedy(), [0, 0]).logprob
    zero = reference.sample(row_of(1, 2), greedy(logprobs=0), [0, 0]).logprob
    assert none is None
    assert zero is not None
    assert zero.top == ()


def test_nothing_left_is_a_fault_and_so_is_what_is_no_number() -> None:
    """Guards a mask that excludes everything, and a broken forward pass."""
    mask = np.zeros(3, dtype=np.bool_)
    assert reference.sample(row_of(1, 2, 3), greedy(), [0], mask).fault
    assert all(reference.sample(row_of(1, bad, 2), greedy(), [0]).fault for bad in BAD)
