"""Finds the slot with the longest prefix of a prompt: `Chain`, `Holding` and `PrefixIndex`; and
which cached one is evicted next: `EvictionOrder`.

A chain has a key for each whole stride of PREFIX_STRIDE tokens. A key depends on all tokens up to
the end of its stride. So two sequences with the same beginning have the same keys for it, also in
other processes: the router of a cluster uses chains too. Prefixes are found by these keys. Then the
tokens are compared, because equal keys are no proof (invariant 6).

Running sequences are in the index with all their known tokens. So a newcomer can see that another
sequence will compute its prefix, and wait for it. Many waiting sequences are looked up in every
tick, the same ones again and again. To be fast, a look-up does not read the whole prompt again: the
sequence's chain remembers the last result. The index knows slots and tokens, not sequences. Called
by `Memory`.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import islice

from jitney.core.limits import PREFIX_STRIDE, PREFIX_WAIT_MIN
from jitney.core.scheduler_settings import SchedulerSettings

CANDIDATES_MAX = 8
"""Holdings compared at one depth. They differ by less than a stride, so a few are enough. Where
decodes differ, a holding that is usable in part may hide a better one."""

NEAR_TOKENS = 512
"""A copy that ends less than this before a state that is kept too is of little use beside it."""

HoldingsByKey = dict[int, list["Holding"]]
"""Most keys have one holding, and there are many keys: lists are small."""


class Origin:
    """Marks the strides of chains. Two chains that hold the same Origin at a depth were compared
    and are equal up to it."""

    __slots__ = ("order",)

    def __init__(self, order: int) -> None:
        self.order = order


def _order(origin: Origin) -> int:
    return origin.order


class Chain:
    """The keys of one sequence's tokens within one scope. The tokens may grow at their end."""

    __slots__ = (
        "_keys",
        "_origin",
        "_origins",
        "_root",
        "read_count",
        "scope",
        "spanned",
        "tokens",
    )

    def __init__(self, scope: str, tokens: list[int], spanned: int = 0, *, order: int = 0) -> None:
        """Of two equal chains, the one of the higher order takes the origins of the other."""
        self.scope = scope
        self._root = _root(scope)
        self.tokens = tokens
        self.spanned = spanned
        """How many tokens at the head are computed in spans; the others are computed one by one. 0
        where that makes no difference."""
        self._keys: list[int] = []
        self._origin = Origin(order)
        self._origins: list[Origin] = []
        self.read_count = 0
        """Tokens hashed or compared once. Tokens read at every look-up are not counted."""

    def key(self, depth: int) -> int:
        """The key of the first `depth` strides."""
        assert depth >= 1, depth
        return self.keys(depth)[depth - 1]

    def keys(self, depth: int) -> list[int]:
        """The keys of the first `depth` strides, and maybe of more. Nobody else changes them."""
        keys, tokens = self._keys, self.tokens
        known = len(keys)
        if known < depth:
            assert depth * PREFIX_STRIDE <= len(tokens), "only whole strides have keys"
            before = keys[-1] if known else self._root
            for at in range(known * PREFIX_STRIDE, depth * PREFIX_STRIDE, PREFIX_STRIDE):
                before = hash((before, tuple(tokens[at : at + PREFIX_STRIDE])))
                keys.append(before)
            self.read_count += (depth - known) * PREFIX_STRIDE
        return keys

    def deepest(self, is_held: Callable[[int], bool]) -> int:
        """The largest number of strides whose key is held. A holder of a key has all keys before
        it."""
        known = len(self._keys)
        depth = bisect_left(range(known), True, key=lambda at: not is_held(self._keys[at]))
        if depth < known:
            return depth
        while (depth + 1) * PREFIX_STRIDE <= len(self.tokens) and is_held(self.key(depth + 1)):
            depth += 1
        return depth

    def tail(self, other: "Chain", depth: int) -> int:
        """How many tokens are equal in the stride after the first `depth` strides."""
        at = depth * PREFIX_STRIDE
        ours, theirs = self.tokens[at : at + PREFIX_STRIDE], other.tokens[at : at + PREFIX_STRIDE]
        count = 0
        for a, b in zip(ours, theirs, strict=False):
            if a != b:
                break
            count += 1
        return count

    def equals(self, other: "Chain", depth: int) -> bool:
        """Whether the first `depth` strides and the scopes are really equal (invariant 6).

        Equal keys do not prove it. The result is remembered: known tokens never change. It holds
        for everybody who was found equal to either, so of many who wait one is read, not all.
        """
        assert depth >= 1, "chains without a common key are not compared"
        ours, theirs = self._marked(depth), other._marked(depth)
        if ours[depth - 1] is theirs[depth - 1]:
            return True
        known = bisect_left(range(depth), True, key=lambda at: ours[at] is not theirs[at])
        start, end = known * PREFIX_STRIDE, depth * PREFIX_STRIDE
        self.read_count += end - start
        if self.scope != other.scope or self.tokens[start:end] != other.tokens[start:end]:
            return False
        # At each depth the older one, so that no two chains can exchange theirs without end.
        for at in range(known, depth):
            ours[at] = theirs[at] = min(ours[at], theirs[at], key=_order)
        return True

    def _marked(self, depth: int) -> list[Origin]:
        """The origins of the first `depth` strides, and maybe of more."""
        origins = self._origins
        if len(origins) < depth:
            origins += [self._origin] * (depth - len(origins))
        return origins


