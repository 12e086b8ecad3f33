"""Which settings do not go together: values that are each fine and cannot work at once.

Pure; any thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why values that are each fine do not go together, and which ones they are."""

    message: str
    names: tuple[str, ...]


def find_refusal(values: Mapping[str, Any]) -> Refusal | None:  # Any: of every setting's type
    """The first combination that cannot work. Nothing is lowered or raised in silence."""
    if values["kv_tokens"] is not None and values["memory_limit"] is not None:
        return Refusal(
            "kv_tokens and memory_limit are two ways to say one thing; give one of them.",
            ("kv_tokens", "memory_limit"),
        )
    if values["cache_tokens"] is not None and not values["enable_prefix_caching"]:
        return Refusal(
            "cache_tokens is given but enable_prefix_caching is off; leave one of them out.",
            ("cache_tokens", "enable_prefix_caching"),
        )
    bounded = (
        ("max_num_seqs", "max_num_batched_tokens", "every running sequence needs a token a tick"),
        ("prefill_chunk", "max_num_batched_tokens", "a chunk must fit into one forward pass"),
        ("max_model_len", "kv_tokens", "the longest sequence must fit into memory"),
        ("cache_tokens", "kv_tokens", "cached prefixes are part of that memory"),
        ("max_model_len", "max_num_queued_tokens", "the longest prompt must be able to wait"),
    )
    for smaller, larger, why in bounded:
        low, high = values[smaller], values[larger]
        if low is not None and high is not None and low > high:
            return Refusal(
                f"{smaller} ({low}) is above {larger} ({high}), and {why}; "
                "lower the first or raise the second.",
                (smaller, larger),
            )
    return None
