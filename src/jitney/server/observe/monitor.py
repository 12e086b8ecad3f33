"""`Monitor`: the recorder, the metrics and the spans of one engine, made and closed together.

Make it before the engine gets its first request. Spans need the extra `otel`, so they are loaded
only with an endpoint.

Tests: tests/unit/server/page/test_state.py.
"""

import importlib
from collections.abc import Callable

from jitney.engine.clock import Clock, SystemClock
from jitney.engine.served_engine import ServedEngine
from jitney.errors import ConfigError
from jitney.records import Observer
from jitney.server.observe.metrics import Metrics
from jitney.server.observe.recorder import Recorder


class Monitor:
    """The observers of an engine. `close` may wait for spans to be sent."""

    def __init__(
        self,
        engine: ServedEngine,
        model_name: str,
        *,
        clock: Clock | None = None,
        otlp_endpoint: str | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.recorder = Recorder(engine.settings.model_len_max)
        self.metrics = Metrics(engine, self.recorder, model_name)
        engine.observe(self.recorder.take)
        self._close_spans: Callable[[], None] | None = None
        if otlp_endpoint is not None:
            take, self._close_spans = _load_spans(self.recorder, model_name, otlp_endpoint)
            engine.observe(take)

    def close(self) -> None:
        """Send the spans that wait; idempotent."""
        if self._close_spans is not None:
            self._close_spans()
            self._close_spans = None


def _load_spans(
    recorder: Recorder, model_name: str, endpoint: str
) -> tuple[Observer, Callable[[], None]]:
    """What takes records and makes spans of them, and what sends those that wait."""
    try:
        module = importlib.import_module("jitney.server.observe.otel")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Spans need the package {error.name}, which is not installed; "
            'install the extra: pip install "jitney[otel]".'
        ) from error
    spans = module.export_spans(recorder, model_name, endpoint)
    return spans.take, spans.close
