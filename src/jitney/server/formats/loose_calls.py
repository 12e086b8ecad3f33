"""Reads calls whose arguments are nearly JSON: Python's, or Gemma's. Pure; token by token.

What is read is passed on as JSON: other quotation marks, keys without any, `True` and `None`.

Tests: tests/unit/server/formats/test_families.py.
"""

import json
from collections.abc import Callable

from jitney.server.formats.answer_forms import CallForm
from jitney.server.formats.json_calls import NAME_CHARACTERS, JsonCall
from jitney.server.formats.text_reader import (
    SPACE,
    DeltaWriter,
    Reading,
    TextReader,
    whole,
    written,
)

_WORDS = {"True": "true", "False": "false", "None": "null"}
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_JSON_CLOSING = {"}": "}", "]": "]", ")": "]"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_DIGITS = {"x": 2, "u": 4, "U": 8}
_ATOM_ENDS = SPACE + ",:=()[]{}\"'"


def read_python(form: CallForm, reader: TextReader, writer: DeltaWriter) -> Reading[None]:
    """`NAME(KEY=VALUE, ...)`; some models write JSON there."""
    if (yield from reader.skip()) == "{":
        yield from JsonCall(form, reader, writer).read()
        return
    name = yield from reader.word(NAME_CHARACTERS)
    if (yield from reader.skip_mark("(")) and writer.named(name):
        yield from LooseObject(reader, writer.arguments, form.quote).read(")", "=")


def read_gemma(form: CallForm, reader: TextReader, writer: DeltaWriter) -> Reading[None]:
    """`call:NAME{KEY:VALUE,...}`."""
    yield from reader.skip()
    if not (yield from reader.skip_mark("call:")):
        return
    name = yield from reader.word(NAME_CHARACTERS)
    if (yield from reader.skip_mark("{")) and writer.named(name):
        yield from LooseObject(reader, writer.arguments, form.quote).read("}", ":")


class LooseObject:
    """Keys and values up to a closing character, handed on as JSON."""

    def __init__(self, reader: TextReader, write: Callable[[str], None], quote: str) -> None:
        self._reader = reader
        self._write = write
        self._quote = quote
        self._open: list[str] = []
        """The closing characters of what is open."""
        self._between = ""
        """A comma that is written once something follows it."""
        self._is_key = True

    def read(self, closing: str, equals: str) -> Reading[None]:
        """Read up to the closing character; this one stands between key and value."""
        self._open = [closing]
        self._write("{")
        while self._open:
            character = yield from self._reader.skip()
            if self._quote and (yield from self._reader.skip_mark(self._quote)):
                found: list[str] = []
                yield from self._reader.copy(self._quote, found.append)
                self._value(written("".join(found)))
            elif character in "\"'":
                self._value((yield from self._read_string()))
            elif character in _ATOM_ENDS:
                yield from self._reader.next()
                self._mark(character, equals)
            else:
                self._value(self._atom((yield from self._read_atom())))

    def _mark(self, character: str, equals: str) -> None:
        if character in _CLOSING:
            self._value("[" if character in "([" else "{")
            self._open.append(_CLOSING[character])
            self._is_key = character == "{"
        elif character in _JSON_CLOSING:
            closing = self._open.pop()
            is_object = closing == "}" or not self._open
            self._write("}" if is_object else _JSON_CLOSING[closing])
            self._between, self._is_key = "", False
        elif character == ",":
            self._between = ", "
            self._is_key = self._open[-1] == "}" or len(self._open) == 1
        elif character in (":", equals):
            self._write(": ")
            self._is_key = False

    def _value(self, text: str) -> None:
        self._write(self._between + text)
        self._between = ""

    def _read_atom(self) -> Reading[str]:
        """A word or a number."""
        found: list[str] = []
        while True:
            while self._reader.at == len(self._reader.text):
                yield
            if self._reader.text[self._reader.at] in _ATOM_ENDS:
                return "".join(found)
            found.append((yield from self._reader.next()))

    def _atom(self, text: str) -> str:
        if self._is_key:
            return written(text)
        word = _WORDS.get(text, text)
        try:
            return json.dumps(json.loads(word), allow_nan=False)
        except (ValueError, RecursionError):
            return written(text)

    def _read_string(self) -> Reading[str]:
        """A string of Python, or of JSON."""
        reader = self._reader
        quote = yield from reader.next()
        found: list[str] = []
        while (character := (yield from reader.next())) != quote:
            if character == "\\":
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
