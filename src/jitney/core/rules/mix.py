"""Splits the token budget of a tick: pure functions, numbers in, span lengths out.

A decode wants one token. A prefill wants many, and gets at most a chunk. Under every mix a tick
with work makes progress. The prefill beside decodes is at least PREFILL_MIN tokens, or the rest of
the budget, so nothing starves (invariant 8). Tenants with a share get equal parts of the prefill:
long prompts of one tenant do not block short prompts of another.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import assert_never

from jitney.core.rules.cost import CostModel
from jitney.core.scheduler_settings import Mix

PREFILL_MIN = 16
"""The least prefill of a tick, even when it misses the stall target."""

STALL_FACTOR = 2.0
"""Under `bounded-stall` a tick may take this many times as long as its decodes alone, even when
that misses the target. With many decodes new prompts would hardly advance otherwise."""


@dataclass(frozen=True, slots=True)
class BudgetSplit:
    """The decodes that run in this tick, and the span of each prefill in their order."""

    decode_count: int
    spans: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prefill:
    """Tokens that a prefill wants, and its tenant if that has a share."""

    tokens: int
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """What a tick may hold."""

    tokens: int
    chunk: int
    stall_s: float
    prefill_batch_size: int | None = None
    decode_batch_size: int | None = None
    """Sequences in a tick of one kind under `separate`; None: as many as the tokens allow."""
    turn: int = 0
    """The number of this prefill tick under `separate`. Tenants take turns to be first."""


def split_budget(
    mix: Mix, decode_count: int, prefills: list[Prefill], budget: Budget, cost: CostModel
) -> BudgetSplit:
    """Split the budget between decodes and these prefills, the most senior first."""
    match mix:
        case Mix.DECODE_FIRST:
            decodes = min(decode_count, budget.tokens)
            return BudgetSplit(decodes, _spans(prefills, budget.tokens - decodes, budget.chunk))
        case Mix.PREFILL_FIRST:
            spans = _spans(prefills, budget.tokens, budget.chunk)
            return BudgetSplit(min(decode_count, budget.tokens - sum(spans)), spans)
        case Mix.BALANCED:
            half = budget.tokens // 2 if decode_count else 0
            left = budget.tokens - sum(min(each.tokens, budget.chunk) for each in prefills)
            decodes = min(decode_count, max(half, left, 1))
            return BudgetSplit(decodes, _spans(prefills, budget.tokens - decodes, budget.chunk))
        case Mix.BOUNDED_STALL:
            decodes = min(decode_count, budget.tokens)
            left = budget.tokens - decodes
            if decodes and prefills:
                stall_s = max(budget.stall_s, STALL_FACTOR * cost.decodes_s(decodes))
                left = min(left, max(cost.prefill_within(stall_s, decodes), PREFILL_MIN))
            return BudgetSplit(decodes, _spans(prefills, left, budget.chunk))
        case Mix.SEPARATE:
            return _split_apart(decode_count, prefills, budget)
        case _:
            assert_never(mix)


def within_stall(budget: Budget, cost: CostModel) -> Budget:
    """The budget of a tick of prefills while decodes wait for it."""
    tokens = max(cost.prefill_within(budget.stall_s, 0), PREFILL_MIN)
    assert tokens >= 1, tokens
    return replace(budget, tokens=min(budget.tokens, tokens))


def _split_apart(decode_count: int, prefills: list[Prefill], budget: Budget) -> BudgetSplit:
    """The share of a tick under `separate`: decodes or prefills, as the caller decided."""
    assert not (decode_count and prefills), "a tick has one kind"
    decodes = min(decode_count, budget.tokens, budget.decode_batch_size or decode_count)
    chosen = _choose_in_turn(prefills, budget)
    spans = [0] * len(prefills)
    parts = _spans([prefills[at] for at in chosen], budget.tokens, budget.chunk)
    for at, span in zip(chosen, parts, strict=True):
        spans[at] = span
    return BudgetSplit(decodes, tuple(spans))


def _choose_in_turn(prefills: list[Prefill], budget: Budget) -> list[int]:
    """The indices of the prefills that run: one of each tenant, then a second of each, and so
    on."""
    if budget.prefill_batch_size is None:
        return list(range(len(prefills)))
    tenants: dict[str | None, int] = {}
    rounds: Counter[str | None] = Counter()
    order = []
    for at, prefill in enumerate(prefills):
        order.append((rounds[prefill.tenant], tenants.setdefault(prefill.tenant, len(tenants)), at))
        rounds[prefill.tenant] += 1
    order.sort(key=lambda each: (each[0], (each[1] - budget.turn) % len(tenants), each[2]))
    assert len(order) == len(prefills), "every prefill has a turn"
    return sorted(at for _, _, at in order[: budget.prefill_batch_size])


def _spans(prefills: list[Prefill], tokens: int, chunk: int) -> tuple[int, ...]:
    """The span of each prefill: tenants get equal parts, and senior ones are first in a tenant."""
    assert tokens >= 0, tokens
    left = _portions(prefills, tokens, chunk)
    spans = []
    for prefill in prefills:
        span = min(prefill.tokens, chunk, left.get(prefill.tenant, 0))
        spans.append(span)
        if span:
            left[prefill.tenant] -= span
    assert sum(spans) <= tokens, (sum(spans), tokens)
    return tuple(spans)


def _portions(prefills: list[Prefill], tokens: int, chunk: int) -> dict[str | None, int]:
    """Tokens for each tenant. A tenant that wants less leaves the rest to the others."""
    totals: dict[str | None, int] = {}
    for prefill in prefills:
        # With fewer tokens than tenants, the tenants of senior prefills get one each.
        if prefill.tenant in totals or len(totals) < tokens:
            totals[prefill.tenant] = totals.get(prefill.tenant, 0) + min(prefill.tokens, chunk)
    portions = {}
    for rank, (tenant, total) in enumerate(sorted(totals.items(), key=lambda each: each[1])):
        portions[tenant] = min(total, -(-tokens // (len(totals) - rank)))
        tokens -= portions[tenant]
        assert portions[tenant] >= 0 <= tokens, (portions, tokens)
    return portions
