"""`BatchRequest` and `BatchResult` of a `BatchProcessor`: what it was asked, and what came of it.

The processor makes them and fills them in, on the thread that calls back. A result is frozen.

Tests: tests/unit/api/test_batch_processor.py.
"""

from dataclasses import dataclass, field

from jitney.api.outputs import RequestOutput
from jitney.api.prompts import PromptInput
from jitney.core.events import FinishReason
from jitney.core.params import SamplingParams
from jitney.core.request import RequestId
from jitney.errors import JitneyError

StopReason = FinishReason
"""The seed's name for why a request ended."""


@dataclass(slots=True, kw_only=True)
class BatchRequest:
    """One request and its result, which is filled in when it ends.

    Times are milliseconds since 1970, and None if the moment never came.
    """

    id: RequestId
    prompt: PromptInput
    config: SamplingParams
    created_at: float
    generated_tokens: list[int] = field(default_factory=list)
    generated_text: str = ""
    log_probs: list[float] = field(default_factory=list)
    started_at: float | None = None
    completed_at: float | None = None
    stop_reason: FinishReason | None = None
    """stop, length, abort (it was cancelled), deadline or error."""

    @property
    def max_tokens(self) -> int | None:
        """How many tokens it may generate; None is as many as fit."""
        return self.config.max_tokens

    @property
    def cumulative_log_prob(self) -> float:
        """The sum of its tokens' log probabilities."""
        return sum(self.log_probs)

    @property
    def completed(self) -> bool:
        """Whether it has ended, with or without an error."""
        return self.completed_at is not None

    def get_latency(self) -> float | None:
        """Milliseconds of processing, from its start to its end."""
        if self.started_at is None or self.completed_at is None:
            return None
        return self.completed_at - self.started_at

    def get_queue_time(self) -> float | None:
        """Milliseconds in the queue: until its start, or until its end if it never started."""
        until = self.completed_at if self.started_at is None else self.started_at
        return None if until is None else until - self.created_at

    def mark_completed(self, output: RequestOutput | None, now: float) -> None:
        """Copy the output, if there is one."""
        self.completed_at, self.stop_reason = now, FinishReason.FAILED
        if output is None:
            return
        (completion,) = output.outputs
        self.generated_tokens, self.generated_text = completion.token_ids, completion.text
        scored = zip(completion.logprobs or [], completion.token_ids, strict=True)
        self.log_probs = [position[token].logprob for position, token in scored]
        self.stop_reason = FinishReason(completion.finish_reason)
        self.completed_at = self.created_at + output.metrics.latency * 1e3
        if output.metrics.queue_time is not None:
            self.started_at = self.created_at + output.metrics.queue_time * 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What the callback gets, once for each accepted request."""

    request_id: RequestId
    tokens: list[int]
    text: str
    log_probs: list[float]
    total_log_prob: float
    num_tokens: int
    stop_reason: FinishReason
    latency_ms: float
    """Processing time, without the time in the queue."""
    queue_time_ms: float
    error: JitneyError | None
    """Why it failed or was late. The tokens made before that are in the result."""
    request: BatchRequest


def result_of(request: BatchRequest, error: JitneyError | None) -> BatchResult:
    """The result of a request that has ended."""
    return BatchResult(
        request_id=request.id,
        tokens=request.generated_tokens,
        text=request.generated_text,
        log_probs=request.log_probs,
        total_log_prob=request.cumulative_log_prob,
        num_tokens=len(request.generated_tokens),
        stop_reason=request.stop_reason or FinishReason.FAILED,
        latency_ms=request.get_latency() or 0.0,
        queue_time_ms=request.get_queue_time() or 0.0,
        error=error,
        request=request,
    )
