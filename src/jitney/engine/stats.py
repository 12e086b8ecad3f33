"""Statistics since the start: `Statistics` adds up records; `Stats` shows the sums to people.

`Stats` is a table: each field has its public name, and says how it is read from the sums. Records
are counted on the engine thread before callers get their results. Any thread may read both; each is
consistent in itself. Keeps invariant 7: total_requests = completed + cancelled + failed + live.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, assert_never

from jitney.core.events import FinishReason, PreemptReason
from jitney.core.request import RequestId
from jitney.core.snapshot import Snapshot
from jitney.records import (
    BackendLost,
    KvPressure,
    Record,
    ReplicaGone,
    RequestAccepted,
    RequestDone,
    RequestFailed,
    RequestMoved,
    RequestPreempted,
    RequestProgressed,
    RequestRefused,
    RequestStarted,
    TickRecord,
    ending_of,
)


def rate(count: float, amount: float) -> float:
    """The count per unit of the amount, such as a second; 0 if that has no meaning."""
    return count / amount if count > 0 and amount > 0 else 0.0


# Any: a field of any type
def _read(read: Callable[["Statistics"], object]) -> Any:
    """A field whose value is read from the sums."""
    return field(metadata={"read": read})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Statistics of the engine since its start, and its present state.

    Rates are per second of busy time: while at least one request lived and was not paused.
    An average is 0 before its first request.
    """

    total_requests: int = _read(lambda sums: sums.accepted)
    """Requests that were accepted."""
    total_batches: int = _read(lambda sums: sums.batches)
    """Forward passes."""
    avg_batch_size: float = _read(lambda sums: rate(sums.entries, sums.batches))
    """Sequences per forward pass."""
    avg_latency_ms: float = _read(lambda sums: rate(sums.latency_ms, sums.latency_count))
    """From arrival to the end, of completed requests that are not background ones."""
    avg_queue_time_ms: float = _read(lambda sums: rate(sums.waited_ms, sums.waited_count))
    """From sending to the first slot, of started requests that are not background ones."""
    requests_per_second: float = _read(lambda sums: rate(sums.completed, sums.busy_s))
    """Completed requests per second of busy time."""
    tokens_per_second: float = _read(lambda sums: rate(sums.completion_tokens, sums.busy_s))
    """Sampled tokens per second of busy time."""
    current_queue_size: int = _read(lambda sums: sums.snapshot.waiting_count)
    """Waiting sequences, also preempted ones."""
    peak_queue_size: int = _read(lambda sums: sums.queue_peak)
    """The most that waited at once."""
    timeout_count: int = _read(lambda sums: sums.ended["deadline"])
    """Requests whose time limit passed; part of `failed_requests`."""
    error_count: int = _read(lambda sums: sums.ended["error"])
    """Requests that failed for any other reason; the rest of `failed_requests`."""

    completed_requests: int = _read(lambda sums: sums.completed)
    """Requests that were answered in full."""
    queued_requests: int = _read(lambda sums: sums.snapshot.waiting_count)
    """The same as `current_queue_size`."""
    avg_wait_time_ms: float = _read(lambda sums: rate(sums.waited_ms, sums.waited_count))
    """The same as `avg_queue_time_ms`."""
    gpu_utilization: float = _read(
        lambda sums: sums.share_of(sums.prefill_s) + sums.share_of(sums.decode_s)
    )
    """Share of the time since the start in forward passes, on any device."""

    cancelled_requests: int = _read(lambda sums: sums.ended["abort"])
    """Requests that their callers cancelled."""
    failed_requests: int = _read(lambda sums: sums.ended["deadline"] + sums.ended["error"])
    """Requests that ended with an error."""
    refused_requests: int = _read(lambda sums: sums.refused.total())
    """Requests that were not accepted; not part of `total_requests`."""
    live_requests: int = _read(lambda sums: sums.unfinished_count)
    """Requests that were accepted and have not ended."""
    slot_count: int = _read(lambda sums: sums.snapshot.slot_count)
    """Sequences that may run at once: `max_num_seqs`."""
    paused_requests: int = _read(lambda sums: sums.snapshot.paused_count)
    """Sequences that their callers paused; not in the queue."""
    active_slots: int = _read(lambda sums: sums.snapshot.running_count)
    """Sequences that run."""
    idle_slots: int = _read(lambda sums: sums.snapshot.slot_count - sums.snapshot.running_count)
    """Sequences that could run beside them: `slot_count` less `active_slots`."""
    cached_slots: int = _read(lambda sums: sums.snapshot.cached_count)
    """Cached prefixes beside the running sequences, each in its own slot."""
    prompt_tokens: int = _read(lambda sums: sums.prompt_tokens)
    """Prompt tokens of accepted requests."""
    computed_prompt_tokens: int = _read(lambda sums: sums.prefill_tokens)
    """Positions computed by prefill, also those computed again after a preemption."""
    cached_tokens: int = _read(lambda sums: sums.cached_tokens)
    """Prompt tokens that were found in the cache when their request started."""
    completion_tokens: int = _read(lambda sums: sums.completion_tokens)
    """Tokens that were made."""
    preemption_count: int = _read(lambda sums: sums.preempted_count)
    """How often a sequence lost its slot to another, for memory or by class."""
    eviction_count: int = _read(lambda sums: sums.evicted)
    """Cached prefixes that were evicted to make room."""
    backend_failure_count: int = _read(lambda sums: sums.backend_losses)
    """Failures of the backend, and of attempts to start it again."""
    moved_count: int = _read(lambda sums: sums.moved)
    """How often a request of a cluster went on with another replica."""
    replicas_gone_count: int = _read(lambda sums: sums.replicas_gone)
    """Connections to replicas of a cluster that ended."""
    kv_used: int = _read(lambda sums: sums.snapshot.kv_used)
    kv_cached: int = _read(lambda sums: sums.snapshot.kv_cached)
    kv_tokens: int = _read(lambda sums: sums.snapshot.kv_tokens)
    """Tokens of memory in all."""
    prefill_share: float = _read(lambda sums: sums.share_of(sums.prefill_s))
    """Share of the time since the start that forward passes spent on prefill."""
    decode_share: float = _read(lambda sums: sums.share_of(sums.decode_s))
    """The same for decodes. In a pass with both, decodes count as long as they take alone."""
    idle_share: float = _read(
        lambda sums: max(0.0, 1.0 - sums.share_of(sums.prefill_s + sums.decode_s)),
    )
    """The rest: the three add up to 1."""
    fixed_cost_ms: float | None = _read(lambda sums: sums.cost_ms[0])
    """C of T(B) = C + B c, the fitted time of a batch of B decodes. None until there were batches
    of two sizes, and where noise makes one of the two negative."""
    cost_per_sequence_ms: float | None = _read(lambda sums: sums.cost_ms[1])
    """c of the same."""
    tokens_per_second_of_one: float | None = _read(lambda sums: sums.rate_limits[0])
    """1 / (C + c): the tokens per second of one sequence, by the same line."""
    tokens_per_second_limit: float | None = _read(lambda sums: sums.rate_limits[1])
    """1 / c: what many sequences together come near, by the same line."""
    uptime_s: float = _read(lambda sums: sums.uptime_s)
    """Time since the start."""
    busy_s: float = _read(lambda sums: sums.busy_s)
    """Time in which at least one request lived."""
    counters: Mapping[str, int] = _read(lambda sums: dict(sums.snapshot.counters))
    """The scheduler's own counters, by name. A copy of its own."""


