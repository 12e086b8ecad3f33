"""Counters since the start, and a frozen snapshot of them for people: `Stats`.

The tally is fed with the same records that observers get, on the engine thread, before any caller
learns of them; a snapshot may be taken from any thread and is consistent in itself. Keeps
invariant 7: total_requests = completed + cancelled + failed + live.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import assert_never

from jitney.core.events import PreemptReason
from jitney.core.gauges import Gauges
from jitney.engine.records import (
    BackendLost,
    KvPressure,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """How the engine has done since it started, and how it stands.

    Rates are per second of busy time: while at least one request lived and was not paused.
    Averages of requests that were not yet seen are 0.
    """

    total_requests: int
    """Requests that were accepted."""
    total_batches: int
    """Forward passes."""
    avg_batch_size: float
    """Sequences per forward pass."""
    avg_latency_ms: float
    """From arrival to the end, of completed requests."""
    avg_queue_time_ms: float
    """From its sending to the first slot, of started requests."""
    requests_per_second: float
    """Completed requests per second of busy time."""
    tokens_per_second: float
    """Sampled tokens per second of busy time."""
    current_queue_size: int
    """Sequences that wait, preempted ones included."""
    peak_queue_size: int
    """The most that waited at once."""
    timeout_count: int
    """Requests whose time limit passed; part of `failed_requests`."""
    error_count: int
    """Requests that failed for any other reason; the rest of `failed_requests`."""

    completed_requests: int
    """Requests that were answered in full."""
    queued_requests: int
    """The same as `current_queue_size`."""
    avg_wait_time_ms: float
    """The same as `avg_queue_time_ms`."""
    gpu_utilization: float
    """Share of the time since the start that was spent in forward passes, on whatever device."""

    cancelled_requests: int
    """Requests that were ended by their callers."""
    failed_requests: int
    """Requests that ended with an error."""
    refused_requests: int
    """Turned away at the door; not part of `total_requests`."""
    live_requests: int
    """Requests that were accepted and have not ended."""
    slot_count: int
    """Sequences that may run at once: `max_num_seqs`."""
    paused_requests: int
    """Sequences that their callers paused; not in the queue."""
    active_slots: int
    """Sequences that run."""
    idle_slots: int
    """Sequences that could run beside them: `slot_count` less `active_slots`."""
    cached_slots: int
    """Cached prefixes that are kept beside those who run, each in a slot of memory of its own."""
    prompt_tokens: int
    """Prompt tokens of accepted requests."""
    computed_prompt_tokens: int
    """Positions computed by prefill, those computed again after a preemption included."""
    cached_tokens: int
    """Prompt tokens that were found in the cache when their request started."""
    completion_tokens: int
    """Tokens that were made."""
    preemption_count: int
    """Times that a sequence lost its slot to another, for memory or by class."""
    eviction_count: int
    """Cached prefixes that were given up for room."""
    backend_failure_count: int
    """Failures of the backend, and of attempts to start it again."""
    kv_used: int
    kv_cached: int
    kv_tokens: int
    """Tokens of memory in all."""
    prefill_share: float
    """Share of the time since the start that forward passes spent on prefill."""
    decode_share: float
    """The same for decodes; where a pass carried both, they have what they take by themselves."""
    idle_share: float
    """The rest: the three are together 1."""
    fixed_cost_ms: float | None
    """C of T(B) = C + B c, what a batch of B decodes takes, as fitted now. None until batches of
    two sizes were seen."""
    cost_per_sequence_ms: float | None
    """c of the same."""
    uptime_s: float
    """Time since the start."""
    busy_s: float
    """Time in which at least one request lived."""
    counters: Mapping[str, int]
    """The scheduler's own counters, by name."""


