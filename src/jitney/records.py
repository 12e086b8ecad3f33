"""What the engine does, as it happens: the records that `LLM.engine.observe` hands out.

Frozen, with ids and numbers and never text. Made by the tick, read by the statistics and by
observers; nothing here acts. docs/reference/records.md lists every field.

Tests: tests/unit/engine/test_tick.py and tests/unit/scripts/test_records_page.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jitney.core.events import PreemptReason
from jitney.core.request import Priority, RequestId
from jitney.errors import DeadlineExceeded, JitneyError

__all__ = [
    "BackendLost",
    "KvPressure",
    "Member",
    "Observer",
    "PreemptReason",
    "Record",
    "RequestAccepted",
    "RequestDone",
    "RequestFailed",
    "RequestPreempted",
    "RequestRefused",
    "RequestStarted",
    "TickRecord",
]


@dataclass(frozen=True, slots=True)
class Member:
    """One sequence's part of a batch, for people: who, in which slot, which span."""

    request_id: RequestId
    index: int
    slot: int
    """The slot of memory that it runs in."""
    start: int
    """The first position of its span, counted from the beginning of the prompt."""
    length: int
    """Positions of its span."""
    samples: bool = False
    """Whether a token came of it that its sequence could take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickRecord:
    """One forward pass, and how the engine stood after it.

    An entry of one position that wants a token counts as decode, all others as prefill.
    `members` leaves out those who ended before the pass did.
    """

    at: float
    """When its outcome was taken in, in seconds on the engine's clock."""
    number: int
    """Counts batches from 1; one that was lost with the backend has no record."""
    batch_size: int
    """Sequences in the batch."""
    decode_tokens: int
    """Positions of sequences that make one token after the other."""
    prefill_tokens: int
    """Positions that were computed, of prompts and of what was lost in a preemption."""
    active_slots: int
    """Sequences that run."""
    queue_depth: int
    """Sequences that wait, preempted ones included."""
    kv_used: int
    kv_cached: int
    sampled_tokens: int
    """Tokens that were made."""
    preempted_count: int
    """Sequences that lost their slot while the batch was planned."""
    forward_ms: float
    """The forward pass alone, as the backend measured it."""
    decode_ms: float
    """Of that, the part of the decodes: what they take by themselves, as fitted from ticks without
    prefill. The rest is the part of prefill."""
    tick_ms: float
    """The whole turn; from the end of the pass before it, where that is later than the moment
    this one was sent."""
    members: tuple[Member, ...] = ()
    """Who was in the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAccepted:
    """A request was taken: it will end exactly once.

    Latencies count from `arrived_at`, the wait for a slot from `sent_at`; between the two it was
    read and tokenised.
    """

    at: float
    request_id: RequestId
    prompt_tokens: int
    arrived_at: float
    """When it came in; its latencies count from here."""
    sent_at: float
    """When it was handed to the engine; its wait for a slot counts from here."""
    completions: int
    """How many it wants of its prompt."""
    max_tokens: int | None
    """Of each completion; None is as many as fit the model."""
    priority: Priority
    """Its class, from LOW (0) to CRITICAL (3)."""
    tenant: str
    """Whose it is; empty where that is not known."""
    reply_id: str = ""
    """The reply over HTTP that it is a part of; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused:
    """A request was refused; its caller knows why."""

    at: float
    request_id: RequestId
    error: JitneyError


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStarted:
    """A request got its first slot."""

    at: float
    request_id: RequestId
    prompt_tokens: int
    prefix_cache_tokens: int
    waited_ms: float
    """For its first slot, since it was handed to the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDone:
    """A request ended as it should, or was cancelled; rates are in tokens per second.

    A rate is 0 where it has no meaning.
    """

    at: float
    request_id: RequestId
    prompt_tokens: int
    generated_tokens: int
    duration_ms: float
    queue_ms: float | None
    """The wait for the first slot; None when it never had one."""
    ttft_ms: float | None
    """From arrival to the first token; None when there was none."""
    prompt_eval_rate: float
    """Prompt tokens that were computed, from the first slot to the first token."""
    generation_rate: float
    """Tokens after the first ones, from the first token to the end."""
    prefix_cache_tokens: int
    prefix_cache_ratio: float
    """Of the prompt, the share that was found in the cache."""
    preempted_count: int
    """How often one of its completions lost its slot."""
    was_cancelled: bool
    """Whether it was ended before it was done."""
    stop_reason: str
    """The finish reason of its first completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """A request ended with an error, which its caller got."""

    at: float
    request_id: RequestId
    error: JitneyError
    generated_tokens: int
    duration_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPreempted:
    """A sequence of a request lost its slot to request `by` and waits again."""

    at: float
    request_id: RequestId
    index: int
    reason: PreemptReason
    """What became of its memory, or that it was displaced by class."""
    by: RequestId
    """The request that got its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPressure:
    """Memory ran short in a tick: cached prefixes were evicted, or sequences preempted."""

    at: float
    evicted_count: int
    """Cached prefixes that were given up."""
    preempted_count: int
    """For memory: those displaced by class are not among them."""
    kv_used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendLost:
    """The backend failed or crashed, or could not be started again."""

    at: float
    error: str
    restarts_failed: int
    """Attempts to start it again that have failed in a row."""


Record = (
    TickRecord
    | RequestAccepted
    | RequestRefused
    | RequestStarted
    | RequestPreempted
    | RequestDone
    | RequestFailed
    | KvPressure
    | BackendLost
)

Observer = Callable[[Record], None]


def ending_of(record: RequestDone | RequestFailed) -> str:
    """How a request ended: stop, length, abort, deadline or error."""
    if isinstance(record, RequestDone):
        return "abort" if record.was_cancelled else record.stop_reason
    return "deadline" if isinstance(record.error, DeadlineExceeded) else "error"
