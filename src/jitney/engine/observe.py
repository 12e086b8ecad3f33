"""Makes the records of ticks and requests, and gives them to observers as they happen.

An observer is a callable. It is called on the engine thread without a lock, so it must be quick. If
it raises, the tick goes on, and it still gets the next record: one mistake must not end its
accounts. All failures are counted. The first, second, fourth, eighth failure (and so on) of an
observer is logged, so that the log does not fill up.

Tests: tests/unit/engine/test_observe.py, test_tick.py and test_stats.py.
"""

import logging
import threading
from dataclasses import dataclass
from itertools import compress

from jitney.core.batch import NO_TOKEN, Outcome
from jitney.core.events import PreemptEvent, StartEvent
from jitney.core.request import Request
from jitney.core.rules.cost import Fit
from jitney.core.scheduler import PlannedBatch
from jitney.core.snapshot import Snapshot
from jitney.engine.answer import Answer
from jitney.engine.stats import rate
from jitney.records import (
    Member,
    Members,
    Observer,
    Record,
    RequestAccepted,
    RequestDone,
    RequestPreempted,
    RequestStarted,
    TickRecord,
)

_log = logging.getLogger("jitney.engine")


@dataclass(slots=True)
class Listener:
    """One observer, and how often it failed."""

    observer: Observer
    failed_count: int = 0


class Observers:
    """All observers. `add` and `remove` may be called from any thread."""

    def __init__(self) -> None:
        # Replaced, never changed, so that the engine thread can read it without a lock.
        self._listeners: tuple[Listener, ...] = ()
        self._changing = threading.Lock()
        self.failed_count = 0
        """Failures of all observers."""

    def add(self, observer: Observer) -> None:
        """Give this observer every record from now on."""
        with self._changing:
            self._listeners = (*self._listeners, Listener(observer))

    def remove(self, observer: Observer) -> None:
        """Give this observer no more records. An unknown one is ignored."""
        with self._changing:
            self._listeners = tuple(each for each in self._listeners if each.observer != observer)

    def tell(self, record: Record) -> None:
        """Engine thread: pass a record to all observers."""
        for listener in self._listeners:
            try:
                listener.observer(record)
            except Exception:
                self.failed_count += 1
                listener.failed_count = count = listener.failed_count + 1
                if count.bit_count() == 1:
                    text = "An observer failed (%d so far) and goes on: %r"
                    _log.warning(text, count, listener.observer, exc_info=True)


def log_batch_composition(record: Record) -> None:
    """An observer that logs one line per tick: the sequences of the batch and their spans."""
    if not isinstance(record, TickRecord):
        return
    members = " ".join(
        f"{each.request_id}.{each.index}@{each.slot}[{each.start}:{each.start + each.length}]"
        for each in record.members
    )
    _log.info(
        "tick %d: %d entries, %d decode + %d prefill tokens, %d waiting, %d kv, %.1f ms: %s",
        record.number,
        record.batch_size,
        record.decode_tokens,
        record.prefill_tokens,
        record.queue_depth,
        record.kv_used,
        record.forward_ms,
        members,
    )


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


def record_started(request: Request, sent_at: float, event: StartEvent) -> RequestStarted:
    """The record of a request that got its first slot."""
    return RequestStarted(
        at=event.at,
        request_id=event.request_id,
        prompt_tokens=len(request.prompt),
        prefix_cache_tokens=event.cached_count,
        waited_ms=(event.at - sent_at) * 1e3,
    )


def record_preempted(event: PreemptEvent) -> RequestPreempted:
    """The record of a sequence that lost its slot."""
    return RequestPreempted(
        at=event.at,
        request_id=event.request_id,
        index=event.index,
        reason=event.reason,
        by=event.by,
    )


def members_of(planned: PlannedBatch, outcome: Outcome) -> Members:
    """The sequences of the batch, without those that have ended: their result is dropped."""
    batch, sequences, tokens = planned.batch, planned.sequences, outcome.tokens
    count, spans = planned.decode_count, batch.spans
    if NO_TOKEN in tokens[:count]:
        count, spans = 0, batch.entries  # a fault is among them
    lives = [each.slot is not None for each in sequences]
    others = [
        Member(*sequence.name, entry.slot, entry.start, entry.length, token >= 0)
        for sequence, entry, token in zip(sequences[count:], spans, tokens[count:], strict=True)
        if sequence.slot is not None
    ]
    return Members(
        tuple([each.name for each in compress(sequences[:count], lives)]),
        tuple(compress(batch.decodes.slots[:count], lives)),
        tuple(compress(batch.decodes.starts[:count], lives)),
        tuple(others),
    )


def record_tick(
    planned: PlannedBatch,
    outcome: Outcome,
    members: Members,
    snapshot: Snapshot,
    preempted_count: int,
    times: tuple[float, float],
) -> TickRecord:
    """The record of a batch that was carried out. The snapshot is from after it; `times` are those
    of its beginning and end."""
    token_count, decode_tokens = planned.token_count, planned.decode_count
    return TickRecord(
        at=times[1],
        number=planned.batch.number,
        batch_size=len(planned.sequences),
        decode_tokens=decode_tokens,
        prefill_tokens=token_count - decode_tokens,
        active_slots=snapshot.running_count,
        queue_depth=snapshot.waiting_count,
        kv_used=snapshot.kv_used,
        kv_cached=snapshot.kv_cached,
        sampled_tokens=members.sampled_count,
        preempted_count=preempted_count,
        forward_ms=outcome.seconds * 1e3,
        decode_ms=_decodes_s(outcome.seconds, decode_tokens, token_count, snapshot.fit) * 1e3,
        tick_ms=(times[1] - times[0]) * 1e3,
        members=members,
    )


def _decodes_s(seconds: float, decode_tokens: int, token_count: int, fit: Fit | None) -> float:
    """The part of a forward pass for its decodes: as long as they take without prefill."""
    if decode_tokens in (0, token_count):
        return seconds if decode_tokens else 0.0
    if fit is None:
        return seconds * decode_tokens / token_count
    return min(seconds, fit.seconds(decode_tokens))


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