@lru_cache(maxsize=1024)
def _root(scope: str) -> int:
    """A number for the scope. The hash of a text differs between processes, this does not: a router
    compares keys of several engines."""
    return int.from_bytes(blake2b(scope.encode("utf-8", "surrogatepass"), digest_size=8).digest())


class Holding:
    """What a slot holds: `length` computed tokens of `chain`. A running sequence has the slot, or
    it is cached."""

    __slots__ = (
        "chain",
        "computed_depth",
        "is_background",
        "is_cached",
        "is_copy",
        "keeps_at",
        "known_depth",
        "length",
        "slot",
    )

    def __init__(
        self, slot: int, chain: Chain, length: int = 0, *, is_background: bool = False
    ) -> None:
        self.slot = slot
        self.chain = chain
        self.length = length
        self.is_background = is_background
        """Whether its sequence is a background one."""
        self.is_cached = False
        self.is_copy = False
        """Whether it was copied to be kept: then whoever finds it gets a copy of it."""
        self.keeps_at: int | None = None
        """Where a copy of its state will be kept next, if its slot cannot be cut back."""
        self.computed_depth = 0
        self.known_depth = 0

    @property
    def known_count(self) -> int:
        """Tokens that it holds or will compute."""
        return self.length if self.is_cached else len(self.chain.tokens)

    @property
    def stands_at(self) -> int:
        """Where its state is of use to others: at its end, or at the copy that is kept next."""
        return self.length if self.is_cached else self.keeps_at or 0


@dataclass(frozen=True, slots=True)
class Match:
    """The best prefix found: `length` tokens of `holding`.

    `length_awaited` is above `length` when a running sequence will compute more of it.
    """

    holding: Holding | None
    length: int
    length_awaited: int

    @property
    def is_awaited(self) -> bool:
        """Whether it is better to wait until more of it is computed."""
        return self.length_awaited - self.length >= PREFIX_WAIT_MIN


NO_MATCH = Match(None, 0, 0)


