"""The forms of values: each reads a value from a file, the environment, a flag or Python.

A function makes the form of each kind of value. A form reads a value or raises ValueError, and
never clamps or guesses. Pure; any thread.
"""

import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from jitney.errors import ConfigError

NUMBER_CHARACTERS_MAX = 40
WORD_CHARACTERS_MAX = 80
_WHOLE = re.compile(r"[+-]?[0-9](_?[0-9])*", re.ASCII)
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)", re.ASCII)
_ORIGIN = re.compile(
    r"([a-z][a-z0-9+.-]*)://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?", re.ASCII
)
_OWN_PORTS = {"http": 80, "https": 443}
_BINARY = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
_DECIMAL = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "KB": 10**3, "B": 1}
_UNITS = {unit.lower(): factor for unit, factor in (_BINARY | _DECIMAL).items()}
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


class Refused(ValueError):
    """A value of the right form that cannot be used. Its message is a clause: why, what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How the value of one setting is written."""

    read: Callable[[object], Any]  # Any: of the setting's type
    """The checked value. Raises ValueError for another form."""
    expected: str
    """What a value looks like, in words that complete 'expected ...'."""
    placeholder: str | None
    """The placeholder of a value in the help; None for a flag without a value."""
    show: Callable[[Any], str] = str  # Any: as above
    """A value as a person would write it."""
    is_list: bool = False
    """Whether a flag may be given several times."""


def whole_number(lowest: int, highest: int) -> Form:
    """A number within bounds, or its digits, with or without underscores between them."""

    def read(value: object) -> int:
        return _within(_whole(value) if isinstance(value, str) else value, lowest, highest)

    expected = f"a whole number from {lowest} to {highest}"
    return Form(read=read, expected=expected, placeholder="N")


def number(lowest: float, highest: float, *, above: bool = False) -> Form:
    """A finite number within bounds; with `above`, the lower bound itself is not allowed."""

    def read(value: object) -> float:
        if isinstance(value, str) and len(value) <= NUMBER_CHARACTERS_MAX:
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(value)
        if not lowest <= value <= highest or (above and value == lowest):
            raise ValueError(value)
        assert math.isfinite(value), "The bounds are finite"
        return float(value)

    expected = f"a number from {lowest:g} to {highest:g}"
    if above:
        expected = f"a number above {lowest:g} and at most {highest:g}"
    return Form(read=read, expected=expected, placeholder="X", show="{:g}".format)


def byte_size(lowest: int, highest: int) -> Form:
    """A number of bytes, plain or with a unit, in any case.

    KB, MB, GB, TB are powers of 1000 and KiB, MiB, GiB, TiB of 1024.
    """

    def read(value: object) -> int:
        if isinstance(value, str) and len(value) <= NUMBER_CHARACTERS_MAX:
            matched = _SIZE.fullmatch(value.strip())
            if matched is None:
                value = _whole(value)
            elif matched[2].lower() not in _UNITS:
                raise ValueError(value)
            else:
                value = int(float(matched[1]) * _UNITS[matched[2].lower()])
        return _within(value, lowest, highest)

    bounds = f"{size_text(lowest)} to {size_text(highest)}"
    expected = f"a number of bytes such as 512MB, 2GiB or 1073741824, from {bounds}"
    return Form(read=read, expected=expected, placeholder="BYTES", show=size_text)


def one_of(
    words: Iterable[str],
    kind: Callable[[str], str] = str,
    synonyms: tuple[tuple[str, str], ...] = (),
) -> Form:
    """One word of a fixed list; `kind` converts it to the type that the code uses.

    Case, - and _ do not matter: bounded-stall is also BoundedStall and bounded_stall. `synonyms`
    are pairs of another system's word and ours.
    """
    spellings = {_letters(word): str(word) for word in words}
    known = tuple(spellings.values())
    spellings |= {_letters(word): ours for word, ours in synonyms}

    def read(value: object) -> str:
        # YAML reads an unquoted on or off as a truth value: convert that back.
        if isinstance(value, bool):
            value = "on" if value else "off"
        if not isinstance(value, str) or len(value) > WORD_CHARACTERS_MAX:
            raise ValueError(value)
        if _letters(value) not in spellings:
            raise ValueError(value)
        return kind(spellings[_letters(value)])

    expected = f"one of {', '.join(known)}"
    return Form(read=read, expected=expected, placeholder="|".join(known))


