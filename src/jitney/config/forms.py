"""The forms of values: each reads a value from a file, the environment, a flag or Python.

A form turns text into a plain value; msgspec then checks its type and bounds. Nothing is clamped
or guessed. `form_of` finds the form of a type. Pure; any thread.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

import msgspec
from msgspec import Meta

from jitney.errors import ConfigError

NUMBER_CHARACTERS_MAX = 40
WORD_CHARACTERS_MAX = 80
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)", re.ASCII)
_ORIGIN = re.compile(
    r"([a-z][a-z0-9+.-]*)://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?", re.ASCII
)
_OWN_PORTS = {"http": 80, "https": 443}
_BINARY = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
_DECIMAL = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "KB": 10**3, "B": 1}
_UNITS = {unit.lower(): factor for unit, factor in (_BINARY | _DECIMAL).items()}
_SWITCH_WORDS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(
    ("false", "no", "off", "0"), False
)


MeaningT = TypeVar("MeaningT")


class ValueRefusal(ValueError):
    """A value of the right form that cannot be used. Its message is a clause: why, what to do."""


@dataclass(frozen=True, slots=True)
class Form:
    """How the value of one setting is written."""

    type: Any  # a type with bounds, as msgspec has them
    """What msgspec checks the plain value against."""
    plain: Callable[[object], object]
    """The plain value of a text; other values stay as they are. Raises ValueError."""
    expected: str
    """What a value looks like, in words that complete 'expected ...'."""
    placeholder: str | None
    """The placeholder of a value in the help; None for a flag without a value."""
    show: Callable[[Any], str] = str  # Any: of the setting's type
    """A value as a person would write it."""
    unquoted: str = ""
    """The end of a refusal of what is no text: a file has it without quotes."""
    is_list: bool = False
    """Whether a flag may be given several times."""

    def read(self, value: object) -> Any:  # Any: as above
        """The checked value. Raises ValueError for another form."""
        return msgspec.convert(self.plain(value), self.type)


def form_of(kind: Any) -> Form:  # Any: annotations have no common type
    """The form of a type: the one in its annotation, or that of its words, switches or paths."""
    arguments = get_args(kind)
    if NoneType in arguments:
        return or_none(form_of(arguments[0]))
    found = next((each for each in arguments if isinstance(each, Form)), None)
    if found is not None:
        return found
    if kind in (bool, Path):
        return SWITCH if kind is bool else PATH
    return one_of(arguments or kind, str if arguments else kind)


def whole_number(lowest: int, highest: int) -> Form:
    """A number within bounds, or its digits, with or without underscores between them."""
    kind = Annotated[int, Meta(ge=lowest, le=highest)]
    expected = f"a whole number from {lowest} to {highest}"
    return Form(kind, partial(_plain_number, int), expected, "N")


def number(lowest: float, highest: float, *, above: bool = False) -> Form:
    """A finite number within bounds; with `above`, the lower bound itself is not allowed."""
    bounds, words = Meta(ge=lowest, le=highest), f"from {lowest:g} to {highest:g}"
    if above:
        bounds = Meta(gt=lowest, le=highest)
        words = f"above {lowest:g} and at most {highest:g}"
    plain = partial(_plain_number, float)
    return Form(Annotated[float, bounds], plain, f"a number {words}", "X", "{:g}".format)


def byte_size(lowest: int, highest: int) -> Form:
    """A number of bytes, plain or with a unit, in any case.

    KB, MB, GB, TB are powers of 1000 and KiB, MiB, GiB, TiB of 1024.
    """
    kind = Annotated[int, Meta(ge=lowest, le=highest)]
    bounds = f"{size_text(lowest)} to {size_text(highest)}"
    expected = f"a number of bytes such as 512MB, 2GiB or 1073741824, from {bounds}"
    return Form(kind, partial(_plain_number, _count_bytes), expected, "BYTES", size_text)


def one_of(
    words: Iterable[str],
    kind: type[str] = str,
    synonyms: tuple[tuple[str, str], ...] = (),
) -> Form:
    """One word of a fixed list; `kind` is the type that the code uses.

    Case, - and _ do not matter: bounded-stall is also BoundedStall and bounded_stall. `synonyms`
    are pairs of another system's word and ours.
    """
    spellings = {_letters(word): str(word) for word in words}
    known = tuple(spellings.values())
    spellings |= {_letters(word): ours for word, ours in synonyms}

    def plain(value: object) -> str:
        # YAML reads an unquoted on or off as a truth value: convert that back.
        word = ("on" if value else "off") if isinstance(value, bool) else value
        if not isinstance(word, str) or len(word) > WORD_CHARACTERS_MAX:
            raise ValueError(value)
        return _look_up(_letters(word), spellings)

    expected = f"one of {', '.join(known)}"
    return Form(kind, plain, expected, "|".join(known))


def text_line(lowest: int, highest: int) -> Form:
    """A line of text within a number of characters, without space around it."""
    kind = Annotated[str, Meta(min_length=lowest, max_length=highest)]
    expected = f"a text of {lowest} to {highest} characters"
    unquoted = "; put a value that looks like a number or a date in quotes"
    return Form(kind, _plain_text, expected, "VALUE", unquoted=unquoted)


def word_list(highest: int, placeholder: str = "NAME,...") -> Form:
    """Several words, separated by commas or as a list; each of at most `highest` characters."""
    kind = tuple[Annotated[str, Meta(min_length=1, max_length=highest)], ...]
    expected = f"words of up to {highest} characters, with commas between them"
    return Form(kind, _plain_words, expected, placeholder, ", ".join, is_list=True)


def origin_list(highest: int) -> Form:
    """Origins as browsers send them, with commas between them or as a list; `*` is any.

    A browser sends lower case, without a path and without the scheme's own port. Another spelling
    would never match.
    """

    def plain(value: object) -> object:
        words = _plain_words(value)
        if not all(map(_is_origin, words)):
            raise ValueError(value)
        return words

    expected = (
        "origins as browsers send them, such as https://app.example or http://127.0.0.1:3000, "
        "in lower case and without a path, with commas between them; or *"
    )
    return replace(word_list(highest, "ORIGIN,..."), plain=plain, expected=expected)


def or_none(form: Form) -> Form:
    """The same form, or none: the word, or in a file and in Python its own value."""

    def plain(value: object) -> object:
        is_none = value is None or (isinstance(value, str) and value.strip().lower() == "none")
        return None if is_none else form.plain(value)

    def show(value: object) -> str:
        return "none" if value is None else form.show(value)

    return replace(
        form, type=form.type | None, plain=plain, expected=f"{form.expected}, or none", show=show
    )


def read_named(
    form: Form, name: str, value: object, where: str = "", *, is_secret: bool = False
) -> Any:  # Any: as `Form.read`
    """The value of this name, checked and converted. Raises a ConfigError that names the place."""
    try:
        return form.read(value)
    except ValueRefusal as refused:
        raise ConfigError(f"{name} is {value_text(value)}{where}, {refused}.") from None
    except ValueError:
        text = "not right" if is_secret else value_text(value)
        hint = "" if isinstance(value, str) else form.unquoted
        raise ConfigError(f"{name} is {text}{where}; expected {form.expected}{hint}.") from None


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


def _plain_number(convert: Callable[[str], float], value: object) -> object:
    if not isinstance(value, str):
        return value
    if len(value) > NUMBER_CHARACTERS_MAX or not value.isascii():
        raise ValueError(value)
    return convert(value)


def _count_bytes(text: str) -> int:
    matched = _SIZE.fullmatch(text.strip())
    if matched is None:
        return int(text)
    return int(float(matched[1]) * _look_up(matched[2].lower(), _UNITS))


def _plain_switch(value: object) -> object:
    return _look_up(value.strip().lower(), _SWITCH_WORDS) if isinstance(value, str) else value


def _plain_path(value: object) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise ValueError(value)
    text = os.fspath(value)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise ValueError(value)
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~name of a user that does not exist
        raise ValueError(value) from error


def _plain_model(value: object) -> Path:
    path = _plain_path(value)
    begins = value.strip() if isinstance(value, str) else ""
    return path.absolute() if begins.startswith("./") else path


def _plain_text(value: object) -> object:
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and not text.isprintable():
        raise ValueError(value)
    return text


def _plain_words(value: object) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(each, str) for each in texts):
        raise ValueError(value)
    words = [word.strip() for each in texts for word in each.split(",")]
    if not all(map(str.isprintable, words)):
        raise ValueError(value)
    return words


def _is_origin(word: str) -> bool:
    """Whether a browser sends this origin, or it stands for any."""
    matched = _ORIGIN.fullmatch(word)
    if matched is None:
        return word == "*"
    scheme, port = matched[1], matched[2]
    return port is None or (int(port) < 2**16 and int(port) != _OWN_PORTS.get(scheme))


def _look_up(word: str, known: Mapping[str, MeaningT]) -> MeaningT:
    """What a word means. Raises ValueError if it is not known."""
    if word not in known:
        raise ValueError(word)
    return known[word]


def _letters(word: str) -> str:
    """A word without case, - and _."""
    # The seeds write a word with its class before it, and with the dot alone.
    return word.strip().rpartition(".")[2].lower().replace("-", "").replace("_", "")


SWITCH = Form(bool, _plain_switch, "true or false", None, lambda value: str(value).lower())
"""On or off: a truth value, or one of the usual words and digits for it."""

PATH = Form(Path, _plain_path, "a path", "PATH")
"""A path, not made absolute; a leading ~ is the home folder. The file need not exist."""

MODEL = Form(Path, _plain_model, "a path, or a name such as owner/name:quant", "MODEL")
"""The path of a model, or its name on the hub, as a `Path`. The loader decides which of them it is.
A value that begins with ./ can only be a path."""