class EvictionOrder(OrderedDict[int, Holding]):
    """The cached slots: the next one to be evicted is the first, the last one was used last.

    A prompt keeps copies on its way and before its end. They must not push out what others come
    back to, so most of them are put first: of those on the way all but the first ones of a few
    prompts, until somebody uses them; and one that ends shortly before a state that is kept too.
    """

    def __init__(self, settings: SchedulerSettings, slots_max: int) -> None:
        super().__init__()
        self._kept_every = settings.kept_state_every
        self._first_max = max(1, (slots_max - settings.max_num_seqs) // 4)
        self._first_copies: list[Holding] = []
        """The first copies of prompts that stand with the others and that nobody has used."""

    def add(self, holding: Holding) -> int:
        """A sequence left it. Returns how many copies of its states this puts first."""
        self[holding.slot] = holding
        # What background sequences leave is evicted first, the newest of it first: live ones come
        # back more often.
        self.move_to_end(holding.slot, last=not holding.is_background)
        near = [
            each
            for each in self.values()
            if each.is_copy
            and each not in self._first_copies
            and each.chain is holding.chain
            and holding.length - each.length < NEAR_TOKENS
        ]
        return sum([self._put_first(each) for each in near])

    def add_copy(self, copy: Holding, *, is_on_way: bool) -> int:
        """It is kept on the way of a prompt or before its end. Returns as `add` does."""
        self[copy.slot] = copy
        if copy.is_background or (is_on_way and copy.length > self._kept_every):
            return self._put_first(copy)
        if is_on_way:
            self._first_copies.append(copy)
        if len(self._first_copies) <= self._first_max:
            return 0
        return self._put_first(self._first_copies.pop(0))

    def use(self, holding: Holding) -> None:
        """Somebody got a copy of it."""
        self.move_to_end(holding.slot)
        if holding in self._first_copies:
            self._first_copies.remove(holding)

    def _put_first(self, copy: Holding) -> bool:
        is_there = self.get(copy.slot) is copy
        if is_there:
            self.move_to_end(copy.slot, last=False)
        return is_there


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
        take(self._promised, keys[computed_before : min(computed, known_before)], holding)
        put(self._computed, keys[computed_before:computed], holding)
        put(self._promised, keys[max(computed, known_before) : known], holding)
        holding.known_depth, holding.computed_depth = known, computed

    def trim(self, holding: Holding, token_count: int) -> None:
        """Remove the holding from the index beyond so many tokens."""
        assert 0 <= token_count <= holding.known_count, token_count
        depth, known = token_count // PREFIX_STRIDE, holding.known_depth
        computed = min(holding.computed_depth, depth)
        keys = holding.chain.keys(known)
        take(self._computed, keys[computed : holding.computed_depth], holding)
        take(self._promised, keys[max(holding.computed_depth, depth) : known], holding)
        holding.known_depth, holding.computed_depth = min(known, depth), computed

    def longest(self, chain: Chain, length_max: int, *, is_background: bool = False) -> Match:
        """The holding with the longest computed prefix of the chain, at most `length_max` of it.

        A live sequence does not wait for what a background one will compute.
        """
        depth = chain.deepest(lambda key: key in self._computed)
        best, length = self._best(chain, depth, self._computed, length_max)
        awaited_depth = chain.deepest(
            lambda key: key in self._computed or self._is_promised(key, is_background=is_background)
        )
        if awaited_depth == depth:
            return Match(best, length, length)
        holding, awaited = self._best(
            chain, awaited_depth, self._promised, length_max, skips_background=not is_background
        )
        if holding is not None and min(awaited, holding.length) > length:
            best, length = holding, min(awaited, holding.length)
        assert length <= length_max, (length, length_max)
        return Match(best, length, max(length, awaited))

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

    def check_ends(self, holding: Holding) -> None:
        """The index has the holding at its deepest computed and its deepest known stride."""
        assert holding.computed_depth <= holding.known_depth, holding.slot
        for depth in {holding.computed_depth, holding.known_depth} - {0}:
            held = self._computed if depth <= holding.computed_depth else self._promised
            assert holding in held[holding.chain.key(depth)], holding.slot

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


def put(held: HoldingsByKey, keys: list[int], holding: Holding) -> None:
    """Add a holding at each of these keys."""
    for key in keys:
        there = held.get(key)
        if there is None:
            held[key] = [holding]
        else:
            there.append(holding)


def take(held: HoldingsByKey, keys: list[int], holding: Holding) -> None:
    """Remove a holding from each of these keys."""
    for key in keys:
        there = held[key]
        if len(there) == 1 and there[0] is holding:
            del held[key]
        else:
            there.remove(holding)
