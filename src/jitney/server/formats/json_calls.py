"""Reads a call that is written as JSON: an object, or a name with an object behind it. Pure.

Tests: tests/unit/server/formats/test_families.py, tests/unit/server/formats/test_answer_parser.py.
"""

import json
from collections.abc import Callable

from jitney.server.formats.answer_forms import CallForm
from jitney.server.formats.text_reader import (
    CLOSERS,
    SPACE,
    DeltaWriter,
    Reading,
    TextReader,
    whole,
)

_DEPTH_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}
_WORD_ENDS = SPACE + ',}{["'
_FENCE = "```json"
_NAME_CHARACTERS_MAX = 160


class JsonCall:
    """One JSON object with a name and arguments, or as much of it as is one."""

    def __init__(self, form: CallForm, reader: TextReader, writer: DeltaWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._arguments_keys = ("arguments", form.arguments_key)
        self._closing = form.closing
        self._key: str | None = None

    def read(self) -> Reading[None]:
        """Read the object."""
        character = " "
        while character in SPACE:
            character = yield from self._reader.next()
        is_open = character == "{"
        while is_open:
            # A bracket may be missing.
            if self._closing and (yield from self._reader.comes(self._closing)):
                return
            character = yield from self._reader.next()
            if character == '"':
                is_open = self._take((yield from self._reader.json_string()))
            elif character in "{[":
                yield from self._read_nested(character)
            elif character == ",":
                self._key = None
            elif character == "}" or (self._key is None and character not in ":" + SPACE):
                is_open = False
            elif character not in ":" + SPACE:
                yield from self._read_word(character)

    def _take(self, text: str) -> bool:
        """Take a key, the name, or arguments in a string. False if this is not a call."""
        try:
            value = whole(str(json.loads(text)))
        except ValueError:
            return False
        writer = self._writer
        if self._key is None:
            self._key = value
        elif self._key == "name" and not writer.is_in_call:
            return writer.named(value)
        elif self._is_arguments():
            # Some models write the arguments as JSON in a string, as the API has them.
            writer.arguments(value)
        return True

    def _read_nested(self, opening: str) -> Reading[None]:
        """Read an object or a list up to its end. The first may be the arguments."""
        take = self._writer.arguments if self._is_arguments() else _ignored
        yield from copy_nested(self._reader, opening, take)

    def _read_word(self, character: str) -> Reading[None]:
        """Read a number or a word. As arguments it is a mistake, which is passed on."""
        found = [character]
        while (yield from self._reader.skip("")) not in _WORD_ENDS:
            found.append((yield from self._reader.next()))
        if self._is_arguments() and found != list("null"):
            self._writer.arguments("".join(found))

    def _is_arguments(self) -> bool:
        """Whether a value that begins now is the arguments: only the first is."""
        return self._key in self._arguments_keys and not self._writer.has_arguments


def copy_nested(reader: TextReader, opening: str, take: Callable[[str], None]) -> Reading[None]:
    """Hand on an object or a list, whose first character was read, up to its end."""
    take(opening)
    depth = 1
    while depth:
        character = yield from reader.next()
        take(character)
        if character == '"':
            yield from _copy_string(reader, take)
        depth += _DEPTH_STEPS.get(character, 0)


def _copy_string(reader: TextReader, take: Callable[[str], None]) -> Reading[None]:
    character = ""
    while character != '"':
        character = yield from reader.next()
        take(character)
        if character == "\\":
            take((yield from reader.next()))


def _ignored(_: str) -> None:
    """What is no argument is not passed on."""


def read_named(form: CallForm, reader: TextReader, writer: DeltaWriter) -> Reading[None]:
    """A name, a mark, and the arguments as JSON.

    Mistral may write an id between the two. Kimi's name is an id, `functions.NAME:0`. DeepSeek's
    first models write a kind in place of the name, then the name and a fenced block.
    """
    name = yield from _read_name(reader)
    written_id = name if form.keeps_id else ""
    if form.keeps_id:
        name = name.removeprefix("functions.").rpartition(":")[0]
    if form.keeps_id is False and (yield from reader.skip_mark("[CALL_ID]")):
        written_id = yield from _read_name(reader)
    yield from reader.skip()
    if not (yield from reader.skip_mark(form.separator)):
        return
    is_fenced = name == "function" and (yield from reader.skip()) != "{"
    if is_fenced:
        name = yield from _read_name(reader)
    if not writer.named(name, written_id):
        return
    yield from reader.skip()
    yield from reader.skip_mark(_FENCE)
    if (yield from reader.skip()) == "{":
        yield from copy_nested(reader, (yield from reader.next()), writer.arguments)
    if is_fenced:
        yield from reader.skip(SPACE + CLOSERS)
        yield from reader.skip_mark("```")


def _read_name(reader: TextReader) -> Reading[str]:
    """A name, after space."""
    yield from reader.skip()
    return (yield from reader.word(NAME_CHARACTERS, _NAME_CHARACTERS_MAX))


NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-:"
