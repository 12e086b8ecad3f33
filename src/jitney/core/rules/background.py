"""Work that may wait: what background sequences leave to live ones.

A background sequence is of a request that nobody waits for in person (`Request.is_background`); all
others are live. Under every policy, strategy and mix:

    in the queue      behind every live one, at any age (`core/rules/queue.py`)
    slots and memory  displaced for a live one that waits; admitted when none does
    in a tick         out of it while a live one waits, or has its first token to come; otherwise
                      only so much that the tick stays short

So they may starve behind live ones. Only their deadlines bound their wait: the exception to
invariant 8. Called by the parts of the scheduler only.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace

from jitney.core.counters import Counters
from jitney.core.rules.cost import CostModel
from jitney.core.rules.gate import Gate
from jitney.core.rules.mix import PREFILL_MIN, STALL_FACTOR, Budget
from jitney.core.rules.pauses import Pauses
from jitney.core.rules.queue import WaitQueue
from jitney.core.scheduler_settings import SchedulerSettings
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


@dataclass(slots=True)
class Background:
    """Whether background sequences may run now. Reads what its owner changes."""

    _settings: SchedulerSettings
    _counters: Counters
    _running: list[Sequence]
    _queue: WaitQueue
    _gate: Gate
    _paused: Pauses
    _memory_full: Set[str]
    """Tenants whose share of the memory is used up."""

    @property
    def is_live_awaited(self) -> bool:
        """Whether a live sequence waits for its turn or for its first token.

        Those that their caller, the gate or a share holds back do not count.
        """
        without = self._queue.shares.full | self._memory_full
        if self._queue.live_count(without, newcomers=self._gate.is_open):
            return True
        return any(
            awaits_first_token(sequence)
            for sequence in self._running
            if not sequence.is_background and sequence not in self._paused
        )

    def in_order(self, now: float, without: Set[str]) -> Iterator[Sequence]:
        """The waiting sequences without these tenants, the next first.

        Background ones follow only when they may join: a tick that is full needs no more of them.
        """
        yield from self._queue.live.ordered(now, without)
        if self._queue.behind.count and not self.is_tick_full and not self.is_live_awaited:
            # They have no share, whatever their key has.
            yield from self._queue.behind.ordered(now)

    @property
    def is_tick_full(self) -> bool:
        """Whether the running sequences, also background ones, want all tokens of a tick."""
        chunk = self._settings.prefill_chunk
        wanted = sum(min(sequence.wanted_count, chunk) for sequence in self._running)
        return wanted >= self._settings.max_num_batched_tokens

    @property
    def slots_wanted(self) -> int:
        """How many waiting sequences want the next free slot at once.

        While a live one runs, background ones do not: a tick later is soon enough for them.
        """
        count = self._queue.live_count(frozenset(), newcomers=self._gate.is_open)
        assert count >= 0, count
        is_live_running = self._running and not self._running[0].is_background
        return count if is_live_running else count + self._queue.behind.count

    def taking_part(self) -> list[Sequence]:
        """The running sequences that may be in the next batch."""
        running = self._running
        # Background sequences are the last of them.
        if not running or not running[-1].is_background or not self.is_live_awaited:
            return running
        self._counters.add("sat_out")
        assert self._queue.live.count or not running[0].is_background, "a live one is awaited"
        return [sequence for sequence in running if not sequence.is_background]


def budget_behind(
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
