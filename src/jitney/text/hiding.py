"""Keeps a caller's text apart from a chat template's text while the template renders both.

A caller's text never becomes a control token: if a caller writes the name of one, that name becomes
a separate segment that is not special. Two steps ensure this. First, before rendering, a mark
replaces each such name, and afterwards the name is put back. A mark is one character that occurs
nowhere else. Second, a template may cut text so that a name appears (`<|e[X]nd|>` without the
`[X]`). So text with the first character of a name is rendered again, with that character replaced
too. If the two results have different control tokens, the second result counts.

Pure; runs in the template's process. The time is linear in the length of the text.

Tests: tests/unit/text/test_hiding.py and test_name_pattern.py.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any  # Any: JSON

from jitney.core.backend import Segment

_PRIVATE = re.compile("[\U000f0000-\U0010fffd]")
_RUNS = re.compile("([\U000f0000-\U0010fffd]+)")
_PRIVATE_FIRST, _PRIVATE_LAST = 0xF0000, 0x10FFFD
_DEPTH_MAX = 24
"""Depth of nested groups in a pattern; Python's parser of patterns recurses once for each."""


class MarksUsedUp(Exception):
    """The text contains so many private characters of Unicode that none are left."""


class Hiding:
    """Hides the names of one vocabulary. `ours` is all text that is not from a caller."""

    def __init__(self, names: Iterable[str], ours: str) -> None:
        listed = sorted(set(names))
        self._names = re.compile(names_pattern(listed)) if listed else None
        self._firsts = sorted({name[0] for name in listed})
        self._taken = frozenset(_PRIVATE.findall(ours + "".join(listed)))

    def segments(self, value: Any, write: Callable[[Any], str]) -> list[Segment]:
        """The segments of `write(value)`, for JSON of a caller. Raises MarksUsedUp."""
        if self._names is None:
            return _split(write(value), {})
        texts = list(_texts(value))
        free = self._free(texts)
        marks = _marks_for((name for text in texts for name in self._names.findall(text)), free)
        if marks:
            value = _mapped(value, partial(self._names.sub, lambda found: marks[found[0]]))
            texts = list(_texts(value))
        text = write(value)
        firsts = _marks_for(
            (each for each in self._firsts if any(each in one for one in texts)), free
        )
        if firsts:
            safe = write(_mapped(value, partial(_with_marks, firsts)))
            if self._names.findall(safe) != self._names.findall(text):
                text, marks = safe, marks | firsts
        return _split(text, {mark: name for name, mark in marks.items()})

    def mark(self, value: Any) -> str:
        """A character that is neither in this JSON nor in our text."""
        (mark,) = _marks_for([""], self._free(list(_texts(value)))).values()
        return mark

    def _free(self, texts: list[str]) -> Iterator[str]:
        """Characters that are neither in these texts nor in our text."""
        taken = self._taken.union(*map(_PRIVATE.findall, texts))
        yield from (
            chr(point)
            for point in range(_PRIVATE_FIRST, _PRIVATE_LAST + 1)
            if chr(point) not in taken
        )


def _marks_for(found: Iterable[str], free: Iterator[str]) -> dict[str, str]:
    """A different free character for each text."""
    try:
        return {text: next(free) for text in dict.fromkeys(found)}
    except StopIteration:
        raise MarksUsedUp from None


def _split(text: str, names: dict[str, str]) -> list[Segment]:
    """Put the hidden texts back, as separate segments."""
    parts: list[Segment] = []
    for index, part in enumerate(_RUNS.split(text) if names else [text]):
        if index % 2:
            # A run of private characters; not all of them need be marks.
            parts += [(names.get(mark, mark), mark not in names) for mark in part]
        elif part:
            parts.append((part, True))
    return [
        ("".join(text for text, _ in group), is_special)
        for is_special, group in groupby(parts, key=itemgetter(1))
    ]


def _with_marks(marks: dict[str, str], text: str) -> str:
    for each, mark in marks.items():
        text = text.replace(each, mark)
    return text


def _texts(value: Any) -> Iterator[str]:
    """Every string in a JSON value, including the keys of objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(part, change) for key, part in value.items()}
    if isinstance(value, list):
        return [_mapped(part, change) for part in value]
    return value


def names_pattern(names: Iterable[str]) -> str:
    """A pattern that matches the longest name at a place; without names, the empty text.

    Names with a common prefix share that part of the pattern. A plain list of alternatives would be
    too slow: a vocabulary may have thousands of names, each would be tried at each possible place.
    """
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
