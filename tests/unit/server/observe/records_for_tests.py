"""Records made by hand, for tests of what watches an engine."""

from dataclasses import replace

from jitney.core.events import PreemptReason
from jitney.core.request import Priority, RequestId
from jitney.engine.served_engine import ReplicaView
from jitney.errors import JitneyError
from jitney.records import (
    Member,
    MoveReason,
    Record,
    RequestAccepted,
    RequestDone,
    RequestFailed,
    RequestMoved,
    RequestPreempted,
    RequestProgressed,
    RequestStarted,
    TickRecord,
)
from jitney.server.observe.recorder import Recorder
from jitney.server.observe.story import Story
from tests.members_for_tests import in_columns
from tests.snapshots_for_tests import IDLE

SNAPSHOT = replace(
    IDLE,
    running_count=2,
    prefilling_count=1,
    waiting_count=3,
    waiting_tokens=5,
    cached_count=1,
    kv_used=60,
    kv_cached=20,
)
VIEW = ReplicaView(
    name="a",
    snapshot=SNAPSHOT,
    prompt_tokens=50,
    cached_tokens=30,
    completion_tokens=70,
    tokens_per_s=1.5,
    prefill_tokens_per_s=2.5,
    detail=None,
)


def recorded(*records: Record) -> Recorder:
    """A recorder that has taken these."""
    recorder = Recorder(2000)
    for record in records:
        recorder.take(record)
    return recorder


def story_of(recorder: Recorder, name: str = "a") -> Story:
    story = recorder.story(RequestId(name))
    assert story is not None
    return story


def accepted(
    at: float,
    name: str,
    prompt_tokens: int,
    priority: Priority = Priority.NORMAL,
    tenant: str = "",
    reply_id: str = "",
) -> RequestAccepted:
    return RequestAccepted(
        at=at,
        request_id=RequestId(name),
        prompt_tokens=prompt_tokens,
        arrived_at=at,
        sent_at=at,
        completions=1,
        max_tokens=64,
        priority=priority,
        tenant=tenant,
        reply_id=reply_id,
    )


def started(
    at: float, name: str, waited_s: float, cached: int = 0, replica: str = ""
) -> RequestStarted:
    return RequestStarted(
        at=at,
        request_id=RequestId(name),
        prompt_tokens=10,
        prefix_cache_tokens=cached,
        waited_ms=waited_s * 1e3,
        replica=replica,
    )


def member(name: str, start: int, length: int, *, samples: bool, slot: int = 0) -> Member:
    return Member(RequestId(name), 0, slot, start, length, samples)


def tick(at: float, number: int, *members: Member, took_s: float = 0.01) -> TickRecord:
    decode = sum(1 for each in members if each.samples and each.length == 1)
    return TickRecord(
        at=at,
        number=number,
        batch_size=len(members),
        decode_tokens=decode,
        prefill_tokens=sum(each.length for each in members) - decode,
        active_slots=len(members),
        queue_depth=0,
        kv_used=0,
        kv_cached=0,
        sampled_tokens=sum(1 for each in members if each.samples),
        preempted_count=0,
        forward_ms=took_s * 1e3,
        decode_ms=took_s * 1e3 if decode else 0.0,
        tick_ms=took_s * 1e3,
        members=in_columns(*members),
    )


def preempted(at: float, name: str, reason: PreemptReason, by: str) -> RequestPreempted:
    return RequestPreempted(
        at=at, request_id=RequestId(name), index=0, reason=reason, by=RequestId(by)
    )


def progressed(at: float, name: str, count: int, *gaps_s: float) -> RequestProgressed:
    return RequestProgressed(
        at=at, request_id=RequestId(name), generated_tokens=count, token_gaps_s=gaps_s
    )


def moved(at: float, name: str, count: int, *, away_s: float = 0.5, to: str = "r2") -> RequestMoved:
    return RequestMoved(
        at=at,
        request_id=RequestId(name),
        from_replica="r1",
        to_replica=to,
        generated_tokens=count,
        reason=MoveReason.LOST,
        away_ms=away_s * 1e3,
    )


def done(at: float, name: str, *, reason: str = "stop", cancelled: bool = False) -> RequestDone:
    return RequestDone(
        at=at,
        request_id=RequestId(name),
        prompt_tokens=10,
        generated_tokens=2,
        duration_ms=100.0,
        queue_ms=None,
        ttft_ms=None,
        prompt_eval_rate=0.0,
        generation_rate=0.0,
        prefix_cache_tokens=0,
        prefix_cache_ratio=0.0,
        preempted_count=0,
        was_cancelled=cancelled,
        stop_reason=reason,
    )


def failed(at: float, name: str, error: JitneyError) -> RequestFailed:
    return RequestFailed(
        at=at, request_id=RequestId(name), error=error, generated_tokens=0, duration_ms=100.0
    )
