"""Reads calls whose arguments are nearly JSON: Python's, or Gemma's. Pure; token by token.

What is read is passed on as JSON: other quotation marks, strings that join, keys without marks,
`True` and `None`. A value without a key, before there is any, makes it no call. Later mistakes are
passed on as they are, with everything behind them: so the arguments are no JSON, and show what the
model wrote.

Tests: tests/unit/server/formats/test_loose_calls.py, tests/unit/server/formats/test_families.py.
"""

import json
import re
from enum import Enum, auto

from jitney.server.formats.answer_forms import CallForm
from jitney.server.formats.json_calls import NAME_CHARACTERS, JsonCall
from jitney.server.formats.text_reader import (
    CLOSERS,
    SPACE,
    DeltaWriter,
    Reading,
    TextReader,
    whole,
    written,
)

_WORDS = {"True": "true", "False": "false", "None": "null"}
_WORDS |= {each: each for each in _WORDS.values()}
_FRACTION = re.compile(r"[+-]?([0-9_]*\.[0-9_]*([eE][+-]?[0-9]+)?|[0-9_]+[eE][+-]?[0-9]+)")
_OPENINGS = {"{": "{", "[": "[", "(": "["}
_CLOSINGS = {"{": "}", "[": "]"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_DIGITS = {"x": 2, "u": 4, "U": 8}
_QUOTES = "\"'"
_PREFIXES = ("r", "u", "b", "f", "br", "rb", "fr", "rf")
_ATOM_ENDS = SPACE + ",:=([{" + CLOSERS + _QUOTES
_STRING, _ATOM = "string", "atom"
"""Kinds of tokens. Any other is one character, which is its own kind."""


class _Due(Enum):
    """What may come next."""

    KEY = auto()
    EQUALS = auto()
    VALUE = auto()
    ITEM = auto()
    COMMA = auto()


def read_python(form: CallForm, reader: TextReader, writer: DeltaWriter) -> Reading[None]:
    """`NAME(KEY=VALUE, ...)`; some models write JSON there."""
    if (yield from reader.skip()) == "{":
        yield from JsonCall(form, reader, writer).read()
        return
    name = yield from reader.word(NAME_CHARACTERS)
    if (yield from reader.skip_mark("(")):
        yield from LooseObject(reader, writer, form.quote, name).read()


def read_gemma(form: CallForm, reader: TextReader, writer: DeltaWriter) -> Reading[None]:
    """`call:NAME{KEY:VALUE,...}`."""
    yield from reader.skip()
    if not (yield from reader.skip_mark("call:")):
        return
    name = yield from reader.word(NAME_CHARACTERS)
    if (yield from reader.skip_mark("{")):
        yield from LooseObject(reader, writer, form.quote, name).read()


class LooseObject:
    """The arguments of one call, after the bracket that opens them. It is a call of this name once
    it has a key, or has ended without any."""

    def __init__(self, reader: TextReader, writer: DeltaWriter, quote: str, name: str) -> None:
        self._reader = reader
        self._writer = writer
        self._quote = quote
        self._name = name
        self._open = ["}"]
        """How JSON closes what is open."""
        self._due = _Due.KEY
        self._held = "{"
        """JSON that is written with the next token: a comma may be the last, and a string may go
        on."""

    def read(self) -> Reading[None]:
        """Read up to the closing bracket."""
        reader, writer, is_raw = self._reader, self._writer, False
        while self._open:
            if writer.is_in_call:
                reader.taken()
            kind, text = yield from self._read_token()
            if not is_raw and not self._take(kind, text):
                if not writer.is_in_call:
                    return
                is_raw = True
                writer.arguments(self._held)
            if is_raw:
                writer.arguments(reader.taken())
                if kind in _OPENINGS:
                    self._open.append(kind)
                elif kind in CLOSERS:
                    self._open.pop()

    def _take(self, kind: str, text: str) -> bool:
        """Write a token as JSON. False if it has no place here."""
        due = self._due
        if kind == _STRING and self._held == '"':
            self._writer.arguments(text[1:-1])
        elif kind in (_STRING, _ATOM) and due in (_Due.KEY, _Due.VALUE, _Due.ITEM):
            if kind == _STRING:
                self._write(text[:-1], held='"')
            else:
                self._write(written(text) if due is _Due.KEY else _json_of(text))
            self._due = _Due.EQUALS if due is _Due.KEY else _Due.COMMA
        elif kind in _OPENINGS and due in (_Due.VALUE, _Due.ITEM):
            self._write(_OPENINGS[kind])
            self._open.append(_CLOSINGS[_OPENINGS[kind]])
            self._due = self._first_due()
        elif kind == "," and due is _Due.COMMA:
            self._write("", held=", ")
            self._due = self._first_due()
        elif kind in CLOSERS and due not in (_Due.EQUALS, _Due.VALUE) and self._is_call():
            self._held = self._held.removeprefix(", ")
            self._write(self._open.pop())
            self._due = _Due.COMMA
        elif kind in ":=" and due is _Due.EQUALS and self._is_call():
            self._write(": ")
            self._due = _Due.VALUE
        else:
            return False
        return True

    def _first_due(self) -> _Due:
        return _Due.KEY if self._open[-1] == "}" else _Due.ITEM

    def _is_call(self) -> bool:
        return self._writer.is_in_call or self._writer.named(self._name)

    def _write(self, text: str, held: str = "") -> None:
        self._writer.arguments(self._held + text)
        self._held = held

    def _read_token(self) -> Reading[tuple[str, str]]:
        """Its kind and its text; that of a string is JSON."""
        reader = self._reader
        character = yield from reader.skip()
        if self._quote and (yield from reader.skip_mark(self._quote)):
            found: list[str] = []
            yield from reader.copy(self._quote, found.append)
            return _STRING, written("".join(found))
        if character in _QUOTES:
            return _STRING, (yield from self._read_string(is_raw=False))
        if character in _ATOM_ENDS:
            return (yield from reader.next()), ""
        word = yield from self._read_atom()
        if reader.text[reader.at] in _QUOTES and word.lower() in _PREFIXES:
            return _STRING, (yield from self._read_string(is_raw="r" in word.lower()))
        return _ATOM, word

    def _read_atom(self) -> Reading[str]:
        """A word or a number."""
        found: list[str] = []
        while True:
            while self._reader.at == len(self._reader.text):
                yield
            if self._reader.text[self._reader.at] in _ATOM_ENDS:
                return "".join(found)
            found.append((yield from self._reader.next()))

    def _read_string(self, *, is_raw: bool) -> Reading[str]:
        """A string of Python, or of JSON."""
        reader = self._reader
        quote = (yield from reader.comes('"""', "'''")) or reader.text[reader.at]
        yield from reader.skip_mark(quote)
        found: list[str] = []
        while not (yield from reader.skip_mark(quote)):
            character = yield from reader.next()
            if character == "\\" and is_raw:
                character += yield from reader.next()
            elif character == "\\":
                character = yield from self._read_escape()
            found.append(character)
        # Halves of a pair, as JSON escapes them, become one character.
        return written(whole("".join(found)))

    def _read_escape(self) -> Reading[str]:
        character = yield from self._reader.next()
        if character not in _DIGITS:
            return _ESCAPES.get(character, character if character in "\\'\"/" else "\\" + character)
        digits = yield from self._reader.word("0123456789abcdefABCDEF", _DIGITS[character])
        code = int(digits, 16) if digits else 0
        return chr(code) if code < 0x110000 else "\N{REPLACEMENT CHARACTER}"


def _json_of(atom: str) -> str:
    """A word or a number as JSON; a string, if it is neither."""
    if atom in _WORDS:
        return _WORDS[atom]
    try:
        value = float(atom) if _FRACTION.fullmatch(atom) else int(atom.encode("ascii"), 0)
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return written(atom)
