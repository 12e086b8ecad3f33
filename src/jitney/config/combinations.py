"""Finds settings that contradict each other: each value is fine, but together they cannot work, or
one of them has no effect.

Pure; any thread.

Tests: tests/unit/config/test_resolve.py.
"""

from collections.abc import Iterator, Mapping, Set
from typing import Any

from jitney.config.definitions import DEFAULT
from jitney.core.scheduler_settings import GroupAnswers, Mix, Strategy
from jitney.errors import ConfigError

EFFECTIVE = (
    ("group_answers", "strategy", (Strategy.STATIC, Strategy.DYNAMIC, Strategy.ADAPTIVE)),
    ("prefill_batch_size", "mix", (Mix.SEPARATE,)),
    ("decode_batch_size", "mix", (Mix.SEPARATE,)),
    ("target_stall_ms", "mix", (Mix.BOUNDED_STALL, Mix.SEPARATE)),
)
"""A setting, another setting, and the values of the other with which the first has an effect."""


HARMLESS = (False, GroupAnswers.TOGETHER)
"""Values that change nothing: a switch that is off, and the default for groups."""


_Conflict = tuple[str, tuple[str, ...]]
"""Why some values contradict each other, and the names of their settings."""


# Any: of every setting's type
def refuse_conflicts(values: Mapping[str, Any], sources: Mapping[str, str]) -> None:
    """Refuse a combination that cannot work, or in which a given setting has no effect.

    `sources` says where a value came from; what is not in it was not given. No value is lowered,
    raised or ignored silently. Raises ConfigError.
    """
    explicit = {name for name, source in sources.items() if source != DEFAULT}
    found = (*_find_useless(values, explicit), *_find_out_of_bounds(values), *_find_pairs(values))
    for message, names in found:
        places = ", ".join(f"{name}: {sources[name]}" for name in names if name in sources)
        raise ConfigError(f"{message} ({places})" if places else message)


# Any: of every setting's type
def _find_pairs(values: Mapping[str, Any]) -> Iterator[_Conflict]:
    """Settings that contradict each other."""
    if values["kv_tokens"] is not None and values["memory_limit"] is not None:
        yield (
            "kv_tokens and memory_limit set the same budget; give one of them.",
            ("kv_tokens", "memory_limit"),
        )
    is_static = values["strategy"] is Strategy.STATIC
    if values["min_batch_size"] > 1 and is_static:
        yield (
            "min_batch_size is given but has no effect where strategy is static: a group waits "
            "for max_num_seqs; lower that, or set strategy to dynamic.",
            ("min_batch_size", "strategy"),
        )
    waits_ms = values["max_wait_ms"]
    is_at_once = waits_ms == 0 or (waits_ms is None and values["strategy"] is Strategy.CONTINUOUS)
    if values["min_batch_size"] > 1 and is_at_once:
        yield (
            "min_batch_size is given but has no effect where requests are not collected; set "
            "max_wait_ms above 0.",
            ("min_batch_size", "max_wait_ms"),
        )
    if is_static and waits_ms is None and values["max_num_queued_reqs"] < values["max_num_seqs"]:
        yield (
            f"A static group waits for max_num_seqs ({values['max_num_seqs']}) requests, and "
            f"max_num_queued_reqs ({values['max_num_queued_reqs']}) allows fewer; raise the second "
            "or lower the first, or set max_wait_ms.",
            ("strategy", "max_num_seqs", "max_num_queued_reqs"),
        )


def _find_out_of_bounds(values: Mapping[str, Any]) -> Iterator[_Conflict]:
    """A setting that is above the bound that another one sets."""
    bounded = (
        ("max_num_seqs", "max_num_batched_tokens", "every running sequence needs a token a tick"),
        ("min_batch_size", "max_num_seqs", "no more can start together"),
        ("prefill_batch_size", "max_num_seqs", "no more run at once"),
        ("decode_batch_size", "max_num_seqs", "no more run at once"),
        ("prefill_chunk", "max_num_batched_tokens", "a chunk must fit into one forward pass"),
        ("max_model_len", "kv_tokens", "the longest sequence must fit into memory"),
        ("max_model_len", "max_num_queued_tokens", "the longest prompt must be able to wait"),
    )
    for smaller, larger, why in bounded:
        low, high = values[smaller], values[larger]
        if low is not None and high is not None and low > high:
            yield (
                f"{smaller} ({low}) is above {larger} ({high}), and {why}; "
                "lower the first or raise the second.",
                (smaller, larger),
            )


def _find_useless(values: Mapping[str, Any], explicit: Set[str]) -> Iterator[_Conflict]:
    for name, chooser, choices in EFFECTIVE:
        chosen = values[chooser]
        is_set = name in explicit and values[name] not in HARMLESS
        # Groups of the strategy adaptive follow the target too, under every mix.
        is_followed = name == "target_stall_ms" and values["strategy"] is Strategy.ADAPTIVE
        if is_set and chosen not in choices and not is_followed:
            yield (
                f"{name} is given but has no effect where {chooser} is {chosen}; leave it out, or "
                f"set {chooser} to {' or '.join(choices)}.",
                (name, chooser),
            )
