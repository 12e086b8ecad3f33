"""Settings of the scheduler: the names of its strategies, policies and mixes, and users' policies.

Only what the core needs. People set them in `jitney.config`. Frozen.

Tests: tests/unit/core/test_scheduler.py.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from jitney.core.request import Priority


class Strategy(StrEnum):
    """When waiting requests may join."""

    CONTINUOUS = "continuous"
    """At any tick; or at the end of the window, if there is one."""
    STATIC = "static"
    """A group starts when it is full, or its oldest waited `wait_s`, and runs to its end."""
    DYNAMIC = "dynamic"
    """Like static, always with a `wait_s`."""
    ADAPTIVE = "adaptive"
    """Like dynamic. Groups are smaller while ticks of full ones are slow."""


class Policy(StrEnum):
    """Which waiting sequence is next."""

    FIFO = "fifo"
    PRIORITY = "priority"
    SJF = "sjf"
    FAIR = "fair"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A waiting sequence, as a policy sees it. Times are seconds on the engine's clock."""

    request_id: str
    arrived_at: float
    """When the engine accepted it."""
    priority: Priority
    tenant: str
    prompt_tokens: int
    generated_tokens: int
    """Above 0 if it ran before and was preempted or paused."""
    max_tokens: int
    """The most tokens that it may generate."""
    work_left: int
    """Tokens to compute if it runs to its limit: those of its prompt and `max_tokens`. What it
    computed before counts again, because its memory may be gone."""


@runtime_checkable
class SchedulingPolicy(Protocol):
    """An order of waiting requests that users write themselves.

    Called on the engine thread, once each time a sequence joins the queue. It only orders the
    queue. A sequence that waited longer than `overtake_s` is still next, and `max_num_seqs`, memory
    and shares do not depend on it.
    """

    def rank(self, candidate: Candidate) -> float:
        """Its rank: the smallest is next; of equal ones, the older. Must be quick."""


class Mix(StrEnum):
    """How the token budget of a tick is split between decodes and prefills."""

    DECODE_FIRST = "decode-first"
    PREFILL_FIRST = "prefill-first"
    BALANCED = "balanced"
    BOUNDED_STALL = "bounded-stall"
    SEPARATE = "separate"
    """A tick has prefills or decodes, never both."""


class GroupAnswers(StrEnum):
    """When the answers of a group are given out."""

    TOGETHER = "together"
    EACH = "each"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Limits and choices of one scheduler. Memory and slots come from the backend's traits."""

    model_len_max: int
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 2048
    prefill_chunk: int = 512
    enable_prefix_caching: bool = True
    watermark: float = 0.02
    """Share of the memory that admission keeps free, so that running sequences can grow."""
    kept_state_every: int = 1024
    """Where slots cannot be cut back, a copy of the state is kept after so many tokens of a prompt,
    and shortly before its end. Each copy takes a slot and, for a small model, some megabytes; and
    each ends a span, so prompts would be slower with more of them."""
    saved_limit: int = 2**30
    stored_min: int = 1024
    """A prompt is stored on the disk, or asked of it, if so many of its tokens are to be computed.
    For a small model that many take a second or more."""
    strategy: Strategy = Strategy.CONTINUOUS
    policy: Policy | SchedulingPolicy = Policy.FIFO
    mix: Mix = Mix.BOUNDED_STALL
    wait_s: float | None = 0.0
    """How long newcomers are gathered before they run; None: until a group is full."""
    min_batch_size: int = 1
    """Above 1, so many newcomers start before `wait_s` is over; 1: as many as have a place."""
    group_answers: GroupAnswers = GroupAnswers.TOGETHER
    prefill_batch_size: int | None = None
    decode_batch_size: int | None = None
    """Sequences in one tick of prefills and of decodes, under the mix `separate`."""
    enable_preemption: bool = True
    """Whether a request of a higher class may displace a running one of a lower class. Preemption
    for memory, and of background sequences, stays."""
    stall_s_target: float = 0.1
    """What a tick may take under `bounded-stall`. Slower ticks make `adaptive` groups smaller."""
    overtake_s: float = 30.0
    """No request is overtaken by one that arrived more than this time later."""
    max_num_queued_reqs: int = 1024
    max_num_queued_tokens: int = 1_000_000
    queue_timeout_s: float | None = None
    request_timeout_s: float | None = None

    def __post_init__(self) -> None:
        assert self.max_num_seqs >= 1, self.max_num_seqs
        assert self.prefill_chunk >= 1, self.prefill_chunk
        # With fewer tokens than sequences, a prefill could starve behind decodes.
        assert self.max_num_batched_tokens >= self.max_num_seqs, self.max_num_batched_tokens

    @property
    def uses_priorities(self) -> bool:
        """Whether a priority may have an effect: a policy of the user's own may look at it."""
        return self.policy is Policy.PRIORITY or not isinstance(self.policy, Policy)

    def enough(self, places: int) -> int:
        """So many newcomers start before `wait_s` is over, where so many have a place."""
        return self.min_batch_size if self.min_batch_size > 1 else places
