"""Tokens known, tokens computed, and what follows from the two."""

import pytest

from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.sequence import SequenceState, make_sequences
from jitney.errors import ContextLengthExceeded, InvalidRequest
from tests.unit.core.sequences import EOS, sequence


def request(prompt_count: int, **given: int) -> Request:
    params = SamplingParams(**given)  # type: ignore[arg-type]
    return Request(id=RequestId("a"), prompt=(1,) * prompt_count, params=params, seed=5)


def test_what_can_never_fit_is_refused() -> None:
    """Guards the door: a prompt that leaves no room for one token would wait for ever."""
    with pytest.raises(ContextLengthExceeded):
        make_sequences(request(10), frozenset({EOS}), 10, 0.0)
    with pytest.raises(InvalidRequest):
        make_sequences(request(0), frozenset({EOS}), 10, 0.0)
    assert make_sequences(request(9), frozenset({EOS}), 10, 0.0)[0].known_max == 10


def test_completions_draw_for_themselves_and_the_first_as_if_alone() -> None:
    """Guards `n`: equal seeds would give equal texts, another first seed another answer."""
    made = make_sequences(request(3, n=4), frozenset({EOS}), 100, 0.0)
    seeds = [each.sampling.seed for each in made]
    assert seeds[0] == 5
    assert len(set(seeds)) == 4
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)


def test_the_last_token_in_flight_is_followed_by_nothing() -> None:
    """Guards run-ahead: no position beyond the limit is ever planned."""
    one = sequence(tokens_max=2)
    one.planned, one.pending = 3, 1
    assert one.wanted_count == 1
    one.tokens.append(7)
    one.planned = 4
    assert one.wanted_count == 0


def test_only_moves_of_the_diagram_are_legal() -> None:
    """Guards invariant 1: what has ended never runs again."""
    one = sequence()
    one.move(SequenceState.RUNNING)
    one.move(SequenceState.WAITING)
    one.move(SequenceState.FINISHED)
    with pytest.raises(AssertionError):
        one.move(SequenceState.RUNNING)


def test_losing_memory_keeps_every_token() -> None:
    """Guards resumption: known tokens are all that is needed to go on."""
    one = sequence()
    one.tokens.append(7)
    one.slot, one.computed, one.planned, one.pending = 3, 3, 4, 1
    one.forget_computed()
    assert one.slot is None
    assert (one.computed, one.planned, one.pending) == (0, 0, 0)
    assert one.tokens == [1, 2, 3, 7]
    assert one.wanted_count == 4
