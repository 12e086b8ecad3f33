"""Records of what the engine does, at the moment it happens. `LLM.engine.observe` hands them out.

Frozen, with ids and numbers and never text. The tick makes them; statistics and observers read
them. docs/reference/records.md lists every field.

Tests: tests/unit/engine/test_tick.py and tests/unit/scripts/test_records_page.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from jitney.core.events import PreemptReason as PreemptReason
from jitney.core.request import Priority, RequestId, SequenceName
from jitney.core.value import named_value, value
from jitney.errors import DeadlineExceeded, JitneyError


@value
class Member:
    """One sequence's part of a batch: its request, its slot and its span."""

    request_id: RequestId
    index: int
    slot: int
    """The memory slot that it runs in."""
    start: int
    """The first position of its span, counted from the beginning of the prompt."""
    length: int
    """How many positions its span has."""
    samples: bool = False
    """Whether its sequence got a token from it."""


@value
class Members:
    """The sequences of a batch: `for member in members`.

    Those of one position that got a token are columns, and become members when they are looked at.
    """

    names: tuple[SequenceName, ...] = ()
    slots: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    others: tuple[Member, ...] = ()

    @property
    def sampled_count(self) -> int:
        """How many of them got a token."""
        count = len(self.names)
        for each in self.others:
            count += each.samples
        return count

    def __len__(self) -> int:
        return len(self.names) + len(self.others)

    def __iter__(self) -> Iterator[Member]:
        for name, slot, start in zip(self.names, self.slots, self.starts, strict=True):
            yield Member(*name, slot, start, 1, True)
        yield from self.others


@named_value
class TickRecord:
    """One forward pass, and the state of the engine after it.

    An entry of one position that wants a token counts as decode, all others as prefill.
    `members` leaves out sequences that ended while the pass ran.
    """

    at: float
    """When its outcome was applied, in seconds on the engine's clock."""
    number: int
    """The number of the batch, from 1. A batch that was lost with the backend has no record."""
    batch_size: int
    """Sequences in the batch."""
    decode_tokens: int
    """Positions of sequences that generate one token per pass."""
    prefill_tokens: int
    """Computed positions of prompts, and of tokens that a preemption lost."""
    active_slots: int
    """Sequences that run."""
    queue_depth: int
    """Sequences that wait, with preempted ones."""
    kv_used: int
    kv_cached: int
    sampled_tokens: int
    """Tokens that were made."""
    preempted_count: int
    """Sequences that were preempted or displaced while the batch was planned."""
    forward_ms: float
    """The forward pass alone, as the backend measured it."""
    decode_ms: float
    """The part of `forward_ms` for the decodes, as fitted from ticks without prefill. The rest is
    the part for prefill."""
    tick_ms: float
    """The whole tick. It begins when the batch was sent, or when the pass before it ended, if that
    was later."""
    members: Members = Members()
    """The sequences of the batch that still live, each with its slot and its span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAccepted:
    """A request was accepted: it will end exactly once.

    Latencies count from `arrived_at`, the wait for a slot from `sent_at`. Between the two, the
    request was read and tokenised.
    """

    at: float
    request_id: RequestId
    prompt_tokens: int
    arrived_at: float
    """When it arrived; its latencies count from here."""
    sent_at: float
    """When it was put into the engine's inbox; its wait for a slot counts from here."""
    completions: int
    """How many completions of its prompt it wants."""
    max_tokens: int | None
    """The most tokens of each completion; None is as many as fit the model."""
    priority: Priority
    """Its priority class, from LOW (0) to CRITICAL (3)."""
    tenant: str
    """Whose request it is; empty if not known."""
    reply_id: str = ""
    """The id of the HTTP reply that it is a part of; empty without one."""
    is_chat: bool = False
    """Whether it was a chat over HTTP."""
    is_background: bool = False
    """Whether it runs behind all live requests, as lines of batches do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused:
    """A request was refused; its caller got the error."""

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
    """The wait for its first slot, since it was put into the engine's inbox."""
    replica: str = ""
    """The replica that runs it; empty where there is one engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDone:
    """A request ended normally or was cancelled. Rates are in tokens per second.

    A rate is 0 if it has no meaning.
    """

    at: float
    request_id: RequestId
    prompt_tokens: int
    generated_tokens: int
    duration_ms: float
    queue_ms: float | None
    """The wait for the first slot; None if it never had one."""
    ttft_ms: float | None
    """From arrival to the first token; None if there was none."""
    prompt_eval_rate: float
    """Computed prompt tokens per second, from the first slot to the first token."""
    generation_rate: float
    """Tokens after the first ones per second, from the first token to the end."""
    prefix_cache_tokens: int
    prefix_cache_ratio: float
    """The share of the prompt that was in the cache."""
    preempted_count: int
    """How often one of its completions was preempted or displaced."""
    was_cancelled: bool
    """Whether it was cancelled before it was done."""
    stop_reason: str
    """The finish reason of its first completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """A request ended with an error, and its caller got the error."""

    at: float
    request_id: RequestId
    error: JitneyError
    generated_tokens: int
    duration_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPreempted:
    """A sequence of a request lost its slot and waits again."""

    at: float
    request_id: RequestId
    index: int
    reason: PreemptReason
    """What happened to its memory, or that a request before it displaced it."""
    by: RequestId
    """The request that needed its slot or its memory. If its caller paused it, its own id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestProgressed:
    """How far a request of a cluster is. One engine tells it with its ticks instead.

    Told at its first token, at the first one after a move, about twice a second between, and before
    its end if it has more tokens by then.
    """

    at: float
    request_id: RequestId
    generated_tokens: int
    token_gaps_s: tuple[float, ...] = ()
    """Seconds between its tokens, as they came from its replicas: those since it was told before.
    A completion's first token has none."""


class MoveReason(StrEnum):
    """Why a request goes on with another replica."""

    LOST = "lost"
    """Its replica died, or was silent for too long."""
    LEFT = "left"
    """Its replica was stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMoved:
    """A request of a cluster goes on with another replica, which has accepted it."""

    at: float
    request_id: RequestId
    from_replica: str
    """The replica that had accepted it before."""
    to_replica: str
    """The one that has it now. The same one if only its connection was lost."""
    generated_tokens: int
    reason: MoveReason
    """Why the replica before could not go on with it."""
    away_ms: float
    """How long no replica had it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGone:
    """The connection to a replica of a cluster has ended: it died, was stopped, or was silent."""

    at: float
    replica: str
    """Its name. A replica that takes its place has another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPressure:
    """Memory was short in a tick: cached prefixes were evicted, or sequences preempted."""

    at: float
    evicted_count: int
    """Cached prefixes that were evicted."""
    preempted_count: int
    """Sequences preempted for memory, without displaced ones."""
    kv_used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendLost:
    """The backend failed or crashed, or could not be started again."""

    at: float
    error: str
    restarts_failed: int
    """How many attempts to start it again have failed in a row."""


LifeRecord = (
    RequestStarted
    | RequestPreempted
    | RequestProgressed
    | RequestMoved
    | RequestDone
    | RequestFailed
)
"""What happens to a request after it was accepted."""

Record = (
    TickRecord
    | RequestAccepted
    | RequestRefused
    | LifeRecord
    | ReplicaGone
    | KvPressure
    | BackendLost
)

Observer = Callable[[Record], None]


def ending_of(record: RequestDone | RequestFailed) -> str:
    """How a request ended: stop, length, abort, deadline or error."""
    if isinstance(record, RequestDone):
        return "abort" if record.was_cancelled else record.stop_reason
    return "deadline" if isinstance(record.error, DeadlineExceeded) else "error"
