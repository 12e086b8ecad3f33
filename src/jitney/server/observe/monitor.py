"""`Monitor`: the recorder, the metrics and the spans of one engine, made and closed together.

Make it before the engine gets its first request. Spans need the extra `otel`, so they are loaded
only with an endpoint.

Tests: tests/unit/server/page/test_state.py.
"""

import importlib
from typing import Protocol

from jitney.engine.clock import Clock, SystemClock
from jitney.engine.engine import Engine
from jitney.errors import ConfigError
from jitney.records import Record
from jitney.server.observe.metrics import Metrics
from jitney.server.observe.recorder import Recorder


class SpanSink(Protocol):
    """Takes records and sends spans."""

    def take(self, record: Record) -> None:
        """Engine thread: one record."""
        ...

    def close(self) -> None:
        """Send the spans that wait."""
        ...


class Monitor:
    """The observers of an engine. `close` may wait for spans to be sent."""

    def __init__(
        self,
        engine: Engine,
        model_name: str,
        *,
        clock: Clock | None = None,
        otlp_endpoint: str | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.recorder = Recorder(engine.settings.model_len_max)
        self.metrics = Metrics(engine, self.recorder, model_name)
        engine.observe(self.recorder.take)
        self._spans: SpanSink | None = None
        if otlp_endpoint is not None:
            self._spans = _load_spans(self.recorder, model_name, otlp_endpoint)
            engine.observe(self._spans.take)

    def close(self) -> None:
        """Send the spans that wait; idempotent."""
        if self._spans is not None:
            self._spans.close()
            self._spans = None


def _load_spans(recorder: Recorder, model_name: str, endpoint: str) -> SpanSink:
    try:
        module = importlib.import_module("jitney.server.observe.otel")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Spans need the package {error.name}, which is not installed; "
            'install the extra: pip install "jitney[otel]".'
        ) from error
    sink: SpanSink = module.export_spans(recorder, model_name, endpoint)
    return sink
