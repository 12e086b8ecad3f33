"""What a sequence's tokens are looked up by: `Chain`, one key for each whole chunk of them.

A key stands for all tokens up to the end of its chunk, so two sequences with equal beginnings have
equal keys as far as those go. Each key is made once, when it is first asked for. Called by
`PrefixIndex` only.

Tests: tests/unit/core/test_prefix.py.
"""

from bisect import bisect_left
from collections.abc import Callable

from jitney.core.limits import PREFIX_CHUNK

_CHECKED_MAX = 4
"""Others whose tokens were compared and who are remembered: one is used, one is waited for."""


class Chain:
    """The keys of one sequence's tokens within one scope. The tokens may grow at their end."""

    __slots__ = ("_checked", "_keys", "_scope", "_tokens", "read_count", "spanned")

    def __init__(self, scope: str, tokens: list[int], spanned: int = 0) -> None:
        self._scope = scope
        self._tokens = tokens
        self.spanned = spanned
        """Tokens at the head that are computed in spans, those after them one by one; 0 where that
        makes no difference."""
        self._keys: list[int] = []
        self._checked: dict[Chain, int] = {}
        self.read_count = 0
        """Tokens hashed or compared along the way; what is looked at each time is not counted."""

    def key(self, depth: int) -> int:
        """The key of the first `depth` chunks."""
        for at in range(len(self._keys) * PREFIX_CHUNK, depth * PREFIX_CHUNK, PREFIX_CHUNK):
            before = self._keys[-1] if at else self._scope
            self._keys.append(hash((before, tuple(self._tokens[at : at + PREFIX_CHUNK]))))
            self.read_count += PREFIX_CHUNK
        return self._keys[depth - 1]

    def deepest(self, is_held: Callable[[int], bool]) -> int:
        """The most chunks whose key is held. Whoever holds a key holds those before it."""
        known = len(self._keys)
        depth = bisect_left(range(known), True, key=lambda at: not is_held(self._keys[at]))
        if depth < known:
            return depth
        while (depth + 1) * PREFIX_CHUNK <= len(self._tokens) and is_held(self.key(depth + 1)):
            depth += 1
        return depth

    def tail(self, other: "Chain", depth: int) -> int:
        """How many tokens of the chunk after the first `depth` ones are equal."""
        at = depth * PREFIX_CHUNK
        ours, theirs = self._tokens[at : at + PREFIX_CHUNK], other._tokens[at : at + PREFIX_CHUNK]
        pairs = enumerate(zip(ours, theirs, strict=False))
        return next((count for count, (a, b) in pairs if a != b), min(len(ours), len(theirs)))

    def equals(self, other: "Chain", depth: int) -> bool:
        """Whether the first `depth` chunks are really equal, scope and all (invariant 6).

        A key only proposes. What was compared is remembered: tokens do not change, they only grow.
        """
        end = depth * PREFIX_CHUNK
        checked = self._checked.get(other, 0)
        if end <= checked:
            return True
        is_equal = (
            self._scope == other._scope and self._tokens[checked:end] == other._tokens[checked:end]
        )
        self.read_count += end - checked
        if is_equal:
            if len(self._checked) >= _CHECKED_MAX:
                self._checked.clear()
            self._checked[other] = end
        return is_equal

    def forget_others(self) -> None:
        """It waits no more. Remembered, each would keep the one before it alive, without end."""
        self._checked.clear()
