"""Which states are kept where slots cannot be cut back, and the longest prefix: `StateIndex`.

A recurrent state is there for all tokens of a slot or not at all. So a prefix is of use only if it
ends where a kept slot ends: where a sequence ended, or at a copy that was made on the way
(`Memory.keep_state`). A running sequence promises its next copy, and newcomers wait for it. It has
the methods and the chains of `PrefixIndex`. Called by `Memory`.

Tests: tests/unit/core/test_kept_states.py and tests/simulation.
"""

from collections import Counter
from collections.abc import Iterable

from jitney.core.limits import PREFIX_STRIDE, PREFIX_WAIT_MIN
from jitney.core.prefix import CANDIDATES_MAX, Chain, Holding, HoldingsByKey, Match, put, take


def next_copy(length: int, prompt_count: int, every: int) -> int | None:
    """Where the next copy of a state is kept, after so many tokens of a prompt."""
    last = prompt_count - 1  # the last token is always left to compute
    following = (length // every + 1) * every
    if following <= last:
        return following
    # Before so few tokens a copy is not worth the tick that it takes.
    return last if last - length >= PREFIX_WAIT_MIN else None


class StateIndex:
    """Each holding is in one of two tables, at the depth where it ends or promises a copy."""

    def __init__(self) -> None:
        self._kept: HoldingsByKey = {}
        self._promised: HoldingsByKey = {}
        self._depths: Counter[int] = Counter()
        """How many holdings there are at each depth: no other depth is looked up."""

    def extend(self, holding: Holding) -> None:
        """Index the holding where it ends, or will be kept."""
        depth = holding.stands_at // PREFIX_STRIDE
        kept_depth = depth if holding.is_cached else 0
        if (holding.known_depth, holding.computed_depth) == (depth, kept_depth):
            return
        self.trim(holding, 0)
        if depth:
            put(self._kept if kept_depth else self._promised, [holding.chain.key(depth)], holding)
            self._depths[depth] += 1
        holding.known_depth, holding.computed_depth = depth, kept_depth

    def trim(self, holding: Holding, token_count: int) -> None:
        """Remove the holding from the index: what is shorter than all of it is of no use."""
        assert token_count == 0, "a state is not cut back"
        depth = holding.known_depth
        if depth:
            held = self._kept if holding.computed_depth else self._promised
            take(held, [holding.chain.key(depth)], holding)
            self._depths[depth] -= 1
            if not self._depths[depth]:
                del self._depths[depth]
        holding.known_depth = holding.computed_depth = 0

    def longest(self, chain: Chain, length_max: int, *, is_background: bool = False) -> Match:
        """The kept state that is the longest prefix of the chain, of at most `length_max` tokens.

        A live sequence does not wait for what a background one will keep.
        """
        awaited = 0
        for depth in sorted(self._depths, reverse=True):
            if depth * PREFIX_STRIDE > length_max:
                continue
            key = chain.key(depth)
            if key not in self._kept and key not in self._promised:
                continue
            kept = _longest(chain, self._kept.get(key, ()), depth, length_max)
            promising = [
                each
                for each in self._promised.get(key, ())
                if is_background or not each.is_background
            ]
            promised = _longest(chain, promising, depth, length_max)
            if promised is not None:
                awaited = max(awaited, promised.stands_at)
            if kept is not None:
                return Match(kept, kept.length, max(kept.length, awaited))
        return Match(None, 0, awaited)

    def check(self, holdings: list[Holding]) -> None:
        """The index has every holding once, and nothing else."""
        tables = (self._kept, self._promised)
        count = sum(holding.known_depth > 0 for holding in holdings)
        assert count == sum(len(each) for held in tables for each in held.values()), count
        assert count == self._depths.total(), count
        for holding in holdings:
            self.check_ends(holding)

    def check_ends(self, holding: Holding) -> None:
        """The index has the holding where it ends, or promises to."""
        depth = holding.known_depth
        assert depth == holding.stands_at // PREFIX_STRIDE, (holding.slot, depth)
        if depth:
            held = self._kept if holding.is_cached else self._promised
            assert held[holding.chain.key(depth)].count(holding) == 1, holding.slot


def _longest(
    chain: Chain, holdings: Iterable[Holding], depth: int, length_max: int
) -> Holding | None:
    """Of the holdings with the same key at this depth, the longest that the chain begins with."""
    start = depth * PREFIX_STRIDE
    whole = [
        each
        for each in holdings
        if each.stands_at <= length_max
        and _is_computed_alike(chain, each)
        and chain.tail(each.chain, depth) >= each.stands_at - start
    ]
    whole.sort(key=lambda each: -each.stands_at)
    # More than one only where two different texts have the same key.
    return next((each for each in whole[:CANDIDATES_MAX] if chain.equals(each.chain, depth)), None)


def _is_computed_alike(chain: Chain, holding: Holding) -> bool:
    """Whether none of its tokens was computed in a span and is computed alone in the chain, or the
    other way round (invariant 4)."""
    spanned, theirs = chain.spanned, holding.chain.spanned
    return spanned == theirs or holding.stands_at <= min(spanned, theirs)
