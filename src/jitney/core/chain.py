"""`Chain`: the keys by which a sequence's tokens are looked up, one for each whole stride.

A key depends on all tokens up to the end of its stride. So two sequences with the same beginning
have the same keys for it, also in other processes. Each key is made once, at its first use. Called
by `PrefixIndex`, and by the router of a cluster.

Tests: tests/unit/core/test_prefix.py.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b

from jitney.core.limits import PREFIX_STRIDE


class Origin:
    """Marks the strides of one chain. Chains with the same origin at a depth are equal up to it:
    one took it over when it had been compared with the other."""

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
        "_scope",
        "_tokens",
        "read_count",
        "spanned",
    )

    def __init__(self, scope: str, tokens: list[int], spanned: int = 0, *, order: int = 0) -> None:
        """Of two equal chains, the one of the higher order takes the origins of the other."""
        self._scope = scope
        self._root = _root(scope)
        self._tokens = tokens
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
        keys, tokens = self._keys, self._tokens
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
        while (depth + 1) * PREFIX_STRIDE <= len(self._tokens) and is_held(self.key(depth + 1)):
            depth += 1
        return depth

    def tail(self, other: "Chain", depth: int) -> int:
        """How many tokens are equal in the stride after the first `depth` strides."""
        at = depth * PREFIX_STRIDE
        ours, theirs = self._tokens[at : at + PREFIX_STRIDE], other._tokens[at : at + PREFIX_STRIDE]
        pairs = enumerate(zip(ours, theirs, strict=False))
        return next((count for count, (a, b) in pairs if a != b), min(len(ours), len(theirs)))

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
        if self._scope != other._scope or self._tokens[start:end] != other._tokens[start:end]:
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
