"""Tests of `jitney.server.settings`: the largest body that a model has use for."""

import pytest

from jitney.server.limits import BODY_BYTES_MIN
from jitney.server.settings import body_bytes_for


@pytest.mark.parametrize(
    ("model_len_max", "expected"),
    [(1, BODY_BYTES_MIN), (65_536, BODY_BYTES_MIN), (131_072, 4_194_304), (1_048_576, 33_554_432)],
)
def test_the_largest_body_follows_from_the_length_of_the_model(
    model_len_max: int, expected: int
) -> None:
    """Guards the interpreter against bodies that no model here can use, and long prompts."""
    assert body_bytes_for(model_len_max) == expected
