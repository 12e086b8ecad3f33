"""Makes lines about answers: the JSON object of a prompt, and statistics.

Pure; any thread.
"""

import json
from statistics import median

from jitney.api.outputs import RequestOutput
from jitney.engine.stats import Stats, rate


def answer_line(index: int, prompt: str, answer: RequestOutput) -> str:
    """One line of JSON about a prompt and its answer; times in seconds."""
    completion, metrics = answer.outputs[0], answer.metrics
    return _line(
        {
            "index": index,
            "prompt": prompt,
            "text": completion.text,
            "tokens": completion.token_ids,
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
            "usage": {
                "prompt_tokens": metrics.prompt_tokens,
                "completion_tokens": metrics.completion_tokens,
                "cached_tokens": metrics.cached_tokens,
            },
            "times": {
                "queue_s": metrics.queue_time,
                "first_token_s": metrics.time_to_first_token,
                "total_s": metrics.latency,
            },
            "preempted": metrics.preemptions,
        }
    )


def error_line(index: int, prompt: str, message: str) -> str:
    """One line of JSON about a prompt that got no answer."""
    return _line({"index": index, "prompt": prompt, "error": message})


def run_lines(answers: list[RequestOutput], stats: Stats, elapsed_s: float) -> list[str]:
    """The lines of `jitney run --stats`."""
    metrics = [answer.metrics for answer in answers]
    tokens = sum(each.completion_tokens for each in metrics)
    prompt_tokens = sum(each.prompt_tokens for each in metrics)
    cached = sum(each.cached_tokens for each in metrics)
    firsts = [each.time_to_first_token for each in metrics if each.time_to_first_token is not None]
    lines = [
        f"{len(answers)} {plural('answer', len(answers))}, {tokens:,} tokens in {elapsed_s:.2f} s: "
        f"{rate(tokens, elapsed_s):,.1f} tokens/s",
        f"{prompt_tokens:,} prompt tokens, {cached:,} of them cached",
        f"{stats.total_batches:,} batches of {stats.avg_batch_size:.1f} sequences on average, "
        f"{stats.preemption_count} preempted",
    ]
    if firsts:
        lines.insert(1, f"first token after {median(firsts):.3f} s (median)")
    return lines


def turn_line(answer: RequestOutput, context_max: int) -> str:
    """The line below an answer of a chat."""
    metrics = answer.metrics
    tokens, first_s = metrics.completion_tokens, metrics.time_to_first_token
    parts = [f"{tokens} {plural('token', tokens)}"]
    if first_s is not None:
        speed = rate(tokens - 1, metrics.latency - first_s)
        parts += [f"{speed:,.0f} tokens/s"] if speed else []
        parts.append(f"first after {first_s:.2f} s")
    parts.append(f"{metrics.cached_tokens:,} cached")
    parts.append(f"context {metrics.prompt_tokens + tokens:,} of {context_max:,}")
    return " · ".join(parts)


def engine_lines(stats: Stats) -> list[str]:
    """The lines of `/stats` in a chat."""
    return [
        f"{stats.completed_requests} answered, {stats.cancelled_requests} stopped, "
        f"{stats.failed_requests} failed",
        f"{stats.completion_tokens:,} tokens made, {stats.tokens_per_second:,.1f} per second "
        "while busy",
        f"{stats.prompt_tokens:,} prompt tokens, {stats.cached_tokens:,} of them cached",
        f"memory {stats.kv_used:,} of {stats.kv_tokens:,} tokens, "
        f"{stats.kv_cached:,} of them cached prefixes",
        f"up {stats.uptime_s:.0f} s, busy {stats.busy_s:.1f} s",
    ]


def _line(values: dict[str, object]) -> str:
    return json.dumps(values, ensure_ascii=False)


def plural(word: str, count: int) -> str:
    """The word in singular or plural."""
    return word if count == 1 else word + "s"
