"""How a tick's token budget is split: pure functions, numbers in, span lengths out.

A decode wants one token. A prefill wants many and gets at most a chunk of them. Under every mix
a tick with work makes progress, and a prefill beside decodes gets at least PREFILL_MIN tokens or
what the budget leaves, so that nobody starves (invariant 8).
"""

from dataclasses import dataclass
from typing import assert_never

from jitney.core.cost import CostModel
from jitney.core.settings import Mix

PREFILL_MIN = 16
"""`bounded-stall` lets prefill go on by this much even when the target is missed without it."""


@dataclass(frozen=True, slots=True)
class Share:
    """Decodes that run in this tick, and the span of each prefill, in the order they were given."""

    decode_count: int
    spans: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """What a tick may carry."""

    tokens: int
    chunk: int
    stall_s: float


def share_budget(
    mix: Mix, decode_count: int, wanted: list[int], budget: Budget, cost: CostModel
) -> Share:
    """Split the budget between so many decodes and prefills that want these many tokens."""
    match mix:
        case Mix.DECODE_FIRST:
            decodes = min(decode_count, budget.tokens)
            return Share(decodes, _spans(wanted, budget.tokens - decodes, budget.chunk))
        case Mix.PREFILL_FIRST:
            spans = _spans(wanted, budget.tokens, budget.chunk)
            return Share(min(decode_count, budget.tokens - sum(spans)), spans)
        case Mix.BALANCED:
            half = budget.tokens // 2 if decode_count else 0
            decodes = min(decode_count, max(half, budget.tokens - sum(wanted), 1))
            return Share(decodes, _spans(wanted, budget.tokens - decodes, budget.chunk))
        case Mix.BOUNDED_STALL:
            decodes = min(decode_count, budget.tokens)
            left = budget.tokens - decodes
            if decodes:
                left = min(left, max(cost.prefill_within(budget.stall_s, decodes), PREFILL_MIN))
            return Share(decodes, _spans(wanted, left, budget.chunk))
        case _:
            assert_never(mix)


def _spans(wanted: list[int], tokens: int, chunk: int) -> tuple[int, ...]:
    spans = []
    for want in wanted:
        span = min(want, chunk, tokens)
        spans.append(span)
        tokens -= span
    return tuple(spans)
