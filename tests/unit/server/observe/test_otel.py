"""Spans: one for each request, with its times, events and attributes."""

from collections.abc import Mapping

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from opentelemetry.util.types import AttributeValue

from jitney.core.events import PreemptReason
from jitney.errors import BackendFailed
from jitney.records import Record
from jitney.server.observe.otel import Spans
from jitney.server.observe.recorder import Recorder
from tests.unit.server.observe.records_for_tests import (
    accepted,
    done,
    failed,
    member,
    moved,
    preempted,
    progressed,
    started,
    tick,
)


def exported(*records: Record) -> tuple[ReadableSpan, ...]:
    """The spans after these records went through recorder and spans, as an engine tells them."""
    exporter, recorder = InMemorySpanExporter(), Recorder(512)
    spans = Spans(recorder, "tiny", exporter)
    for record in records:
        recorder.take(record)
        spans.take(record)
    spans.close()
    return exporter.get_finished_spans()


def one_span(*records: Record) -> tuple[ReadableSpan, Mapping[str, AttributeValue]]:
    """The only span, and its attributes."""
    (span,) = exported(*records)
    assert span.attributes is not None
    return span, span.attributes


def test_a_request_becomes_one_span_with_its_events_in_order() -> None:
    """Guards the span of a request that was preempted on its way."""
    span, attributes = one_span(
        accepted(10.0, "a", 4),
        started(11.0, "a", 1.0),
        tick(12.0, 1, member("a", 0, 4, samples=True)),
        preempted(13.0, "a", PreemptReason.RECOMPUTED, "b"),
        tick(15.0, 2, member("a", 0, 5, samples=True), took_s=1.0),
        done(15.0, "a"),
    )
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == pytest.approx(5e9, abs=2000)
    assert [event.name for event in span.events] == [
        "started", "prefilled", "first token", "preempted", "resumed", "prefilled",
    ]  # fmt: skip
    assert attributes["gen_ai.request.model"] == "tiny"
    assert attributes["gen_ai.usage.input_tokens"] == 4
    assert attributes["gen_ai.usage.output_tokens"] == 2
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert "preempted once" in str(attributes["jitney.why"])
    assert span.status.status_code is StatusCode.UNSET


def test_a_request_that_moved_is_one_span_with_its_moves() -> None:
    """Guards the trace over a loss: whoever looks for a pause finds where it came from."""
    span, attributes = one_span(
        accepted(10.0, "a", 4),
        started(11.0, "a", 1.0, replica="r1"),
        progressed(12.0, "a", 1),
        moved(14.0, "a", 37),
        progressed(15.0, "a", 38),
        moved(17.0, "a", 60, to="r3"),
        done(20.0, "a"),
    )
    assert [event.name for event in span.events] == ["started", "first token", "moved", "moved"]
    told = [dict(event.attributes or {}) for event in span.events]
    assert told[0] == {"cached_tokens": 0, "replica": "r1"}
    assert told[2] == {
        "from": "r1", "to": "r2", "tokens": 37, "reason": "lost", "away_seconds": 0.5,
    }  # fmt: skip
    assert (attributes["jitney.replica"], attributes["jitney.moved_count"]) == ("r3", 2)
    assert attributes["gen_ai.usage.output_tokens"] == 2
    assert "moved twice to another replica" in str(attributes["jitney.why"])


def test_a_failed_request_is_a_failed_span() -> None:
    """Guards error rates that are computed from spans."""
    span, attributes = one_span(accepted(1.0, "a", 4), failed(2.0, "a", BackendFailed("broken")))
    assert span.status.status_code is StatusCode.ERROR
    assert attributes["error.type"] == "error"


def test_ticks_and_live_requests_make_no_span() -> None:
    """Guards the collector against a span per tick."""
    assert exported(accepted(1.0, "a", 4), tick(2.0, 1, member("a", 0, 4, samples=True))) == ()
