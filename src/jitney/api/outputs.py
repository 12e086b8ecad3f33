"""Results in the shapes of vLLM's offline API, so that scripts written for it find their fields.

Plain values, made by `jitney.api.llm` from an answer. Unlike in vLLM, `token_ids` and `logprobs` do
not have the end token of a completion.

Tests: tests/unit/api/test_llm.py.
"""

from dataclasses import dataclass

from jitney.core.backend import Vocabulary
from jitney.core.batch import TokenLogprob
from jitney.engine.answer import Answer, Completion


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's logprob. `rank` starts at 1, and is None if the alternatives do not reach it."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]
"""The chosen token and its alternatives at one position, by token id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Times in seconds since the request was submitted; None if the moment never came."""

    queue_time: float | None
    time_to_first_token: float | None
    latency: float
    preemptions: int
    prompt_tokens: int
    completion_tokens: int
    """Every sampled token, end tokens included."""
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One completion of a prompt."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[PositionLogprobs] | None
    finish_reason: str
    """stop, length, or abort (it was cancelled)."""
    stop_reason: int | str | None
    """The stop string or stop token that ended it; None for the model's own end token."""

    def finished(self) -> bool:
        """Whether it has ended. In a result it always has."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A prompt and its completions."""

    request_id: str
    prompt: str | None
    """None when the prompt was given as tokens."""
    prompt_token_ids: list[int]
    prompt_logprobs: list[PositionLogprobs | None] | None
    """The first entry is None: nothing comes before the first token."""
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int
    metrics: RequestMetrics


def make_output(answer: Answer, prompt: str | None, vocabulary: Vocabulary) -> RequestOutput:
    """The answer in vLLM's shape."""
    usage, timing = answer.usage, answer.timing
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    if answer.prompt_logprobs is not None:
        scored = [_position(each, vocabulary) for each in answer.prompt_logprobs]
        prompt_logprobs = [None, *scored]
    return RequestOutput(
        request_id=str(answer.request.id),
        prompt=prompt,
        prompt_token_ids=list(answer.request.prompt),
        prompt_logprobs=prompt_logprobs,
        outputs=[_completion(each, vocabulary) for each in answer.completions],
        finished=True,
        num_cached_tokens=usage.cached_count,
        metrics=RequestMetrics(
            queue_time=timing.queue_s,
            time_to_first_token=timing.first_token_s,
            latency=timing.total_s,
            preemptions=answer.preempted_count,
            prompt_tokens=usage.prompt_count,
            completion_tokens=usage.completion_count,
            cached_tokens=usage.cached_count,
        ),
    )


def _completion(completion: Completion, vocabulary: Vocabulary) -> CompletionOutput:
    logprobs = None
    if completion.logprobs is not None:
        logprobs = [_position(each, vocabulary) for each in completion.logprobs]
    return CompletionOutput(
        index=completion.index,
        text=completion.text,
        token_ids=list(completion.tokens),
        cumulative_logprob=completion.cumulative_logprob,
        logprobs=logprobs,
        finish_reason=completion.finish_reason.value,
        stop_reason=completion.stop_reason,
    )


def _position(chosen: TokenLogprob, vocabulary: Vocabulary) -> PositionLogprobs:
    position = {
        token: Logprob(logprob, rank, vocabulary.text(token))
        for rank, (token, logprob) in enumerate(chosen.top, 1)
    }
    if chosen.token not in position:
        position[chosen.token] = Logprob(chosen.logprob, None, vocabulary.text(chosen.token))
    return position
