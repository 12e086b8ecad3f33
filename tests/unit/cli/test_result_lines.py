"""Tests of `jitney.cli.result_lines`: the JSON of an answer, and lines of statistics."""

import json

from jitney.api.outputs import CompletionOutput, RequestMetrics, RequestOutput
from jitney.cli.result_lines import answer_line, error_line, turn_line
from jitney.engine.stats import rate

ANSWER = RequestOutput(
    request_id="0",
    prompt="why?",
    prompt_token_ids=[1, 2, 3],
    prompt_logprobs=None,
    outputs=[
        CompletionOutput(
            index=0,
            text="dö\n",
            token_ids=[4, 5],
            cumulative_logprob=None,
            logprobs=None,
            finish_reason="stop",
            stop_reason=None,
        )
    ],
    finished=True,
    num_cached_tokens=2,
    metrics=RequestMetrics(
        queue_time=0.1,
        time_to_first_token=0.5,
        latency=1.5,
        preemptions=0,
        prompt_tokens=3,
        completion_tokens=3,
        cached_tokens=2,
    ),
)


def test_an_answer_is_one_line_of_json() -> None:
    """Guards `--json`: a line break in an answer must not break the line."""
    line = answer_line(4, "why?\n", ANSWER)
    assert "\n" not in line
    assert json.loads(line) == {
        "index": 4,
        "prompt": "why?\n",
        "text": "dö\n",
        "tokens": [4, 5],
        "finish_reason": "stop",
        "stop_reason": None,
        "usage": {"prompt_tokens": 3, "completion_tokens": 3, "cached_tokens": 2},
        "times": {"queue_s": 0.1, "first_token_s": 0.5, "total_s": 1.5},
        "preempted": 0,
    }
    assert json.loads(error_line(1, "x", "No.")) == {"index": 1, "prompt": "x", "error": "No."}


def test_the_line_below_an_answer_counts_from_the_first_token() -> None:
    """Guards the speed: the time until the first token is the prompt's."""
    assert turn_line(ANSWER, 4096) == (
        "3 tokens · 2 tokens/s · first after 0.50 s · 2 cached · context 6 of 4,096"
    )


def test_a_rate_without_time_is_zero() -> None:
    """Guards the first frame, before any time has passed."""
    assert rate(5, 0.0) == 0.0
    assert rate(0, 1.0) == 0.0
    assert rate(5, 2.0) == 2.5
