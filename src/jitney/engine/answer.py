"""What callers receive: deltas while a request runs, and one ending when it is over.

Frozen values, made by the collector on the engine thread and read by anyone. `tokens` and
`logprobs` leave out the end token that closed a completion: it is no part of the text, though
`usage.completion_count` counts it, because it was computed.

Tests: tests/unit/engine/test_collector.py.
"""

from dataclasses import dataclass

from jitney.core.batch import FaultKind, TokenLogprob
from jitney.core.events import FinishReason
from jitney.core.request import Request
from jitney.errors import JitneyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New text of one completion, with the tokens it came with.

    Text that may turn out to be part of a stop string, or half a character, is held back; its
    tokens come with the delta that brings it. The last delta of a completion has a finish reason,
    and its text may be empty.
    """

    index: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What was counted: prompt tokens, sampled tokens, prompt tokens that were not computed."""

    prompt_count: int
    completion_count: int
    cached_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds since the request arrived; None for a moment that never came.

    Of them it spent the first `door_s` on its way to the engine, and then `queue_s` waiting.
    """

    queue_s: float | None
    first_token_s: float | None
    total_s: float
    door_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One finished sequence. `message` says in a sentence why it failed or was cut, when it was.
    `fault_kind` is for those that failed.

    `logprobs` are None where none were asked for, and where they were passed on as they came, to a
    reader with a bound on what may lie unread.
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

    `total_s` runs until the caller was told, which under a group strategy is later than the end
    of the last completion.
    `prompt_logprobs` are those of the prompt tokens from the second on, when they were asked for.
    """

    request: Request
    completions: tuple[Completion, ...]
    total_s: float
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None

    @property
    def usage(self) -> Usage:
        """The prompt counted once, the completions summed."""
        first = self.completions[0].usage
        return Usage(
            prompt_count=first.prompt_count,
            completion_count=sum(each.usage.completion_count for each in self.completions),
            cached_count=first.cached_count,
        )

    @property
    def timing(self) -> Timing:
        """The earliest start and first token of its completions, and the end of it all."""
        timings = [each.timing for each in self.completions]
        starts = [each.queue_s for each in timings if each.queue_s is not None]
        firsts = [each.first_token_s for each in timings if each.first_token_s is not None]
        return Timing(
            queue_s=min(starts, default=None),
            first_token_s=min(firsts, default=None),
            total_s=self.total_s,
            door_s=timings[0].door_s,
        )

    @property
    def preempted_count(self) -> int:
        """How often its sequences lost their slot."""
        return sum(each.preempted_count for each in self.completions)

    @property
    def was_cancelled(self) -> bool:
        """Whether at least one completion was cut short by a cancel."""
        return any(each.finish_reason is FinishReason.CANCELLED for each in self.completions)


@dataclass(frozen=True, slots=True)
class Ending:
    """The one last thing a caller is told (invariant 1).

    Without an error the answer is there. With one, the answer holds what was made until then, or
    is None when the request was refused or the engine stopped.
    """

    answer: Answer | None
    error: JitneyError | None = None

    def __post_init__(self) -> None:
        assert self.answer is not None or self.error is not None, "an ending says something"

    @property
    def was_cancelled(self) -> bool:
        """Whether a cancel cut it short."""
        return self.answer is not None and self.answer.was_cancelled
