"""OpenTelemetry: one span for each request, made when it ends. Needs the extra `otel`.

An observer of the engine, without state of its own. It reads the recorder's story of a request
that has just ended, so it must observe after the recorder. Attribute names follow the semantic
conventions for generative models, where those have a name. Spans go to a batch processor, which
exports on its own thread; the engine thread only puts them there.
"""

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from jitney.engine.clock import epoch_offset_s
from jitney.records import Record, RequestDone, RequestFailed
from jitney.server.observe.explain import explain
from jitney.server.observe.recorder import Recorder
from jitney.server.observe.story import Story, move_fields

Attributes = dict[str, str | int | float | bool | tuple[str, ...]]


class Spans:
    """Sends one span per request to a collector. `close` flushes; idempotent."""

    def __init__(self, recorder: Recorder, model_name: str, exporter: SpanExporter) -> None:
        self._recorder = recorder
        self._model_name = model_name
        self._offset_s = epoch_offset_s()
        self._provider = TracerProvider(resource=Resource.create({"service.name": "jitney"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer: Tracer = self._provider.get_tracer("jitney")

    def take(self, record: Record) -> None:
        """Engine thread: a request that ended becomes a span."""
        if isinstance(record, RequestDone | RequestFailed):
            story = self._recorder.story(record.request_id)
            if story is not None and story.ended_at is not None:
                self._send(story)

    def close(self) -> None:
        """Send the spans that wait, within the exporter's own time limit, and end its thread."""
        self._provider.shutdown()

    def _send(self, story: Story) -> None:
        assert story.ended_at is not None, story.id
        span = self._tracer.start_span(
            f"{_operation(story)} {self._model_name}",
            kind=SpanKind.SERVER,
            start_time=self._nanoseconds(story.accepted.arrived_at),
            attributes=_attributes(story, self._model_name),
        )
        self._add_events(span, story)
        if story.ending in ("error", "deadline"):
            span.set_attribute("error.type", story.ending)
            span.set_status(Status(StatusCode.ERROR, story.message))
        span.end(self._nanoseconds(story.ended_at))

    def _add_events(self, span: Span, story: Story) -> None:
        moments: list[tuple[float, str, Attributes]] = []
        if story.started is not None:
            started: Attributes = {"cached_tokens": story.cached_tokens}
            if story.started.replica:
                started["replica"] = story.started.replica
            moments.append((story.started.at, "started", started))
        for each in story.spans:
            moments.append((each.at, "prefilled", {"tick": each.tick, "tokens": each.length}))
        for loss in story.losses:
            about: Attributes = {"reason": loss.word, "by": str(loss.by or "")}
            moments.append((loss.at, "preempted", about))
        moments += [(at, "resumed", {}) for at in story.resumed_at]
        for move in story.moves:
            moved: Attributes = {**move_fields(move), "away_seconds": move.away_ms / 1e3}
            moments.append((move.at, "moved", moved))
        if story.first_token_at is not None:
            moments.append((story.first_token_at, "first token", {}))
        for at, name, attributes in sorted(moments, key=lambda moment: moment[0]):
            span.add_event(name, attributes, self._nanoseconds(at))

    def _nanoseconds(self, at: float) -> int:
        return int((at + self._offset_s) * 1e9)


def export_spans(recorder: Recorder, model_name: str, endpoint: str) -> Spans:
    """Spans to an OTLP collector over HTTP, for instance http://127.0.0.1:4318/v1/traces."""
    return Spans(recorder, model_name, OTLPSpanExporter(endpoint=endpoint))


def _operation(story: Story) -> str:
    return "chat" if story.accepted.is_chat else "text_completion"


def _attributes(story: Story, model_name: str) -> Attributes:
    assert story.ended_at is not None, story.id
    accepted = story.accepted
    found: Attributes = {
        "gen_ai.operation.name": _operation(story),
        "gen_ai.provider.name": "jitney",
        "gen_ai.request.model": model_name,
        "gen_ai.response.model": model_name,
        "gen_ai.response.id": accepted.reply_id or str(story.id),
        "gen_ai.request.choice.count": accepted.completions,
        "gen_ai.usage.input_tokens": accepted.prompt_tokens,
        "gen_ai.usage.output_tokens": story.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": story.cached_tokens,
        "gen_ai.response.finish_reasons": (story.ending or "",),
        "jitney.priority": accepted.priority.name.lower(),
        "jitney.is_background": accepted.is_background,
        "jitney.door_seconds": accepted.sent_at - accepted.arrived_at,
        "jitney.preempted_count": story.preempted_count,
        "jitney.recomputed_tokens": story.recomputed_tokens,
        "jitney.why": explain(story, story.ended_at),
    }
    if accepted.max_tokens is not None:
        found["gen_ai.request.max_tokens"] = accepted.max_tokens
    if story.replica:
        found |= {"jitney.replica": story.replica, "jitney.moved_count": story.move_count}
    if story.started is not None:
        found["jitney.queue_seconds"] = story.started.at - accepted.sent_at
    if story.first_token_at is not None:
        first_s = story.first_token_at - accepted.arrived_at
        found["gen_ai.server.time_to_first_token"] = first_s
    return found
