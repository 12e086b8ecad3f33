"""A pattern that finds any of many names, such as the names of control tokens. Pure; any thread.

Names with a common prefix share that part of the pattern. A plain list of alternatives would be too
slow: a vocabulary may have thousands of names, each would be tried at each possible place, and no
other thread runs during a search.
"""

import re
from collections.abc import Iterable
from itertools import groupby

_DEPTH_MAX = 24
"""Depth of nested groups; Python's parser of patterns recurses once for each."""


def names_pattern(names: Iterable[str]) -> str:
    """A pattern that matches the longest name at a place; without names, the empty text."""
    return _pattern(sorted(set(names) - {""}), 0)


def _pattern(names: list[str], depth: int) -> str:
    """The pattern for sorted names. The first name may be empty."""
    if depth > _DEPTH_MAX:
        return "(?:" + "|".join(map(re.escape, sorted(names, key=len, reverse=True))) + ")"
    alternatives = []
    for first, group in groupby(names, key=lambda name: name[:1]):
        if first:
            alternatives.append(_with_common_prefix(list(group), depth))
    if not alternatives:
        return ""
    may_end_here = not names[0]
    if len(alternatives) == 1 and not may_end_here:
        return alternatives[0]
    return "(?:" + "|".join(alternatives) + ")" + ("?" if may_end_here else "")


def _with_common_prefix(names: list[str], depth: int) -> str:
    # The names are sorted, so the first and the last share exactly the common prefix.
    pairs = enumerate(zip(names[0], names[-1], strict=False))
    shorter = min(len(names[0]), len(names[-1]))
    count = next((at for at, (one, other) in pairs if one != other), shorter)
    return re.escape(names[0][:count]) + _pattern([name[count:] for name in names], depth + 1)
