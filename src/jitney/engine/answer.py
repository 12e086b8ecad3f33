"""What callers get: deltas while a request runs, and one ending when it is over.

Frozen values, made by the collector on the engine thread and read on any thread. `tokens` and
`logprobs` do not include the end token of a completion, because it is not text.
`usage.completion_count` counts it, because it was computed.

Tests: tests/unit/engine/test_collector.py.
"""

from dataclasses import dataclass

from jitney.core.batch import FaultKind, TokenLogprob
from jitney.core.events import FinishReason
from jitney.core.request import Request
from jitney.core.value import value
from jitney.errors import JitneyError


@value
class Delta:
    """New text of one completion, with its tokens.

    Text that may be part of a stop string, or half a character, is held back. Its tokens come with
    the delta that has the text. The last delta of a completion has a finish reason, and its text
    may be empty.
    """

    index: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Counts of prompt tokens, sampled tokens, and prompt tokens from the cache."""

    prompt_count: int
    completion_count: int
    cached_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds since the request arrived; None for a moment that never came.

    `sent_s` is the time until it was sent to the engine. `queue_s` is the wait after that.
    """

    queue_s: float | None
    first_token_s: float | None
    total_s: float
    sent_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One finished sequence. If it failed or was cut, `message` is a sentence that says why.
    `fault_kind` is for failed ones.

    `logprobs` is None if none were requested, or if the mailbox is bounded: then they went out with
    the deltas.
    """

    index: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    cumulative_logprob: float | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    usage: Usage
    timing: Timing
    preempted_count: int
    message: str | None = None
    fault_kind: FaultKind = FaultKind.BACKEND


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All completions of a request, in order of index.

    `total_s` is the time until the caller got the answer. Under a group strategy that is later than
    the end of the last completion.
    `prompt_logprobs` are those of the prompt tokens from the second on, if they were requested.
    """

    request: Request
    completions: tuple[Completion, ...]
    total_s: float
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None

    @property
    def usage(self) -> Usage:
        """The prompt once, and the sum of the completions."""
        first = self.completions[0].usage
        return Usage(
            prompt_count=first.prompt_count,
            completion_count=sum(each.usage.completion_count for each in self.completions),
            cached_count=first.cached_count,
        )

    @property
    def timing(self) -> Timing:
        """The earliest start and first token of its completions, and the end of the request."""
        timings = [each.timing for each in self.completions]
        starts = [each.queue_s for each in timings if each.queue_s is not None]
        firsts = [each.first_token_s for each in timings if each.first_token_s is not None]
        return Timing(
            queue_s=min(starts, default=None),
            first_token_s=min(firsts, default=None),
            total_s=self.total_s,
            sent_s=timings[0].sent_s,
        )

    @property
    def preempted_count(self) -> int:
        """How often its sequences were preempted or displaced."""
        return sum(each.preempted_count for each in self.completions)

    @property
    def was_cancelled(self) -> bool:
        """Whether a cancel ended at least one completion."""
        return any(each.finish_reason is FinishReason.CANCELLED for each in self.completions)


@dataclass(frozen=True, slots=True)
class Ending:
    """The last message to a caller; there is exactly one (invariant 1).

    Without an error there is an answer. With an error, the answer has what was made before it, or
    is None if the request was refused or the engine stopped.
    """

    answer: Answer | None
    error: JitneyError | None = None

    def __post_init__(self) -> None:
        assert self.answer is not None or self.error is not None, "an ending says something"

    def raise_error(self) -> None:
        """Raise the error, if there is one."""
        if self.error is not None:
            raise self.error
