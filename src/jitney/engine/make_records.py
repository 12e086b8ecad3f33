"""Makes the records of the tick: of a request, a batch and its outcome, an answer.

Tests: tests/unit/engine/test_tick.py and test_stats.py.
"""

from dataclasses import dataclass

from jitney.core.batch import Batch, Outcome
from jitney.core.request import Request
from jitney.core.rules.cost import Fit
from jitney.core.snapshot import Snapshot
from jitney.engine.answer import Answer
from jitney.engine.stats import rate
from jitney.records import Member, RequestAccepted, RequestDone, TickRecord


@dataclass(frozen=True, slots=True)
class TickFacts:
    """Facts about one tick of the engine that no batch, outcome or snapshot has."""

    started_at: float
    ended_at: float
    preempted_count: int
    members: tuple[Member, ...]


def record_accepted(
    request: Request, arrived_at: float, sent_at: float, now: float
) -> RequestAccepted:
    """The record of an accepted request."""
    return RequestAccepted(
        at=now,
        request_id=request.id,
        prompt_tokens=len(request.prompt),
        arrived_at=arrived_at,
        sent_at=sent_at,
        completions=request.params.n,
        max_tokens=request.params.max_tokens,
        priority=request.priority,
        tenant=request.tenant,
        reply_id=request.reply_id,
        is_chat=request.is_chat,
        is_background=request.is_background,
    )


def record_tick(batch: Batch, outcome: Outcome, snapshot: Snapshot, facts: TickFacts) -> TickRecord:
    """The record of a batch that was carried out."""
    decode_tokens = sum(1 for entry in batch.entries if entry.wants_token and entry.length == 1)
    return TickRecord(
        at=facts.ended_at,
        number=batch.number,
        batch_size=len(batch.entries),
        decode_tokens=decode_tokens,
        prefill_tokens=batch.token_count - decode_tokens,
        active_slots=snapshot.running_count,
        queue_depth=snapshot.waiting_count,
        kv_used=snapshot.kv_used,
        kv_cached=snapshot.kv_cached,
        sampled_tokens=sum(1 for member in facts.members if member.samples),
        preempted_count=facts.preempted_count,
        forward_ms=outcome.seconds * 1e3,
        decode_ms=_decodes_s(decode_tokens, batch, outcome, snapshot.fit) * 1e3,
        tick_ms=(facts.ended_at - facts.started_at) * 1e3,
        members=facts.members,
    )


def _decodes_s(decode_tokens: int, batch: Batch, outcome: Outcome, fit: Fit | None) -> float:
    """The part of a forward pass for its decodes: as long as they take without prefill."""
    if decode_tokens in (0, batch.token_count):
        return outcome.seconds if decode_tokens else 0.0
    if fit is None:
        return outcome.seconds * decode_tokens / batch.token_count
    return min(outcome.seconds, fit.seconds(decode_tokens))


def record_done(answer: Answer, now: float) -> RequestDone:
    """The record of a request that ended without an error."""
    usage, timing = answer.usage, answer.timing
    first_s, queue_s = timing.first_token_s, timing.queue_s
    prompt_s = 0.0
    if first_s is not None and queue_s is not None:
        prompt_s = first_s - queue_s - timing.sent_s
    generation_s = timing.total_s - first_s if first_s is not None else 0.0
    later_count = usage.completion_count - len(answer.completions)
    return RequestDone(
        at=now,
        request_id=answer.request.id,
        prompt_tokens=usage.prompt_count,
        generated_tokens=usage.completion_count,
        duration_ms=timing.total_s * 1e3,
        queue_ms=None if queue_s is None else queue_s * 1e3,
        ttft_ms=None if first_s is None else first_s * 1e3,
        prompt_eval_rate=rate(usage.prompt_count - usage.cached_count, prompt_s),
        generation_rate=rate(later_count, generation_s),
        prefix_cache_tokens=usage.cached_count,
        prefix_cache_ratio=rate(usage.cached_count, usage.prompt_count),
        preempted_count=answer.preempted_count,
        was_cancelled=answer.was_cancelled,
        stop_reason=answer.completions[0].finish_reason.value,
    )
