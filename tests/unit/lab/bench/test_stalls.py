"""A long prompt beside streams, on the fake backend."""

import pytest

from jitney.config import Settings
from jitney.errors import SetupError
from jitney_lab.bench import stalls
from jitney_lab.bench.in_process import EngineRun
from jitney_lab.bench.stalls import BOUNDED, LARGE, STREAM_COUNT, STREAM_PROMPT_COUNT, measure
from jitney_lab.bench.timing import RequestTimes
from tests.bench_for_tests import KV_TOKENS, outlast_pauses

PROMPT_COUNT = 2000
CHUNK = 64
FAKE = Settings(
    backend="fake", max_num_batched_tokens=4096, prefill_chunk=CHUNK, kv_tokens=KV_TOKENS
)


def prompt_spans(run: EngineRun) -> list[int]:
    """How many tokens of the long prompt each tick computed, of those that computed any."""
    members = [member for tick in run.ticks for member in tick.members]
    # Streams have shorter prompts, and then one token in each tick.
    (long,) = {
        each.request_id
        for each in members
        if each.length > 1 and each.start + each.length > STREAM_PROMPT_COUNT
    }
    return [each.length for each in members if each.request_id == long]


def test_both_ways_have_gaps_and_a_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the figures, and that the prompt is whole in one way and in slices in the other."""
    runs: list[EngineRun] = []
    figures = stalls._figures

    def noted(run: EngineRun) -> dict[str, object]:
        runs.append(run)
        return figures(run)

    monkeypatch.setattr(stalls, "_figures", noted)
    outlast_pauses(monkeypatch)
    monkeypatch.setattr(stalls, "ARRIVES_S", 0.01)
    result = measure(FAKE, prompt_count=PROMPT_COUNT, runs=1, seed=1, say=lambda text: None)
    ways = result.figures["ways"]
    assert isinstance(ways, dict)
    assert list(ways) == [LARGE, BOUNDED]
    for (found,) in ways.values():
        assert found["ttft_s"] > 0
        gaps = [gap for _, gap in found["gaps_of_one_stream"]]
        assert 0 < max(gaps) == found["worst_gap_ms"]
    whole, sliced = map(prompt_spans, runs)
    assert len(whole) == 1
    assert max(sliced) <= CHUNK
    assert f"{STREAM_COUNT} streams" in result.title


def stalled(stall_s: float, *, first_at: float = 3.0) -> EngineRun:
    """Streams with a token each 0.1 s; the second waits once, for a prompt that comes at 1 s."""
    even = [0.1 * number for number in range(60)]
    streams = [RequestTimes(sent_at=0.0, token_times=list(even)) for _ in range(STREAM_COUNT)]
    streams[1].token_times = [at if at < 1.5 else at + stall_s for at in even]
    long = RequestTimes(sent_at=1.0, token_times=[first_at])
    return EngineRun([*streams, long], [], 6.0, STREAM_COUNT + 1)


@pytest.mark.parametrize("stall_s", [0.9, 0.1])
def test_the_gaps_that_are_drawn_are_of_the_stream_with_the_worst(stall_s: float) -> None:
    """Guards the picture: it must show the gap that the table names."""
    found = stalls._figures(stalled(stall_s))
    gaps = found["gaps_of_one_stream"]
    assert isinstance(gaps, list)
    assert max(gap for _, gap in gaps) == found["worst_gap_ms"] == 100.0 + 1000.0 * stall_s
    assert found["ttft_s"] == 2.0
    # All of them are of one stream: they follow each other.
    assert [at_s for at_s, _ in gaps] == sorted(at_s for at_s, _ in gaps)


def test_streams_that_had_not_begun_are_one_sentence() -> None:
    with pytest.raises(SetupError, match="No stream had begun"):
        stalls._figures(stalled(0.0, first_at=0.0))


def test_streams_that_are_over_before_the_prompt_comes_are_no_measurement() -> None:
    """Guards a figure that would mean nothing."""
    streams = [RequestTimes(sent_at=0.0, token_times=[0.1, 0.2]) for _ in range(STREAM_COUNT)]
    long = RequestTimes(sent_at=1.0, token_times=[1.1])
    # One that goes on is not enough.
    streams[0].token_times.append(1.2)
    with pytest.raises(SetupError, match="take a shorter prompt"):
        stalls._figures(EngineRun([*streams, long], [], 1.2, STREAM_COUNT + 1))


def test_prompts_of_the_streams_are_whole_beside_a_short_prompt() -> None:
    """Guards the comparison: they were computed nine tokens at a time, in the large way only."""
    large = stalls._changes(1)[stalls.LARGE]
    streams = stalls.STREAM_COUNT * stalls.STREAM_PROMPT_COUNT
    assert (large["max_num_batched_tokens"], large["prefill_chunk"]) == (streams, streams)
