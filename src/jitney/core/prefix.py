"""Which slot holds the longest prefix of a prompt: `Holding` and `PrefixIndex`.

Prefixes are found by a chain of hashes at multiples of PREFIX_CHUNK tokens and then compared
token by token: a hash only proposes, equality decides (invariant 6). Running sequences stand in
the index with everything they know, so that a newcomer can see that its prefix is about to be
computed by somebody else and wait for it. Called by `Memory` only.
"""

from dataclasses import dataclass

from jitney.core.limits import PREFIX_CHUNK
from jitney.core.sequence import Sequence

CANDIDATES_MAX = 8
"""Holdings compared at one depth: they differ by less than a chunk, so a few are enough."""


class Holding:
    """What a slot holds: `length` computed tokens of `tokens`. Cached when nobody owns it."""

    __slots__ = ("keys", "length", "scope", "sequence", "slot", "tokens")

    def __init__(self, slot: int, scope: str, sequence: Sequence) -> None:
        self.slot = slot
        self.scope = scope
        self.sequence: Sequence | None = sequence
        self.tokens = sequence.tokens
        self.length = 0
        self.keys: list[int] = []


@dataclass(frozen=True, slots=True)
class Match:
    """The best prefix found: `length` tokens of `holding`.

    `promised` is above `length` when a running sequence is about to compute more of it.
    """

    holding: Holding | None
    length: int
    promised: int


NO_MATCH = Match(None, 0, 0)


class PrefixIndex:
    """Finds holdings by what they begin with."""

    def __init__(self) -> None:
        self._held: dict[int, dict[int, Holding]] = {}

    def extend(self, holding: Holding) -> None:
        """Index what the holding's tokens have grown by since the last call."""
        keys = holding.keys
        last = len(holding.tokens) - PREFIX_CHUNK
        for at in range(len(keys) * PREFIX_CHUNK, last + 1, PREFIX_CHUNK):
            keys.append(_next_key(keys, holding.scope, holding.tokens, at))
            self._held.setdefault(keys[-1], {})[holding.slot] = holding

    def trim(self, holding: Holding, token_count: int) -> None:
        """Forget what stands in the index of the holding beyond so many tokens."""
        while len(holding.keys) > token_count // PREFIX_CHUNK:
            holders = self._held[holding.keys[-1]]
            del holders[holding.slot]
            if not holders:
                del self._held[holding.keys[-1]]
            holding.keys.pop()

    def longest(self, scope: str, tokens: list[int], keys: list[int], length_max: int) -> Match:
        """The holding with the longest computed prefix of `tokens`, at most `length_max` of it.

        `keys` is the caller's memory of the chain for these tokens; it is filled as needed.
        """
        deepest = self._deepest(scope, tokens, keys)
        best: Holding | None = None
        length = 0
        promised = 0
        for depth in range(deepest, 0, -1):
            if depth * PREFIX_CHUNK + PREFIX_CHUNK <= length:
                break
            for holding in list(self._held[keys[depth - 1]].values())[:CANDIDATES_MAX]:
                common = _common(holding, scope, tokens, depth * PREFIX_CHUNK)
                promised = max(promised, min(common, length_max))
                usable = min(common, holding.length, length_max)
                if usable > length:
                    best, length = holding, usable
            if length >= depth * PREFIX_CHUNK:
                break
        return Match(best, length, promised)

    def check(self, holdings: list[Holding]) -> None:
        """Every holding stands in the index under each of its keys, and nothing else does."""
        count = sum(len(holding.keys) for holding in holdings)
        assert count == sum(len(holders) for holders in self._held.values()), count
        for holding in holdings:
            for key in holding.keys:
                assert self._held[key][holding.slot] is holding, holding.slot

    def _deepest(self, scope: str, tokens: list[int], keys: list[int]) -> int:
        depth = 0
        while (depth + 1) * PREFIX_CHUNK <= len(tokens):
            if depth == len(keys):
                keys.append(_next_key(keys, scope, tokens, depth * PREFIX_CHUNK))
            if keys[depth] not in self._held:
                break
            depth += 1
        return depth


def _next_key(keys: list[int], scope: str, tokens: list[int], at: int) -> int:
    chunk = tuple(tokens[at : at + PREFIX_CHUNK])
    return hash((keys[-1] if at else scope, chunk))


def _common(holding: Holding, scope: str, tokens: list[int], proposed: int) -> int:
    """How many tokens are really equal, given that a hash proposed at least so many."""
    if holding.scope != scope or holding.tokens[:proposed] != tokens[:proposed]:
        return 0
    count = proposed
    end = min(len(holding.tokens), len(tokens))
    while count < end and holding.tokens[count] == tokens[count]:
        count += 1
    return count
