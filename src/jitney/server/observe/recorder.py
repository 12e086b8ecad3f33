"""The flight recorder: the last ticks and the last requests, in bounded memory.

Fed with the engine's records on the engine thread; read from any thread. Of every request it keeps
a `Story`: when it came, waited, ran, lost its slot, and what else was in the batch when it was
kept waiting. A story that has ended never changes again, so readers get it as it is; those of
live requests are copied. Ids and numbers only, never text.
"""

import threading
from collections import deque
from copy import copy
from dataclasses import dataclass, field
from itertools import chain, islice, takewhile
from typing import assert_never

from jitney.core.events import PreemptReason
from jitney.core.request import Priority, RequestId
from jitney.engine.records import (
    BackendLost,
    KvPressure,
    Member,
    Record,
    RequestAccepted,
    RequestDone,
    RequestFailed,
    RequestPreempted,
    RequestRefused,
    RequestStarted,
    TickRecord,
)
from jitney.errors import DeadlineExceeded
from jitney.server.observe.viewer import EVERYONE, Viewer
from jitney.server.openai.error_object import refusal_of

TICKS_MAX = 4096
REQUESTS_MAX = 1024
MEMBERS_MAX = 32_768
"""Members of all ticks kept: with wide batches, fewer ticks are kept."""

SPANS_MAX = 256
MOMENTS_MAX = 64
"""Of one request: spans, and preemptions or failures; what comes after is counted, not kept."""

GAPS_MAX = 8192
"""Times between tokens that percentiles are taken of."""


@dataclass(frozen=True, slots=True)
class Span:
    """Prompt or recomputed tokens [start, start + length) that one tick computed."""

    tick: int
    at: float
    seconds: float
    index: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Loss:
    """A sequence lost its slot: to `by`, or with the whole backend when `reason` is None."""

    at: float
    index: int
    reason: PreemptReason | None
    by: RequestId | None = None
    by_priority: Priority | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """The longest time between two tokens, and what the tick that ended it did beside."""

    seconds: float
    at: float
    prompts_beside: int
    prompt_tokens_beside: int
    batch_size: int
    lost_slot: bool


