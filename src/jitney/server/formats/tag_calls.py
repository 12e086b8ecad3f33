"""Reads a call whose values stand between tags, as Qwen3-Coder and GLM write it. Pure.

A text between tags is not escaped, so a value ends where its closing tag is followed by another tag
of the call. Strings are passed on while they are written.

Tests: tests/unit/server/formats/test_families.py.
"""

from typing import Any

from jitney.server.formats.answer_forms import Calling
from jitney.server.formats.argument_values import parameter_schema, value_writer
from jitney.server.formats.json_calls import NAME_CHARACTERS, JsonCall
from jitney.server.formats.text_reader import DeltaWriter, Reading, TextReader, written

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"


class TagCall:
    """One call between its marks: JSON, or a name and values between tags."""

    def __init__(self, calling: Calling, reader: TextReader, writer: DeltaWriter) -> None:
        self._calling = calling
        self._reader = reader
        self._writer = writer
        self._schema: Any = {}  # Any: a JSON schema
        self._count = 0

    def read(self) -> Reading[None]:
        """Read the call."""
        reader, calling = self._reader, self._calling
        character = yield from reader.skip()
        if character == "{":
            yield from JsonCall(calling.form, reader, self._writer).read()
        elif (yield from reader.skip_mark(_FUNCTION)):
            yield from self._read_function()
        elif character != "<":
            yield from self._read_pairs()

    def _read_function(self) -> Reading[None]:
        """A function of Qwen3-Coder, after its first mark."""
        reader = self._reader
        name = yield from reader.word(NAME_CHARACTERS)
        if not (yield from reader.skip_mark(">")) or not self._named(name):
            return
        while True:
            yield from reader.skip()
            if not (yield from reader.skip_mark(_PARAMETER)):
                break
            key: list[str] = []
            yield from reader.copy(">", key.append)
            ends = (_PARAMETER, _FUNCTION_END, self._calling.form.closing)
            yield from self._read_value("".join(key), _PARAMETER_END, ends)
        yield from reader.skip_mark(_FUNCTION_END)
        self._close()

    def _read_pairs(self) -> Reading[None]:
        """A name and pairs of keys and values, as GLM has them."""
        reader, closing = self._reader, self._calling.form.closing
        name = yield from reader.word(NAME_CHARACTERS)
        yield from reader.skip()
        if not (yield from reader.comes(_KEY, closing)) or not self._named(name):
            return
        while True:
            yield from reader.skip()
            if not (yield from reader.skip_mark(_KEY)):
                break
            key: list[str] = []
            yield from reader.copy(_KEY_END, key.append)
            yield from reader.skip()
            yield from reader.skip_mark(_VALUE)
            yield from self._read_value("".join(key).strip(), _VALUE_END, (_KEY, closing))
        self._close()

    def _named(self, name: str) -> bool:
        if not self._writer.named(name):
            return False
        self._schema = self._calling.schemas.get(name) or {}
        return True

    def _read_value(self, key: str, end: str, followers: tuple[str, ...]) -> Reading[None]:
        """A value up to a closing tag with one of these behind it."""
        reader, write = self._reader, self._writer.arguments
        write(f"{', ' if self._count else '{'}{written(key)}: ")
        self._count += 1
        value = value_writer(write, parameter_schema(self._schema, key), self._schema)
        while True:
            yield from reader.copy(end, value.take)
            reader.taken()
            yield from reader.skip()
            gap = reader.taken()
            if (yield from reader.comes(*followers)):
                break
            value.take(end + gap)
        value.end()

    def _close(self) -> None:
        if self._count:
            self._writer.arguments("}")