@dataclass(slots=True)
class Statistics:
    """Sums of records, which only grow, and the last snapshot of the scheduler.

    The engine thread calls `take` and `note`. Other threads call the rest, and read sums of a copy.
    """

    started_at: float
    snapshot: Snapshot
    accepted: int = 0
    ended: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, FinishReason), 0))
    """Requests by how they ended."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests that were not accepted, by the name of the error."""
    prompt_tokens: int = 0
    """Of accepted requests."""
    started_prompt_tokens: int = 0
    """Of those that ran."""
    cached_tokens: int = 0
    completion_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    preempted: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(map(str, PreemptReason), 0)
    )
    evicted: int = 0
    backend_losses: int = 0
    moved: int = 0
    replicas_gone: int = 0
    batches: int = 0
    entries: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    waited_ms: float = 0.0
    waited_count: int = 0
    latency_ms: float = 0.0
    latency_count: int = 0
    """Of requests that started, and of those that completed, without background ones."""
    queue_peak: int = 0
    busy_s: float = 0.0
    """Before `busy_since`, which is None while the engine is not busy."""
    busy_since: float | None = None
    progress_at: float = 0.0
    """When a forward pass ended last, or became due."""
    read_at: float = 0.0
    """In a copy: when it is read."""
    _background: set[RequestId] = field(default_factory=set, repr=False, compare=False)
    """Background requests that have not ended."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def completed(self) -> int:
        """Requests that were answered in full."""
        return self.ended["stop"] + self.ended["length"]

    @property
    def unfinished_count(self) -> int:
        """Requests that were accepted and have not ended."""
        return self.accepted - sum(self.ended.values())

    @property
    def preempted_count(self) -> int:
        """Preemptions in favour of others. A pause is not one of them."""
        return sum(self.preempted.values()) - self.preempted[PreemptReason.PAUSED]

    @property
    def uptime_s(self) -> float:
        """Time since the start."""
        return max(self.read_at - self.started_at, 0.0)

    @property
    def cost_ms(self) -> tuple[float, float] | tuple[None, None]:
        """C and c of the fitted time of a batch; None where the line falls, because of noise."""
        fit = self.snapshot.fit
        if fit is None or fit.sequence_s is None or min(fit.fixed_s, fit.sequence_s) < 0.0:
            return None, None
        return fit.fixed_s * 1e3, fit.sequence_s * 1e3

    @property
    def rate_limits(self) -> tuple[float | None, float | None]:
        """1 / (C + c) and 1 / c, each None where it is not known."""
        fixed_ms, sequence_ms = self.cost_ms
        if fixed_ms is None or sequence_ms is None:
            return None, None
        return rate(1e3, fixed_ms + sequence_ms) or None, rate(1e3, sequence_ms) or None

    def share_of(self, spent_s: float) -> float:
        """The share of the time since the start."""
        # A backend may report more time than has passed.
        return rate(spent_s, max(self.uptime_s, self.prefill_s + self.decode_s))

    def copied(self) -> "Statistics":
        """A copy as it is now."""
        with self._lock:
            return replace(
                self,
                ended=dict(self.ended),
                refused=Counter(self.refused),
                preempted=dict(self.preempted),
            )

    def take(self, record: Record) -> None:
        """Count one record."""
        with self._lock:
            match record:
                case TickRecord():
                    self._add_tick(record)
                case RequestAccepted():
                    self._add_accepted(record)
                case RequestRefused():
                    self.refused[type(record.error).__name__] += 1
                case RequestStarted():
                    self._add_started(record)
                case RequestDone() | RequestFailed():
                    self._add_end(record)
                case RequestPreempted():
                    self.preempted[record.reason.value] += 1
                case KvPressure():
                    self.evicted += record.evicted_count
                case BackendLost():
                    self.backend_losses += 1
                case RequestMoved() | ReplicaGone() | RequestProgressed():
                    # Tokens are counted where they are made.
                    self.moved += isinstance(record, RequestMoved)
                    self.replicas_gone += isinstance(record, ReplicaGone)
                case _:
                    assert_never(record)

    def note(self, snapshot: Snapshot, now: float) -> None:
        """Keep a snapshot of the scheduler."""
        with self._lock:
            if not self.snapshot.is_work_due and snapshot.is_work_due:
                self.progress_at = now
            self.snapshot = snapshot
            self.queue_peak = max(self.queue_peak, snapshot.waiting_count)
            # While all are paused, the engine is not busy.
            if not snapshot.running_count and not snapshot.waiting_count:
                self._stop_busy(now)
            elif self.busy_since is None and self.unfinished_count:
                self.busy_since = now

    def stalled_s(self, now: float) -> float:
        """How long no forward pass has ended though one is due; 0 while none is due."""
        with self._lock:
            since = max(self.progress_at, self.started_at)
            return max(0.0, now - since) if self.snapshot.is_work_due else 0.0

    def stats(self, now: float) -> Stats:
        """The statistics at `now`."""
        sums = self.copied()
        sums.read_at = now
        sums._stop_busy(now)
        return Stats(**{each.name: each.metadata["read"](sums) for each in fields(Stats)})

    def _add_accepted(self, record: RequestAccepted) -> None:
        self.accepted += 1
        self.prompt_tokens += record.prompt_tokens
        if self.busy_since is None:
            self.busy_since = record.at
        if record.is_background:
            self._background.add(record.request_id)

    def _add_started(self, record: RequestStarted) -> None:
        self.started_prompt_tokens += record.prompt_tokens
        self.cached_tokens += record.prefix_cache_tokens
        if record.request_id not in self._background:
            self.waited_count += 1
            self.waited_ms += record.waited_ms

    def _add_tick(self, record: TickRecord) -> None:
        self.batches += 1
        self.entries += record.batch_size
        self.prefill_s += (record.forward_ms - record.decode_ms) / 1e3
        self.decode_s += record.decode_ms / 1e3
        self.prefill_tokens += record.prefill_tokens
        self.decode_tokens += record.decode_tokens
        self.completion_tokens += record.sampled_tokens
        self.progress_at = record.at

    def _add_end(self, record: RequestDone | RequestFailed) -> None:
        ending = ending_of(record)
        self.ended[ending] += 1
        if record.request_id in self._background:
            self._background.remove(record.request_id)
        elif ending in ("stop", "length"):
            self.latency_count += 1
            self.latency_ms += record.duration_ms
        assert self.unfinished_count >= 0, "more requests ended than were accepted"
        if self.unfinished_count == 0:
            self._stop_busy(record.at)

    def _stop_busy(self, now: float) -> None:
        if self.busy_since is not None:
            self.busy_s += max(now - self.busy_since, 0.0)
            self.busy_since = None