@dataclass(slots=True, kw_only=True)
class Story:
    """What happened to one request. Times are seconds on the engine's clock."""

    id: RequestId
    arrived_at: float
    sent_at: float
    """When it was read and tokenised, and began to wait for a slot."""
    accepted_at: float
    prompt_tokens: int
    completions: int
    max_tokens: int | None
    priority: Priority
    tenant: str
    waiting_before: int
    """Requests that waited when it came."""
    running_before: int
    started_at: float | None = None
    cached_tokens: int = 0
    spans: list[Span] = field(default_factory=list)
    prefill_ticks: int = 0
    prefill_tokens: int = 0
    """Prompt tokens that were computed, and in how many ticks; recomputed ones are not in it."""
    recomputed_tokens: int = 0
    losses: list[Loss] = field(default_factory=list)
    preempted_count: int = 0
    paused_count: int = 0
    """How often its caller paused it while it ran."""
    failure_count: int = 0
    """How often the backend was lost while it ran."""
    resumed_at: list[float] = field(default_factory=list)
    """When it first ran again after each loss."""
    first_token_at: float | None = None
    last_token_at: float | None = None
    completion_tokens: int = 0
    gap: Gap | None = None
    slot: int | None = None
    ended_at: float | None = None
    ending: str | None = None
    """stop, length, abort, deadline or error, once it has ended."""
    message: str | None = None
    """What the caller was told went wrong, and no more: callers see it."""
    reached: dict[int, int] = field(default_factory=dict)
    """Tokens that were computed at least once, by completion."""
    token_at: dict[int, float] = field(default_factory=dict)
    """When each completion got its last token."""
    losses_open: set[int] = field(default_factory=set)
    """Completions that lost their slot since their last token."""

    def copied(self) -> "Story":
        """As it is now."""
        story = copy(self)
        story.spans = list(self.spans)
        story.losses = list(self.losses)
        story.resumed_at = list(self.resumed_at)
        story.reached = dict(self.reached)
        story.token_at = dict(self.token_at)
        story.losses_open = set(self.losses_open)
        return story


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of a request from its beginning."""

    tenant: str
    prompt_tokens: int
    max_tokens: int | None
    cached_tokens: int
    """Prompt tokens that were found in the cache when it started."""


@dataclass(frozen=True, slots=True)
class _Beside:
    """What a tick did apart from making tokens."""

    prompts: int
    tokens: int


class Recorder:
    """Remembers the last ticks and requests. `take` on the engine thread, the rest anywhere."""

    def __init__(self, ticks_max: int = TICKS_MAX, requests_max: int = REQUESTS_MAX) -> None:
        assert ticks_max >= 1, ticks_max
        assert requests_max >= 1, requests_max
        self._lock = threading.Lock()
        self._ticks: deque[TickRecord] = deque(maxlen=ticks_max)
        self._member_count = 0
        self._live: dict[RequestId, Story] = {}
        self._unstarted = 0
        self._ended: dict[RequestId, Story] = {}
        self._requests_max = requests_max
        self._gaps: deque[float] = deque(maxlen=GAPS_MAX)

    def take(self, record: Record) -> None:
        """Remember one record."""
        with self._lock:
            match record:
                case TickRecord():
                    self._keep(record)
                    self._take_tick(record)
                case RequestAccepted():
                    self._live[record.request_id] = self._begin(record)
                case RequestStarted():
                    story = self._live.get(record.request_id)
                    if story is not None:
                        self._unstarted -= 1
                        story.started_at = record.at
                        story.cached_tokens = record.prefix_cache_tokens
                case RequestPreempted():
                    self._take_preempted(record)
                case RequestDone() | RequestFailed():
                    self._end(record)
                case BackendLost():
                    self._take_lost(record)
                case KvPressure() | RequestRefused():
                    pass
                case _:
                    assert_never(record)

    def ticks(self, after: int = 0, count_max: int = TICKS_MAX) -> list[TickRecord]:
        """Ticks with a number above `after`, oldest first; the last ones if there are more."""
        with self._lock:
            found: list[TickRecord] = []
            for record in reversed(self._ticks):
                if record.number <= after or len(found) == count_max:
                    break
                found.append(record)
        return found[::-1]

    def ticks_since(self, at: float) -> list[TickRecord]:
        """Ticks that ended after this moment, the last one first."""
        with self._lock:
            return list(takewhile(lambda record: record.at > at, reversed(self._ticks)))

    def stories(self, count_max: int = REQUESTS_MAX, viewer: Viewer = EVERYONE) -> list[Story]:
        """The viewer's live requests, then ended ones, the last to come or to end first."""
        with self._lock:
            known = chain(reversed(self._live.values()), reversed(self._ended.values()))
            theirs = islice((each for each in known if viewer.may_read(each.tenant)), count_max)
            return [each.copied() if each.ended_at is None else each for each in theirs]

    def story(self, request_id: RequestId) -> Story | None:
        """What happened to this request, if it lives or ended not long ago."""
        with self._lock:
            live = self._live.get(request_id)
            return live.copied() if live is not None else self._ended.get(request_id)

    def origin(self, request_id: RequestId) -> Origin | None:
        """What was asked for, and by whom; None when it is not known (any more)."""
        with self._lock:
            story = self._live.get(request_id) or self._ended.get(request_id)
            if story is None:
                return None
            return Origin(story.tenant, story.prompt_tokens, story.max_tokens, story.cached_tokens)

    def firsts(self) -> list[float]:
        """From arrival to the first token, of all requests that have one, in seconds."""
        with self._lock:
            return [
                each.first_token_at - each.arrived_at
                for each in chain(self._live.values(), self._ended.values())
                if each.first_token_at is not None
            ]

    def wholes(self) -> list[float]:
        """From arrival to the end, of requests that were answered in full, in seconds."""
        with self._lock:
            return [
                each.ended_at - each.arrived_at
                for each in self._ended.values()
                if each.ended_at is not None and each.ending in ("stop", "length")
            ]

    def gaps(self) -> list[float]:
        """The last times between tokens, in seconds."""
        with self._lock:
            return list(self._gaps)

    def _keep(self, record: TickRecord) -> None:
        ticks = self._ticks
        if ticks and len(ticks) == ticks.maxlen:
            self._member_count -= len(ticks.popleft().members)
        ticks.append(record)
        self._member_count += len(record.members)
        while self._member_count > MEMBERS_MAX and len(ticks) > 1:
            self._member_count -= len(ticks.popleft().members)

    def _begin(self, record: RequestAccepted) -> Story:
        waiting = self._unstarted
        self._unstarted += 1
        return Story(
            id=record.request_id,
            arrived_at=record.arrived_at,
            sent_at=record.sent_at,
            accepted_at=record.at,
            prompt_tokens=record.prompt_tokens,
            completions=record.completions,
            max_tokens=record.max_tokens,
            priority=record.priority,
            tenant=record.tenant,
            waiting_before=waiting,
            running_before=len(self._live) - waiting,
        )

    def _take_tick(self, record: TickRecord) -> None:
        prompts = [each for each in record.members if each.length > 1 or not each.samples]
        beside = _Beside(len(prompts), sum(each.length for each in prompts))
        for member in record.members:
            story = self._live.get(member.request_id)
            if story is None:
                continue
            if len(story.resumed_at) < len(story.losses):
                loss = story.losses[-1]
                if loss.reason is None or loss.index == member.index:
                    story.resumed_at.append(record.at - record.tick_ms / 1e3)
            story.slot = member.slot
            self._take_span(story, member, record)
            if member.samples:
                self._take_token(story, member, record, beside)

    def _take_span(self, story: Story, member: Member, record: TickRecord) -> None:
        end = member.start + member.length
        reached = story.reached.get(member.index, 0)
        again = max(0, min(end, reached) - member.start)
        fresh = max(0, min(end, story.prompt_tokens) - max(member.start, reached))
        story.recomputed_tokens += again
        if end > reached:
            story.reached[member.index] = end
        if not again and not fresh:
            return
        story.prefill_ticks += fresh > 0
        story.prefill_tokens += fresh
        if len(story.spans) < SPANS_MAX:
            story.spans.append(
                Span(
                    record.number,
                    record.at,
                    record.tick_ms / 1e3,
                    member.index,
                    member.start,
                    member.length,
                )
            )

    def _take_token(
        self, story: Story, member: Member, record: TickRecord, beside: _Beside
    ) -> None:
        story.completion_tokens += 1
        last_at = story.token_at.get(member.index)
        story.token_at[member.index] = record.at
        story.last_token_at = record.at
        if story.first_token_at is None:
            story.first_token_at = record.at
        if last_at is None:
            return
        seconds = record.at - last_at
        self._gaps.append(seconds)
        if story.gap is None or seconds > story.gap.seconds:
            is_own = member.length > 1
            story.gap = Gap(
                seconds,
                record.at,
                beside.prompts - is_own,
                beside.tokens - (member.length if is_own else 0),
                record.batch_size,
                member.index in story.losses_open,
            )
        story.losses_open.discard(member.index)

    def _take_preempted(self, record: RequestPreempted) -> None:
        story = self._live.get(record.request_id)
        if story is None:
            return
        by = self._live.get(record.by)
        if record.reason is PreemptReason.PAUSED:
            story.paused_count += 1
        else:
            story.preempted_count += 1
        story.slot = None
        self._lose(
            story,
            Loss(
                record.at,
                record.index,
                record.reason,
                record.by,
                None if by is None else by.priority,
            ),
        )

    def _take_lost(self, record: BackendLost) -> None:
        if record.restarts_failed:
            return
        for story in self._live.values():
            if story.slot is not None:
                story.failure_count += 1
                story.slot = None
                self._lose(story, Loss(record.at, 0, None))

    def _lose(self, story: Story, loss: Loss) -> None:
        story.losses_open.update(story.token_at if loss.reason is None else (loss.index,))
        if len(story.losses) < MOMENTS_MAX and len(story.resumed_at) == len(story.losses):
            story.losses.append(loss)

    def _end(self, record: RequestDone | RequestFailed) -> None:
        story = self._live.pop(record.request_id, None)
        if story is None:
            return
        self._unstarted -= story.started_at is None
        story.ended_at = record.at
        story.slot = None
        if isinstance(record, RequestDone):
            story.ending = "abort" if record.was_cancelled else record.stop_reason
        else:
            story.ending = "deadline" if isinstance(record.error, DeadlineExceeded) else "error"
            story.message = refusal_of(record.error).message
        self._ended[story.id] = story
        if len(self._ended) > self._requests_max:
            del self._ended[next(iter(self._ended))]
