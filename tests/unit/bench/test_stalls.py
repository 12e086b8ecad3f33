"""A long prompt beside streams, on the fake backend."""

import pytest

from jitney.bench.stalls import BOUNDED, LARGE, STREAM_COUNT, measure
from jitney.config import Settings
from jitney.errors import SetupError

FAKE = Settings(backend="fake", max_num_batched_tokens=4096)


def test_both_ways_have_gaps_and_a_first_token() -> None:
    """Guards the figures, and that the prompt is whole in one way and in slices in the other."""
    result = measure(FAKE, prompt_count=2000, arrives_s=0.01, runs=1, seed=1, say=lambda text: None)
    ways = result.figures["ways"]
    assert isinstance(ways, dict)
    assert list(ways) == [LARGE, BOUNDED]
    for (found,) in ways.values():
        assert found["ttft_s"] > 0
        gaps = [gap for _, gap in found["gaps_of_one_stream"]]
        assert 0 < max(gaps) == found["worst_gap_ms"]
    # Before anything is known of its cost, a slice has 64 tokens.
    assert len(ways[LARGE][0]["gaps_of_one_stream"]) <= 4
    assert len(ways[BOUNDED][0]["gaps_of_one_stream"]) >= 2000 / 64 / 2
    assert f"{STREAM_COUNT} streams" in result.title


def test_streams_that_are_over_before_the_prompt_comes_are_no_measurement() -> None:
    """Guards a figure that would mean nothing."""
    with pytest.raises(SetupError, match="take a shorter prompt"):
        measure(FAKE, prompt_count=10, arrives_s=3.0, runs=1, seed=1, say=lambda text: None)
