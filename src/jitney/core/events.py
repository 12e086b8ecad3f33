"""What the scheduler reports about a sequence. Frozen; read by the collector and by observers.

A sequence is named by its request and its index among the request's completions.

Tests: tests/unit/core/test_scheduler.py.
"""

from dataclasses import dataclass
from enum import StrEnum

from jitney.core.batch import FaultKind, TokenLogprob
from jitney.core.request import RequestId


class FinishReason(StrEnum):
    """Why a sequence ended; values are those of the vLLM and OpenAI APIs where they have one."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "abort"
    DEADLINE = "deadline"
    FAILED = "error"


class PreemptReason(StrEnum):
    """What a preempted sequence had to make room for, and what became of its memory."""

    SAVED = "saved"
    """Memory ran out; its own was saved, to be restored."""
    RECOMPUTED = "recomputed"
    """Memory ran out; its own was given up, to be computed again."""
    DISPLACED = "displaced"
    """A request of a higher class took its place; its memory stays cached while there is room."""
    PAUSED = "paused"
    """Its caller paused it; its memory stays cached while there is room."""

    @property
    def is_of_memory(self) -> bool:
        """Whether it was memory that ran out."""
        return self in (PreemptReason.SAVED, PreemptReason.RECOMPUTED)


@dataclass(frozen=True, slots=True)
class StartEvent:
    """The sequence got its first slot: `cached_count` prompt tokens need not be computed."""

    request_id: RequestId
    index: int
    at: float
    waited_s: float
    cached_count: int


@dataclass(frozen=True, slots=True)
class PromptEvent:
    """Logprobs of some prompt tokens, in order of position; `start` is that of the first."""

    request_id: RequestId
    index: int
    start: int
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A token of the completion. Not sent for an end token, which is no part of the text."""

    request_id: RequestId
    index: int
    at: float
    token: int
    logprob: TokenLogprob | None


@dataclass(frozen=True, slots=True)
class PreemptEvent:
    """The sequence lost its slot and waits again; `by` is the request that it made room for.

    One that was paused made room for nobody, and `by` is its own.
    """

    request_id: RequestId
    index: int
    at: float
    reason: PreemptReason
    by: RequestId


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The last event of a sequence (invariant 1).

    `stop_reason` is the token that ended it when that is not the model's own end token.
    `completion_count` counts every sampled token, an end token included. `message` says why it
    failed, in a sentence for people, and `fault_kind` whose turn it is then.
    """

    request_id: RequestId
    index: int
    at: float
    reason: FinishReason
    prompt_count: int
    completion_count: int
    cached_count: int
    preempted_count: int
    stop_reason: int | None = None
    message: str | None = None
    fault_kind: FaultKind = FaultKind.BACKEND


Event = StartEvent | PromptEvent | TokenEvent | PreemptEvent | FinishEvent
