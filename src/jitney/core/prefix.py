"""Finds the slot with the longest prefix of a prompt: `Holding` and `PrefixIndex`.

Prefixes are found by keys at multiples of PREFIX_STRIDE tokens (`Chain`). Then the tokens are
compared, because equal keys are no proof (invariant 6). Running sequences are in the index with all
their known tokens. So a newcomer can see that another sequence will compute its prefix, and wait
for it. Every waiting sequence is looked up in every tick. To be fast, a look-up does not read the
whole prompt again: the sequence's chain remembers the last result. Called by `Memory` only.
"""

from dataclasses import dataclass
from itertools import islice

from jitney.core.chain import Chain
from jitney.core.limits import PREFIX_STRIDE, PREFIX_WAIT_MIN
from jitney.core.sequence import Sequence

CANDIDATES_MAX = 8
"""Holdings compared at one depth. They differ by less than a stride, so a few are enough. Where
decodes differ, a holding that is usable in part may hide a better one."""

HoldingsByKey = dict[int, list["Holding"]]
"""Most keys have one holding, and there are many keys: lists are small."""


class Holding:
    """What a slot holds: `length` computed tokens of `chain`. It is cached if `sequence` is
    None."""

    __slots__ = ("chain", "computed_depth", "known_depth", "length", "sequence", "slot")

    def __init__(self, slot: int, chain: Chain, sequence: Sequence) -> None:
        self.slot = slot
        self.chain = chain
        self.sequence: Sequence | None = sequence
        self.length = 0
        self.computed_depth = 0
        self.known_depth = 0

    @property
    def is_background(self) -> bool:
        """Whether a background sequence runs in it."""
        return self.sequence is not None and self.sequence.is_background

    @property
    def known_count(self) -> int:
        """Tokens that it holds or will compute."""
        return self.length if self.sequence is None else len(self.sequence.tokens)


@dataclass(frozen=True, slots=True)
class Match:
    """The best prefix found: `length` tokens of `holding`.

    `promised` is above `length` when a running sequence will compute more of it.
    """

    holding: Holding | None
    length: int
    promised: int

    @property
    def is_awaited(self) -> bool:
        """Whether it is better to wait until more of it is computed."""
        return self.promised - self.length >= PREFIX_WAIT_MIN


NO_MATCH = Match(None, 0, 0)


class PrefixIndex:
    """Finds holdings by their first tokens. Each depth of a holding is in one of two tables:
    `_computed` where its tokens are computed, `_promised` beyond that."""

    def __init__(self) -> None:
        self._computed: HoldingsByKey = {}
        self._promised: HoldingsByKey = {}

    def extend(self, holding: Holding) -> None:
        """Index the tokens that became known or computed since the last call."""
        known, computed = holding.known_count // PREFIX_STRIDE, holding.length // PREFIX_STRIDE
        known_before, computed_before = holding.known_depth, holding.computed_depth
        if known == known_before and computed == computed_before:
            return  # so it is after most tokens
        assert computed_before <= computed <= known, (computed_before, computed, known)
        keys = holding.chain.keys(known)
        _take(self._promised, keys[computed_before : min(computed, known_before)], holding)
        _put(self._computed, keys[computed_before:computed], holding)
        _put(self._promised, keys[max(computed, known_before) : known], holding)
        holding.known_depth, holding.computed_depth = known, computed

    def trim(self, holding: Holding, token_count: int) -> None:
        """Remove the holding from the index beyond so many tokens."""
        assert 0 <= token_count <= holding.known_count, token_count
        kept, known = token_count // PREFIX_STRIDE, holding.known_depth
        computed = min(holding.computed_depth, kept)
        keys = holding.chain.keys(known)
        _take(self._computed, keys[computed : holding.computed_depth], holding)
        _take(self._promised, keys[max(holding.computed_depth, kept) : known], holding)
        holding.known_depth, holding.computed_depth = min(known, kept), computed

    def longest(self, chain: Chain, length_max: int, *, is_background: bool = False) -> Match:
        """The holding with the longest computed prefix of the chain, at most `length_max` of it.

        A live sequence does not wait for what a background one will compute.
        """
        depth = chain.deepest(lambda key: key in self._computed)
        best, length = self._best(chain, depth, self._computed, length_max)
        promised_depth = chain.deepest(
            lambda key: key in self._computed or self._is_promised(key, is_background=is_background)
        )
        if promised_depth == depth:
            return Match(best, length, length)
        holding, promised = self._best(
            chain, promised_depth, self._promised, length_max, skips_background=not is_background
        )
        if holding is not None and min(promised, holding.length) > length:
            best, length = holding, min(promised, holding.length)
        assert length <= length_max, (length, length_max)
        return Match(best, length, max(length, promised))

    def _is_promised(self, key: int, *, is_background: bool) -> bool:
        """Whether somebody will compute it for whom a sequence of this kind would wait."""
        holdings = self._promised.get(key, ())
        return any(is_background or not holding.is_background for holding in holdings)

    def check(self, holdings: list[Holding]) -> None:
        """The index has every holding at each of its depths, and nothing else."""
        tables = (self._computed, self._promised)
        count = sum(holding.known_depth for holding in holdings)
        assert count == sum(len(each) for held in tables for each in held.values()), count
        for holding in holdings:
            assert holding.computed_depth <= holding.known_depth, holding.slot
            for depth in range(1, holding.known_depth + 1):
                held = self._computed if depth <= holding.computed_depth else self._promised
                assert held[holding.chain.key(depth)].count(holding) == 1, holding.slot

    def _best(
        self,
        chain: Chain,
        depth: int,
        held: HoldingsByKey,
        length_max: int,
        *,
        skips_background: bool = False,
    ) -> tuple[Holding | None, int]:
        """Of the holdings with this key, the one with the most equal tokens, and their number.

        Usually one full comparison is enough. A second one is needed only when two different texts
        have the same key.
        """
        if depth == 0:
            return None, 0
        is_computed = held is self._computed
        holdings = (
            each
            for each in held.get(chain.key(depth), ())
            if not (skips_background and each.is_background)
        )
        common = {
            holding: _usable(chain, holding, depth, length_max, is_computed=is_computed)
            for holding in islice(holdings, CANDIDATES_MAX)
        }
        for holding in sorted(common, key=lambda each: -common[each]):
            if chain.equals(holding.chain, depth):
                return holding, common[holding]
        return None, 0


def _usable(
    chain: Chain, holding: Holding, depth: int, length_max: int, *, is_computed: bool
) -> int:
    common = depth * PREFIX_STRIDE + chain.tail(holding.chain, depth)
    held_count = holding.length if is_computed else holding.known_count
    spanned, theirs = chain.spanned, holding.chain.spanned
    if spanned != theirs:
        # Beyond that, one was computed in a span and the other token by token (invariant 4).
        common = min(common, spanned, theirs)
    return min(common, held_count, length_max)


def _put(held: HoldingsByKey, keys: list[int], holding: Holding) -> None:
    for key in keys:
        there = held.get(key)
        if there is None:
            held[key] = [holding]
        else:
            there.append(holding)


def _take(held: HoldingsByKey, keys: list[int], holding: Holding) -> None:
    for key in keys:
        there = held[key]
        if len(there) == 1 and there[0] is holding:
            del held[key]
        else:
            there.remove(holding)
