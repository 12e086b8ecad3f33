"""`Monitor`: the recorder, the metrics and the spans of one engine, made and closed together.

Make it before the engine gets its first request. Spans need the extra `otel`, so they are loaded
only with an endpoint.

Tests: tests/unit/server/page/test_state.py.
"""

import importlib
from collections.abc import Callable
from types import ModuleType

from jitney.engine.clock import Clock, SystemClock
from jitney.engine.served_engine import ServedEngine
from jitney.errors import ConfigError
from jitney.server.observe.metrics import Metrics
from jitney.server.observe.recorder import Recorder
from jitney.version import install_line


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
        self._close_spans: Callable[[], None] = lambda: None
        if otlp_endpoint is not None:
            spans = _load_spans().export_spans(self.recorder, model_name, otlp_endpoint)
            engine.observe(spans.take)
            self._close_spans = spans.close

    def close(self) -> None:
        """Send the spans that wait; idempotent."""
        self._close_spans()


def _load_spans() -> ModuleType:
    try:
        return importlib.import_module("jitney.server.observe.otel")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Spans need the package {error.name}, which is not installed; "
            f"install the extra: {install_line('otel')}."
        ) from error