class Tally:
    """Adds up records. `take` and `gauge` on the engine thread, `snapshot` on any."""

    def __init__(self, now: float, gauges: Gauges) -> None:
        self._lock = threading.Lock()
        self._started_at = now
        self._progress_at = now
        self._busy_since: float | None = None
        self._busy_s = 0.0
        self._accepted = 0
        self._completed = 0
        self._cancelled = 0
        self._timeouts = 0
        self._errors = 0
        self._refused = 0
        self._request_starts = 0
        self._waited_ms = 0.0
        self._latency_ms = 0.0
        self._batches = 0
        self._entries = 0
        self._prefill_s = 0.0
        self._decode_s = 0.0
        self._prompt_tokens = 0
        self._prefill_tokens = 0
        self._cached_tokens = 0
        self._sampled_tokens = 0
        self._preemptions = 0
        self._evictions = 0
        self._backend_failures = 0
        self._queue_peak = 0
        self._gauges = gauges

    @property
    def live_count(self) -> int:
        """Requests that were accepted and have not ended."""
        ended = self._completed + self._cancelled + self._timeouts + self._errors
        return self._accepted - ended

    @property
    def gauges(self) -> Gauges:
        """How the scheduler stood when it was last measured."""
        return self._gauges

    def take(self, record: Record) -> None:
        """Count one record."""
        with self._lock:
            match record:
                case TickRecord():
                    self._take_tick(record)
                case RequestAccepted() | RequestRefused() | RequestStarted():
                    self._take_beginning(record)
                case RequestDone() | RequestFailed():
                    self._take_end(record)
                case RequestPreempted():
                    self._preemptions += record.reason is not PreemptReason.PAUSED
                case KvPressure():
                    self._evictions += record.evicted_count
                case BackendLost():
                    self._backend_failures += 1
                case _:
                    assert_never(record)

    def gauge(self, gauges: Gauges, now: float) -> None:
        """Note how the scheduler stands."""
        with self._lock:
            if gauges.is_work_due and not self._gauges.is_work_due:
                self._progress_at = now
            self._gauges = gauges
            self._queue_peak = max(self._queue_peak, gauges.waiting_count)
            self._count_busy(now)

    def still_s(self, now: float) -> float:
        """How long a forward pass has been due and none has ended; 0 while none is due."""
        with self._lock:
            return max(0.0, now - self._progress_at) if self._gauges.is_work_due else 0.0

    def snapshot(self, now: float) -> Stats:
        """All of it at this moment."""
        with self._lock:
            return self._snapshot(now)

    def _count_busy(self, now: float) -> None:
        """Time in which everybody is paused is not busy."""
        was_busy = self._busy_since is not None
        is_busy = self._gauges.live_count > self._gauges.paused_count
        if was_busy and not is_busy:
            self._stop_busy(now)
        elif not was_busy and is_busy and self.live_count:
            self._busy_since = now

    def _stop_busy(self, now: float) -> None:
        if self._busy_since is not None:
            self._busy_s += max(now - self._busy_since, 0.0)
            self._busy_since = None

    def _take_tick(self, record: TickRecord) -> None:
        self._progress_at = record.at
        self._batches += 1
        self._entries += record.batch_size
        self._prefill_s += (record.forward_ms - record.decode_ms) / 1e3
        self._decode_s += record.decode_ms / 1e3
        self._prefill_tokens += record.prefill_tokens
        self._sampled_tokens += record.sampled_tokens

    def _take_beginning(self, record: RequestAccepted | RequestRefused | RequestStarted) -> None:
        match record:
            case RequestAccepted():
                self._accepted += 1
                self._prompt_tokens += record.prompt_tokens
                if self._busy_since is None:
                    self._busy_since = record.at
            case RequestRefused():
                self._refused += 1
            case RequestStarted():
                self._request_starts += 1
                self._waited_ms += record.waited_ms
                self._cached_tokens += record.prefix_cache_tokens

    def _take_end(self, record: RequestDone | RequestFailed) -> None:
        if isinstance(record, RequestFailed):
            if isinstance(record.error, DeadlineExceeded):
                self._timeouts += 1
            else:
                self._errors += 1
        elif record.was_cancelled:
            self._cancelled += 1
        else:
            self._completed += 1
            self._latency_ms += record.duration_ms
        assert self.live_count >= 0, "more requests ended than were accepted"
        if self.live_count == 0:
            self._stop_busy(record.at)

    def _snapshot(self, now: float) -> Stats:
        gauges = self._gauges
        busy_s = self._busy_s
        if self._busy_since is not None:
            busy_s += max(now - self._busy_since, 0.0)
        uptime_s = max(now - self._started_at, 0.0)
        waited_ms = _ratio(self._waited_ms, self._request_starts)
        # A backend may say that it took longer than it did.
        spent_s = max(uptime_s, self._prefill_s + self._decode_s)
        prefill_share = _ratio(self._prefill_s, spent_s)
        decode_share = _ratio(self._decode_s, spent_s)
        sequence_s = None if gauges.fit is None else gauges.fit.sequence_s
        fixed_s = None if gauges.fit is None or sequence_s is None else gauges.fit.fixed_s
        return Stats(
            total_requests=self._accepted,
            total_batches=self._batches,
            avg_batch_size=_ratio(self._entries, self._batches),
            avg_latency_ms=_ratio(self._latency_ms, self._completed),
            avg_queue_time_ms=waited_ms,
            requests_per_second=_ratio(self._completed, busy_s),
            tokens_per_second=_ratio(self._sampled_tokens, busy_s),
            current_queue_size=gauges.waiting_count,
            peak_queue_size=self._queue_peak,
            timeout_count=self._timeouts,
            error_count=self._errors,
            completed_requests=self._completed,
            queued_requests=gauges.waiting_count,
            avg_wait_time_ms=waited_ms,
            gpu_utilization=prefill_share + decode_share,
            cancelled_requests=self._cancelled,
            failed_requests=self._timeouts + self._errors,
            refused_requests=self._refused,
            live_requests=self.live_count,
            slot_count=gauges.slot_count,
            paused_requests=gauges.paused_count,
            active_slots=gauges.running_count,
            idle_slots=gauges.slot_count - gauges.running_count,
            cached_slots=gauges.cached_count,
            prompt_tokens=self._prompt_tokens,
            computed_prompt_tokens=self._prefill_tokens,
            cached_tokens=self._cached_tokens,
            completion_tokens=self._sampled_tokens,
            preemption_count=self._preemptions,
            eviction_count=self._evictions,
            backend_failure_count=self._backend_failures,
            kv_used=gauges.kv_used,
            kv_cached=gauges.kv_cached,
            kv_tokens=gauges.kv_tokens,
            prefill_share=prefill_share,
            decode_share=decode_share,
            idle_share=max(0.0, 1.0 - prefill_share - decode_share),
            fixed_cost_ms=None if fixed_s is None else fixed_s * 1e3,
            cost_per_sequence_ms=None if sequence_s is None else sequence_s * 1e3,
            uptime_s=uptime_s,
            busy_s=busy_s,
            counters=MappingProxyType(dict(gauges.counters)),
        )


def _ratio(amount: float, count: float) -> float:
    return amount / count if count > 0 else 0.0
