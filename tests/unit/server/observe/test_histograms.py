"""Histograms: their bounds, and which times of a request each of them has."""

from jitney.server.observe.histograms import token_bounds
from jitney.server.observe.recorder import Histogram
from tests.unit.server.observe.records_for_tests import (
    accepted,
    done,
    member,
    recorded,
    started,
    tick,
)


def test_a_value_on_a_bound_counts_below_it() -> None:
    """Guards Prometheus' rule that a bound is part of its bucket."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1]
    assert (sum(histogram.counts), histogram.total) == (5, 14.0)


def test_phases_are_measured_from_slot_to_first_to_last_token() -> None:
    """Guards prefill and decode times against each other's share."""
    recorder = recorded(
        accepted(0.0, "a", 4),
        started(1.0, "a", 1.0),
        tick(3.0, 1, member("a", 0, 4, samples=True)),
        tick(4.0, 2, member("a", 4, 1, samples=True)),
        tick(8.0, 3, member("a", 5, 1, samples=True)),
        done(9.0, "a"),
    )
    totals = {name: each.total for name, each in recorder.histograms().items()}
    assert (totals["first_token_seconds"], totals["prefill_seconds"]) == (3.0, 2.0)
    assert totals["generation_seconds"] == 5.0
    assert totals["vllm:request_inference_time_seconds"] == 7.0
    assert totals["vllm:request_time_per_output_token_seconds"] == 2.5
    gaps = recorder.histograms()["token_gap_seconds"]
    assert (gaps.total, sum(gaps.counts)) == (5.0, 2)


def test_a_copy_for_a_reader_does_not_change_any_more() -> None:
    """Guards a scrape: its numbers belong together, though the engine goes on."""
    recorder = recorded(accepted(0.0, "a", 4))
    before = recorder.histograms()
    recorder.take(started(1.0, "a", 1.0))
    recorder.take(tick(3.0, 1, member("a", 0, 4, samples=True)))
    after = recorder.histograms()
    for found, expected in ((before, (0, 0.0, 0)), (after, (1, 1.0, 4))):
        queued = found["queue_seconds"]
        assert (sum(queued.counts), queued.total, found.tokens_longest) == expected


def test_token_bounds_end_at_the_longest_sequence() -> None:
    """Guards the bounds of token histograms, which depend on the model."""
    assert token_bounds(100) == (1, 2, 5, 10, 20, 50, 100)
    assert token_bounds(99)[-1] == 50
