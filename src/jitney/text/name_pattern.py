"""A pattern that finds any of many names, such as those of control tokens. Pure; any thread.

Names that begin alike share the part of the pattern that they have in common. One alternative
after the other would be tried at each place where a name might begin: a vocabulary has thousands,
callers write the texts, and no other thread runs while a pattern is searched for.
"""

import re
from collections.abc import Iterable
from itertools import groupby

_DEPTH_MAX = 24
"""Of groups within groups; the parser of patterns calls itself for each."""


def names_pattern(names: Iterable[str]) -> str:
    """Matches the longest of the names that stands at a place; without names, the empty text."""
    return _pattern(sorted(set(names) - {""}), 0)


def _pattern(names: list[str], depth: int) -> str:
    """For names in order, of which the empty one may be the first."""
    if depth > _DEPTH_MAX:
        return "(?:" + "|".join(map(re.escape, sorted(names, key=len, reverse=True))) + ")"
    alternatives = []
    for first, group in groupby(names, key=lambda name: name[:1]):
        if first:
            alternatives.append(_beginning_alike(list(group), depth))
    if not alternatives:
        return ""
    may_end_here = not names[0]
    if len(alternatives) == 1 and not may_end_here:
        return alternatives[0]
    return "(?:" + "|".join(alternatives) + ")" + ("?" if may_end_here else "")


def _beginning_alike(names: list[str], depth: int) -> str:
    # In order, what the first and the last have in common is what all have.
    pairs = enumerate(zip(names[0], names[-1], strict=False))
    shorter = min(len(names[0]), len(names[-1]))
    count = next((at for at, (one, other) in pairs if one != other), shorter)
    return re.escape(names[0][:count]) + _pattern([name[count:] for name in names], depth + 1)
