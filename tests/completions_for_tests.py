"""A completion for tests that need one and run nothing: they replace what they care about."""

from jitney.core.events import FinishReason
from jitney.engine.answer import Completion, Timing, Usage

COMPLETION = Completion(
    index=0,
    text="",
    tokens=(),
    logprobs=None,
    cumulative_logprob=None,
    finish_reason=FinishReason.LENGTH,
    stop_reason=None,
    usage=Usage(prompt_count=8, completion_count=2, cached_count=5),
    timing=Timing(queue_s=None, first_token_s=None, total_s=0.0),
    preempted_count=0,
)
