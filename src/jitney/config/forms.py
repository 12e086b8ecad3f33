"""The forms of values: each reads a value from a file, the environment, a flag or Python.

Each form says in words what it expects. It reads a value or raises ValueError, and never clamps or
guesses. Pure; any thread.
"""

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

NUMBER_CHARACTERS_MAX = 40
WORD_CHARACTERS_MAX = 80
_WHOLE = re.compile(r"[+-]?[0-9](_?[0-9])*", re.ASCII)
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)", re.ASCII)
_ORIGIN = re.compile(
    r"([a-z][a-z0-9+.-]*)://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?", re.ASCII
)
_OWN_PORTS = {"http": 80, "https": 443}
_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


class Refused(ValueError):
    """A value of the right form that cannot be used. Its message is a clause: why, what to do."""


class Form(Protocol):
    """How one setting is written."""

    @property
    def expected(self) -> str:
        """What a value looks like, in words that complete 'expected ...'."""
        ...

    @property
    def placeholder(self) -> str | None:
        """The placeholder of a value in the help; None for a flag without a value."""
        ...

    def read(self, value: object) -> object:
        """The checked value. Raises ValueError for another form."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within bounds."""

    lowest: int
    highest: int
    placeholder: ClassVar[str] = "N"

    @property
    def expected(self) -> str:
        """The bounds, in words."""
        return f"a whole number from {self.lowest} to {self.highest}"

    def read(self, value: object) -> int:
        """A number, or its digits, with or without underscores between them."""
        return _within(_whole(value) if isinstance(value, str) else value, self)


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number within bounds; with `above`, the lower bound itself is not allowed."""

    lowest: float
    highest: float
    above: bool = False
    placeholder: ClassVar[str] = "X"

    @property
    def expected(self) -> str:
        """The bounds, in words."""
        if self.above:
            return f"a number above {self.lowest:g} and at most {self.highest:g}"
        return f"a number from {self.lowest:g} to {self.highest:g}"

    def read(self, value: object) -> float:
        """A number or its digits."""
        if isinstance(value, str) and len(value) <= NUMBER_CHARACTERS_MAX:
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(value)
        if not self.lowest <= value <= self.highest or (self.above and value == self.lowest):
            raise ValueError(value)
        assert math.isfinite(value), "The bounds are finite"
        return float(value)


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes, plain or with a unit."""

    lowest: int
    highest: int
    placeholder: ClassVar[str] = "BYTES"

    @property
    def expected(self) -> str:
        """The spelling and the bounds, in words."""
        bounds = f"{size_text(self.lowest)} to {size_text(self.highest)}"
        return f"a number of bytes such as 512MB, 2GiB or 1073741824, from {bounds}"

    def read(self, value: object) -> int:
        """Bytes; KB, MB, GB, TB are powers of 1000 and KiB, MiB, GiB, TiB of 1024, in any case."""
        if isinstance(value, str) and len(value) <= NUMBER_CHARACTERS_MAX:
            matched = _SIZE.fullmatch(value.strip())
            if matched is None:
                value = _whole(value)
            elif matched[2].lower() not in _UNITS:
                raise ValueError(value)
            else:
                value = int(float(matched[1]) * _UNITS[matched[2].lower()])
        return _within(value, self)


@dataclass(frozen=True, slots=True)
class OneOf:
    """One word of a fixed list; `kind` converts it to the type that the code uses.

    Case, - and _ do not matter: bounded-stall is also BoundedStall and bounded_stall. `synonyms`
    are pairs of another system's word and ours.
    """

    words: tuple[str, ...]
    kind: Callable[[str], str] = str
    synonyms: tuple[tuple[str, str], ...] = ()

    @property
    def expected(self) -> str:
        """The list."""
        return "one of " + ", ".join(self.words)

    @property
    def placeholder(self) -> str:
        """The list."""
        return "|".join(self.words)

    def read(self, value: object) -> str:
        """The word. YAML reads an unquoted on or off as a truth value: convert that back."""
        if isinstance(value, bool):
            value = "on" if value else "off"
        if not isinstance(value, str) or len(value) > WORD_CHARACTERS_MAX:
            raise ValueError(value)
        spellings = {_letters(word): word for word in self.words}
        spellings |= {_letters(word): ours for word, ours in self.synonyms}
        ours = spellings.get(_letters(value))
        if ours is None:
            raise ValueError(value)
        return self.kind(ours)