def text_line(lowest: int, highest: int) -> Form:
    """A line of text within a number of characters, without space around it."""

    def read(value: object) -> str:
        text = value.strip() if isinstance(value, str) else ""
        if not lowest <= len(text) <= highest or not text.isprintable():
            raise ValueError(value)
        return text

    expected = f"a text of {lowest} to {highest} characters"
    return Form(read=read, expected=expected, placeholder="VALUE")


def word_list(highest: int) -> Form:
    """Several words, separated by commas or as a list; each of at most `highest` characters."""
    expected = f"words of up to {highest} characters, with commas between them"
    return Form(
        read=partial(_read_words, highest=highest),
        expected=expected,
        placeholder="NAME,...",
        show=", ".join,
        is_list=True,
    )


def origin_list(highest: int) -> Form:
    """Origins as browsers send them, with commas between them or as a list; `*` is any.

    A browser sends lower case, without a path and without the scheme's own port. Another spelling
    would never match.
    """

    def read(value: object) -> tuple[str, ...]:
        origins = _read_words(value, highest)
        for origin in origins:
            matched = _ORIGIN.fullmatch(origin)
            if origin != "*" and (matched is None or not _is_sent(matched[1], matched[2])):
                raise ValueError(value)
        return origins

    expected = (
        "origins as browsers send them, such as https://app.example or http://127.0.0.1:3000, "
        "in lower case and without a path, with commas between them; or *"
    )
    form = word_list(highest)
    return replace(form, read=read, expected=expected, placeholder="ORIGIN,...")


def _read_switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in _TRUE | _FALSE:
        raise ValueError(value)
    return word in _TRUE


def _read_path(value: object) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise ValueError(value)
    text = os.fspath(value)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise ValueError(value)
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~name of a user that does not exist
        raise ValueError(value) from error


def _read_model(value: object) -> Path:
    path = _read_path(value)
    begins = value.strip() if isinstance(value, str) else ""
    return path.absolute() if begins.startswith("./") else path


SWITCH = Form(
    read=_read_switch,
    expected="true or false",
    placeholder=None,
    show=lambda value: str(value).lower(),
)
"""On or off: a truth value, or one of the usual words and digits for it."""

PATH = Form(read=_read_path, expected="a path", placeholder="PATH")
"""A path, not made absolute; a leading ~ is the home folder. The file need not exist."""

MODEL = Form(
    read=_read_model,
    expected="a path, or a name such as owner/name:quant",
    placeholder="MODEL",
)
"""The path of a model, or its name on the hub, as a `Path`. The loader decides which of them it is.
A value that begins with ./ can only be a path."""


def or_none(form: Form) -> Form:
    """The same form, or none: the word, or in a file and in Python its own value."""

    def read(value: object) -> object:
        is_none = value is None or (isinstance(value, str) and value.strip().lower() == "none")
        return None if is_none else form.read(value)

    def show(value: object) -> str:
        return "none" if value is None else form.show(value)

    return replace(form, read=read, expected=f"{form.expected}, or none", show=show)


def read_named(
    form: Form, name: str, value: object, where: str = "", *, is_secret: bool = False
) -> Any:  # Any: as `Form.read`
    """The value of this name, checked and converted. Raises a ConfigError that names the place."""
    try:
        return form.read(value)
    except Refused as refused:
        raise ConfigError(f"{name} is {value_text(value)}{where}, {refused}.") from None
    except ValueError:
        shown = "not right" if is_secret else value_text(value)
        raise ConfigError(f"{name} is {shown}{where}; expected {form.expected}.") from None


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
    for unit, factor in _BINARY.items():
        if count and count % factor == 0:
            return f"{count // factor}{unit}"
    return str(count)


def _letters(word: str) -> str:
    """A word without case, - and _."""
    return word.strip().lower().replace("-", "").replace("_", "")


def _is_sent(scheme: str, port: str | None) -> bool:
    """Whether a browser sends an origin with this port."""
    return port is None or (0 < int(port) < 2**16 and int(port) != _OWN_PORTS.get(scheme))


def _read_words(value: object, highest: int) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise ValueError(value)
    words = tuple(word.strip() for each in given for word in each.split(","))
    if not all(0 < len(word) <= highest and word.isprintable() for word in words):
        raise ValueError(value)
    return words


def _within(value: object, lowest: int, highest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(value)
    if not lowest <= value <= highest:
        raise ValueError(value)
    return value


def _whole(text: str) -> int:
    stripped = text.strip()
    if len(stripped) > NUMBER_CHARACTERS_MAX or not _WHOLE.fullmatch(stripped):
        raise ValueError(text)
    return int(stripped)
