"""Answers in numbers: the JSON object of a prompt, and the lines of statistics.

Pure; any thread.
"""

import json
from statistics import median

from jitney.engine.answer import Answer
from jitney.engine.stats import Stats


def answer_line(index: int, prompt: str, answer: Answer) -> str:
    """One line of JSON about a prompt and its answer; times in seconds."""
    completion, usage, timing = answer.completions[0], answer.usage, answer.timing
    return _line(
        {
            "index": index,
            "prompt": prompt,
            "text": completion.text,
            "tokens": list(completion.tokens),
            "finish_reason": completion.finish_reason.value,
            "stop_reason": completion.stop_reason,
            "usage": {
                "prompt_tokens": usage.prompt_count,
                "completion_tokens": usage.completion_count,
                "cached_tokens": usage.cached_count,
            },
            "times": {
                "queue_s": timing.queue_s,
                "first_token_s": timing.first_token_s,
                "total_s": timing.total_s,
            },
            "preempted": answer.preempted_count,
        }
    )


def error_line(index: int, prompt: str, message: str) -> str:
    """One line of JSON about a prompt that got no answer."""
    return _line({"index": index, "prompt": prompt, "error": message})


def run_figures(answers: list[Answer], stats: Stats, elapsed_s: float) -> list[str]:
    """What `jitney run --stats` says, line by line."""
    made = sum(each.usage.completion_count for each in answers)
    told = sum(each.usage.prompt_count for each in answers)
    cached = sum(each.usage.cached_count for each in answers)
    firsts = [
        each.timing.first_token_s for each in answers if each.timing.first_token_s is not None
    ]
    lines = [
        f"{len(answers)} {_plural('answer', len(answers))}, {made:,} tokens in {elapsed_s:.2f} s: "
        f"{_rate(made, elapsed_s):,.1f} tokens/s",
        f"{told:,} prompt tokens, {cached:,} of them cached",
        f"{stats.total_batches:,} batches of {stats.avg_batch_size:.1f} sequences on average, "
        f"{stats.preemption_count} preempted",
    ]
    if firsts:
        lines.insert(1, f"first token after {median(firsts):.3f} s (median)")
    return lines


def turn_figures(answer: Answer, context_max: int) -> str:
    """The line below an answer of a chat."""
    usage, timing = answer.usage, answer.timing
    made = usage.completion_count
    first_s = timing.first_token_s
    parts = [f"{made} {_plural('token', made)}"]
    if first_s is not None:
        rate = _rate(made - 1, timing.total_s - first_s)
        parts += [f"{rate:,.0f} tokens/s", f"first after {first_s:.2f} s"] if rate else []
    parts.append(f"{usage.cached_count:,} cached")
    parts.append(f"context {usage.prompt_count + made:,} of {context_max:,}")
    return " · ".join(parts)


def engine_figures(stats: Stats) -> list[str]:
    """What `/stats` says in a chat, line by line."""
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


def _rate(count: float, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0


def _plural(word: str, count: int) -> str:
    return word if count == 1 else word + "s"
