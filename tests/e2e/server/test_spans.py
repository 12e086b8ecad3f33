"""Spans of a whole server: each is found by what its caller knows."""

from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from jitney.engine.engine import Engine
from jitney.server.observe.otel import Spans
from jitney.server.observe.recorder import Recorder
from tests.e2e.server.harness import Running


@pytest.mark.parametrize("name", [{}, {"request_id": "mine-1"}, {"request_id": "ab" * 16}])
def test_a_span_has_the_id_of_the_reply(server: Running, name: dict[str, Any]) -> None:
    """Guards the names that requests have inside, which say more than the reply's id."""
    exporter, recorder = InMemorySpanExporter(), Recorder(512)
    spans = Spans(recorder, "fake", exporter)
    watching = (recorder.take, spans.take)
    engine = server.service.engine
    assert isinstance(engine, Engine)
    for observer in watching:
        engine.observe(observer)
    try:
        chat = server.chat(**name).json()
        completion = server.complete(["a", "b"], **name).json()
    finally:
        for observer in watching:
            engine.unobserve(observer)
        spans.close()
    made = exporter.get_finished_spans()
    names = [(span.name, (span.attributes or {})["gen_ai.operation.name"]) for span in made]
    assert names == [("chat fake", "chat"), *[("text_completion fake", "text_completion")] * 2]
    ids = [(span.attributes or {})["gen_ai.response.id"] for span in made]
    assert ids == [chat["id"], completion["id"], completion["id"]]
