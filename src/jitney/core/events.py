"""Events: what the scheduler reports about a sequence. Frozen; read by the tick and the collector.

A sequence is identified by its request and its index among the request's completions.

Tests: tests/unit/core/test_scheduler.py.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from jitney.core.batch import FaultKind, TokenLogprob
from jitney.core.request import RequestId, SequenceName
from jitney.core.value import value


class FinishReason(StrEnum):
    """Why a sequence ended; values are those of the vLLM and OpenAI APIs where they have one."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "abort"
    DEADLINE = "deadline"
    FAILED = "error"


class PreemptReason(StrEnum):
    """Why a sequence was preempted, and what happened to its memory."""

    SAVED = "saved"
    """Memory ran out. Its memory was saved, to be restored."""
    RECOMPUTED = "recomputed"
    """Memory ran out. Its memory was given up and will be computed again."""
    DISPLACED = "displaced"
    """A request of a higher class got its slot, or a live one that of a background one. Its memory
    stays cached if only a slot was needed. If memory was needed, it is saved or given up."""
    PAUSED = "paused"
    """Its caller paused it. Its memory stays cached while there is room."""

    @property
    def is_of_memory(self) -> bool:
        """Whether memory ran out."""
        return self in (PreemptReason.SAVED, PreemptReason.RECOMPUTED)


@dataclass(frozen=True, slots=True)
class StartEvent:
    """The sequence got its first slot. `cached_count` prompt tokens need not be computed."""

    request_id: RequestId
    index: int
    at: float
    cached_count: int


@dataclass(frozen=True, slots=True)
class PromptEvent:
    """Logprobs of some prompt tokens, in order of position; `start` is that of the first."""

    request_id: RequestId
    index: int
    start: int
    logprobs: tuple[TokenLogprob, ...]


@value
class TokensEvent:
    """The tokens of a tick, as columns: one for each sequence that got one.

    End tokens are left out, because they are not text. `logprobs` are by the place of their token.
    """

    at: float
    names: list[SequenceName] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreemptEvent:
    """The sequence lost its slot and waits again. `by` is the request for which it was preempted.

    If its caller paused it, `by` is its own request.
    """

    request_id: RequestId
    index: int
    at: float
    reason: PreemptReason
    by: RequestId


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The last event of a sequence (invariant 1).

    `stop_reason` is the token or the stop string that ended it; None for the model's own end token.
    `completion_count` counts every sampled token, also an end token. `message` is a sentence that
    says why it failed, and `fault_kind` says who has to act then.
    """

    request_id: RequestId
    index: int
    at: float
    reason: FinishReason
    completion_count: int
    cached_count: int
    preempted_count: int
    stop_reason: str | int | None = None
    message: str | None = None
    fault_kind: FaultKind = FaultKind.BACKEND


LifeEvent = StartEvent | PromptEvent | PreemptEvent | FinishEvent
"""What happens to one sequence, but for its tokens."""

Event = LifeEvent | TokensEvent
