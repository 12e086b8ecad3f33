"""The numbers that the scheduler runs by, and the names of its strategies, policies and mixes.

Only what the core needs; `jitney.config` is where people set them. Frozen after start.

Tests: tests/unit/core/test_scheduler.py.
"""

from dataclasses import dataclass
from enum import StrEnum

from jitney.core.policy import SchedulingPolicy


class Strategy(StrEnum):
    """When waiting requests may join."""

    CONTINUOUS = "continuous"
    """At any tick, or where there is a window, when it is over."""
    STATIC = "static"
    """A group departs when it is full or its oldest waited `wait_s`, and runs to its end."""
    DYNAMIC = "dynamic"
    """As static, with a shorter wait."""
    ADAPTIVE = "adaptive"
    """As dynamic, with groups that are larger when many wait and smaller when ticks are slow."""


class Policy(StrEnum):
    """Who among the waiting is next."""

    FIFO = "fifo"
    PRIORITY = "priority"
    SJF = "sjf"
    FAIR = "fair"


class Mix(StrEnum):
    """How a tick's token budget is split between those who generate and those who prefill."""

    DECODE_FIRST = "decode-first"
    PREFILL_FIRST = "prefill-first"
    BALANCED = "balanced"
    BOUNDED_STALL = "bounded-stall"
    SEPARATE = "separate"
    """A tick carries prefills or decodes, never both."""


class GroupAnswers(StrEnum):
    """When the answers of a group are handed out."""

    TOGETHER = "together"
    EACH = "each"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Limits and choices of one scheduler; memory and slots come from the backend's traits."""

    model_len_max: int
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 2048
    prefill_chunk: int = 512
    enable_prefix_caching: bool = True
    cache_tokens: int | None = None
    """Most tokens that idle cached prefixes may hold; None leaves it to the memory."""
    watermark: float = 0.02
    """Share of the memory that admission leaves free, so that running sequences can grow."""
    saved_limit: int = 2**30
    strategy: Strategy = Strategy.CONTINUOUS
    policy: Policy | SchedulingPolicy = Policy.FIFO
    mix: Mix = Mix.BOUNDED_STALL
    wait_s: float | None = 0.0
    """How long newcomers are gathered before they run; None is until a group is full."""
    window_size: int | None = None
    """Newcomers that end the window of `continuous` early; None is as many as have a place."""
    min_batch_size: int = 1
    """The fewest that depart together before `wait_s` is over."""
    group_answers: GroupAnswers = GroupAnswers.TOGETHER
    prefill_batch_size: int | None = None
    decode_batch_size: int | None = None
    """Sequences in one tick of prefills, and of decodes, under the mix `separate`."""
    enable_preemption: bool = True
    """Whether a request of a higher class takes the place of one of a lower class that runs."""
    stall_s_target: float = 0.1
    tick_s_target: float = 0.1
    """Ticks that take longer make the groups of `adaptive` smaller."""
    overtake_s: float = 30.0
    """No request is overtaken by one that arrived more than this later."""
    max_num_queued_reqs: int = 1024
    max_num_queued_tokens: int = 1_000_000
    queue_timeout_s: float | None = None
    request_timeout_s: float | None = None

    def __post_init__(self) -> None:
        assert self.max_num_seqs >= 1, self.max_num_seqs
        assert self.prefill_chunk >= 1, self.prefill_chunk
        # With fewer tokens than sequences a prefilling sequence could starve behind decodes.
        assert self.max_num_batched_tokens >= self.max_num_seqs, self.max_num_batched_tokens