@dataclass(frozen=True, slots=True)
class Switch:
    """On or off."""

    expected: ClassVar[str] = "true or false"
    placeholder: ClassVar[str | None] = None

    def read(self, value: object) -> bool:
        """A truth value, or one of the usual words and digits for it."""
        if isinstance(value, bool):
            return value
        word = value.strip().lower() if isinstance(value, str) else ""
        if word not in _TRUE | _FALSE:
            raise ValueError(value)
        return word in _TRUE


@dataclass(frozen=True, slots=True)
class Location:
    """A path; a leading ~ is the home folder. The file need not exist."""

    expected: ClassVar[str] = "a path"
    placeholder: ClassVar[str] = "PATH"

    def read(self, value: object) -> Path:
        """The path, not made absolute."""
        if not isinstance(value, str | os.PathLike):
            raise ValueError(value)
        text = os.fspath(value)
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            raise ValueError(value)
        try:
            return Path(text).expanduser()
        except RuntimeError as error:  # ~name of a user that does not exist
            raise ValueError(value) from error


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """The path of a model, or its name on the hub. The loader decides which of them it is."""

    expected: ClassVar[str] = "a path, or a name such as owner/name:quant"
    placeholder: ClassVar[str] = "MODEL"

    def read(self, value: object) -> Path:
        """The path or the name, as a `Path`. A value that begins with ./ can only be a path."""
        path = Location().read(value)
        begins = value.strip() if isinstance(value, str) else ""
        return path.absolute() if begins.startswith("./") else path


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text within a number of characters."""

    lowest: int
    highest: int
    placeholder: ClassVar[str] = "VALUE"

    @property
    def expected(self) -> str:
        """The bounds, in words."""
        return f"a text of {self.lowest} to {self.highest} characters"

    def read(self, value: object) -> str:
        """The text, without space around it."""
        text = value.strip() if isinstance(value, str) else ""
        if not self.lowest <= len(text) <= self.highest or not text.isprintable():
            raise ValueError(value)
        return text


@dataclass(frozen=True, slots=True)
class Words:
    """Several words, separated by commas or as a list; each of at most `highest` characters."""

    highest: int
    placeholder: ClassVar[str] = "NAME,..."

    @property
    def expected(self) -> str:
        """The spelling, in words."""
        return f"words of up to {self.highest} characters, with commas between them"

    def read(self, value: object) -> tuple[str, ...]:
        """The words, in their order."""
        given = [value] if isinstance(value, str) else value
        if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
            raise ValueError(value)
        words = tuple(word.strip() for each in given for word in each.split(","))
        if not all(0 < len(word) <= self.highest and word.isprintable() for word in words):
            raise ValueError(value)
        return words


@dataclass(frozen=True, slots=True)
class Origins:
    """Origins as browsers send them, with commas between them or as a list; `*` is any.

    A browser sends lower case, without a path and without the scheme's own port. Another spelling
    would never match.
    """

    highest: int
    placeholder: ClassVar[str] = "ORIGIN,..."

    @property
    def expected(self) -> str:
        """The spelling, in words."""
        return (
            "origins as browsers send them, such as https://app.example or http://127.0.0.1:3000, "
            "in lower case and without a path, with commas between them; or *"
        )

    def read(self, value: object) -> tuple[str, ...]:
        """The origins, in their order."""
        origins = Words(self.highest).read(value)
        for origin in origins:
            matched = _ORIGIN.fullmatch(origin)
            if origin != "*" and (matched is None or not _is_sent(matched[1], matched[2])):
                raise ValueError(value)
        return origins


def value_text(value: object) -> str:
    """A refused value for a message, shortened: a small file may hold a huge value."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        value = value[0]  # from a flag that may be given several times
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "a table"
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    return text if len(text) <= 80 else text[:77] + "..."


def size_text(count: int) -> str:
    """Bytes for people, in the largest binary unit that divides them."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = _UNITS[unit.lower()]
        if count and count % factor == 0:
            return f"{count // factor}{unit}"
    return str(count)


def _letters(word: str) -> str:
    """A word without case, - and _."""
    return word.strip().lower().replace("-", "").replace("_", "")


def _is_sent(scheme: str, port: str | None) -> bool:
    """Whether a browser sends an origin with this port."""
    return port is None or (0 < int(port) < 2**16 and int(port) != _OWN_PORTS.get(scheme))


def _within(value: object, form: Whole | Size) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(value)
    if not form.lowest <= value <= form.highest:
        raise ValueError(value)
    return value


def _whole(text: str) -> int:
    stripped = text.strip()
    if len(stripped) > NUMBER_CHARACTERS_MAX or not _WHOLE.fullmatch(stripped):
        raise ValueError(text)
    return int(stripped)
