"""Work that may wait: what background sequences leave to live ones.

A background sequence is of a request that nobody waits for in person (`Request.is_background`); all
others are live. Under every policy, strategy and mix:

    in the queue      after every live one, at any age (`core/rules/queue.py`)
    slots and memory  displaced for a live one that waits (`core/preemption.py`); admitted when
                      none does (`core/admission.py`)
    in a tick         out of it while a live one waits, prefills, or has its first token to come
                      (`core/batch_choice.py`); otherwise only so much that the tick stays short

So live ones may starve them. Only their deadlines bound their wait: the exception to
invariant 8. Pure functions, called by the parts of the scheduler only.
"""

from dataclasses import replace

from jitney.core.rules.cost import CostModel
from jitney.core.rules.mix import PREFILL_MIN, STALL_FACTOR, Budget
from jitney.core.sequence import Sequence

STALL_PART = 0.5
"""The part of the stall target that a tick with background work may take. A live request may come
at any moment of it, and waits until the tick is over."""

EARLY_S_MAX = 0.02
"""Longer ticks with background work are not sent ahead: a live request that comes then would wait
for one tick more. With short ticks that is little, and sending ahead saves much."""


def background_of(sequences: list[Sequence]) -> list[Sequence]:
    """The background ones of these, in the same order."""
    return [sequence for sequence in sequences if sequence.is_background]


def awaits_first_token(sequence: Sequence) -> bool:
    """Whether a running sequence prefills, or has no first token and none on its way."""
    return sequence.wanted_count > 1 or sequence.completion_count + sequence.pending == 0


def background_budget(
    live_count: int, decode_count: int, budget: Budget, cost: CostModel
) -> tuple[int, Budget]:
    """The background decodes of a tick beside so many live ones, and the budget for all of it.

    At least one decode and PREFILL_MIN tokens of prefill, if the budget has room: what holds memory
    should make progress.
    """
    beside_s = STALL_FACTOR * cost.decodes_s(max(1, live_count))
    stall_s = max(STALL_PART * budget.stall_s, beside_s)
    tokens = budget.tokens - live_count
    assert tokens >= 0, "live decodes are within the budget"
    decodes = min(decode_count, tokens)
    if budget.decode_batch_size is not None:
        decodes = min(decodes, max(0, budget.decode_batch_size - live_count))
    while decodes > 1 and cost.decodes_s(live_count + decodes) > stall_s:
        decodes -= 1
    prefill = max(cost.prefill_within(stall_s, live_count + decodes), PREFILL_MIN)
    assert 0 <= decodes <= decode_count, decodes
    return decodes, replace(budget, tokens=min(tokens, decodes + prefill))
