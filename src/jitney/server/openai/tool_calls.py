"""Finds calls of tools in a model's text as it comes: `CallParser`. Pure; one per completion.

Models write calls as JSON between marks (`CallFormat`). The parser returns content and parts of
calls as early as they are certain. It holds back text that may become a mark, and passes arguments
on while the model writes them. Text that looked like a call and is not one (not JSON, or an unknown
tool) becomes content. If the model can write only calls, such text is a call that was cut off, and
is dropped.
"""

import json
import secrets
import string
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

_SPACE = " \n\r\t"
_LETTERS = string.ascii_letters + string.digits
_DEPTH_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}

ResultT = TypeVar("ResultT")
Reading = Generator[None, None, ResultT]
"""Reads text that arrives in parts: each `yield` waits for more of it."""

ChatDelta = dict[str, Any]  # Any: a JSON value
"""What text adds to a message, in OpenAI's form: content, or a part of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """How a family of models writes calls.

    With `is_list`, one mark opens a JSON list of calls; otherwise each call has its own. With
    `is_bare`, a call may also begin an answer without any mark.
    """

    opening: str
    closing: str = ""
    arguments_key: str = "arguments"
    is_list: bool = False
    is_bare: bool = False
    id_length: int | None = None
    """Length of a call's id, for templates that require one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """How one request uses tools: their names, and whether one must be called."""

    form: CallFormat
    names: tuple[str, ...]
    parallel: bool = True
    is_enforced: bool = False
    """Whether the text is only calls, and the last may be cut off."""
    starts_inside: bool = False
    """Whether the answer begins with a call, without a mark."""
    shows_control: bool = False
    """Whether the mark is a control token, so that control tokens must be in the text."""

    def new_id(self) -> str:
        """An id for a call."""
        if self.form.id_length is not None:
            return "".join(secrets.choice(_LETTERS) for _ in range(self.form.id_length))
        return f"call_{secrets.token_hex(12)}"


class CallParser:
    """Reads the text of one completion, and gives its content and its calls."""

    def __init__(self, calling: Calling) -> None:
        self._calling = calling
        self._form = calling.form
        self._arguments_keys = ("arguments", self._form.arguments_key)
        self._text = ""
        self._at = 0
        """The place in the text where reading goes on."""
        self._unsure: list[str] = []
        """Text that was read, and is content unless a call follows."""
        self._in_call = False
        """Whether the text belongs to a call, so that nothing of it is content."""
        self._key: str | None = None
        self._arguments: list[str] = []
        self._has_arguments = self._in_arguments = False
        self._deltas: list[ChatDelta] = []
        self._reading = self._read_answer()
        self.call_count = 0

    def push(self, text: str) -> list[ChatDelta]:
        """Add text, and return what is certain now."""
        self._text, self._at = self._text[self._at :] + text, 0
        next(self._reading)
        return self._taken()

    def finish(self) -> list[ChatDelta]:
        """The text has ended: return what was held back."""
        if not self._in_call:
            text = "".join([*self._unsure, self._text[self._at :]])
            self._emit(text.rstrip(_SPACE) if self.call_count else text)
        return self._taken()

    def _read_answer(self) -> Reading[None]:
        if self._calling.starts_inside:
            yield from self._read_calls()
        if self._form.is_bare and (yield from self._skip(_SPACE)) == "{":
            yield from self._read_calls()
        while True:
            yield from self._read_content()
            yield from self._read_calls()

    def _read_content(self) -> Reading[None]:
        """Read text up to a call, and the mark that opens it."""
        opening = self._form.opening
        while (at := self._text.find(opening, self._at)) < 0:
            self._emit_up_to(len(self._text) - _overlap(self._text[self._at :], opening))
            yield
        self._emit_up_to(at)
        self._unsure.append(opening)
        self._at += len(opening)

    def _emit_up_to(self, end: int) -> None:
        """Emit this text. Hold back the space at its end, which is dropped before a call."""
        text, self._at = self._text[self._at : end], end
        body = text.rstrip(_SPACE)
        if body:
            self._emit("".join([*self._unsure, body]))
            self._unsure = []
        self._unsure.append(text[len(body) :])

    def _read_calls(self) -> Reading[None]:
        """Read calls, until the text is content again."""
        is_call = True
        if self._form.is_list:
            is_call = (yield from self._skip(_SPACE)) == "["
            if is_call:
                yield from self._next()
        while is_call:
            yield from self._read_call()
            if not self._in_call:
                break
            is_call = yield from self._read_to_next_call()
            self._in_call = False
            self._unsure = []
        self._emit("".join(self._unsure))
        self._unsure = []

    def _read_to_next_call(self) -> Reading[bool]:
        """Read what stands after a call. False if no other call follows at once."""
        form = self._form
        while not self._calling.parallel:
            self._at = len(self._text)
            yield
        character = yield from self._skip(_SPACE + (";" if form.is_bare else ""))
        if form.closing and (yield from self._skip_mark(form.closing)):
            yield from self._skip(_SPACE)
        elif form.is_list and character in ",]":
            yield from self._next()
            if character == ",":
                return True
            yield from self._skip(_SPACE)
        else:
            return form.is_bare and character == "{"
        return False

    def _read_call(self) -> Reading[None]:
        """Read one JSON object with a name and arguments, or as much of it as is one."""
        self._key, self._arguments, self._has_arguments = None, [], False
        character = " "
        while character in _SPACE:
            character = yield from self._next()
        is_open = character == "{"
        while is_open:
            character = yield from self._next()
            if character == '"':
                is_open = self._take_string((yield from self._read_string()))
            elif character in "{[":
                yield from self._read_nested(character)
            elif character == ",":
                self._key = None
            elif character == "}" or (self._key is None and character not in ":" + _SPACE):
                is_open = False
        self._emit_arguments()
        if self._in_call and not self._has_arguments:
            self._emit_part({"arguments": "{}"})

    def _take_string(self, written: str) -> bool:
        """Take a key, the name, or arguments in a string. False if this is not a call."""
        try:
            text = str(json.loads(written))
        except ValueError:
            return False
        if self._key is None:
            self._key = text
        elif self._key == "name" and not self._in_call:
            if text not in self._calling.names:
                return False
            self._in_call = True
            self.call_count += 1
            function = {"name": text, "arguments": ""}
            self._emit_part(function, id=self._calling.new_id(), type="function")
        elif self._key in self._arguments_keys and not self._has_arguments:
            # Some models write the arguments as JSON in a string, as the API has them.
            self._has_arguments = True
            self._arguments.append(text)
        return True

    def _read_nested(self, opening: str) -> Reading[None]:
        """Read an object or a list up to its end. An object may be the arguments."""
        if self._key in self._arguments_keys and opening == "{":
            self._arguments.append(opening)
            self._has_arguments = self._in_arguments = True
        depth = 1
        while depth:
            character = yield from self._next()
            if character == '"':
                yield from self._read_string()
            depth += _DEPTH_STEPS.get(character, 0)
        self._in_arguments = False

    def _read_string(self) -> Reading[str]:
        """The rest of a string in JSON, with both of its quotation marks."""
        written = ['"']
        while len(written) == 1 or written[-1] != '"':
            written.append((yield from self._next()))
            if written[-1] == "\\":
                written[-1] += yield from self._next()
        return "".join(written)

    def _next(self) -> Reading[str]:
        """The next character of a call."""
        while self._at == len(self._text):
            self._emit_arguments()
            yield
        character = self._text[self._at]
        self._at += 1
        self._unsure.append(character)
        if self._in_arguments:
            self._arguments.append(character)
        return character

    def _skip(self, skipped: str) -> Reading[str]:
        """The next character that is not one of these; reading goes on with it."""
        while True:
            rest = self._text[self._at :].lstrip(skipped)
            end = len(self._text) - len(rest)
            self._unsure.append(self._text[self._at : end])
            self._at = end
            if rest:
                return rest[0]
            yield

    def _skip_mark(self, mark: str) -> Reading[bool]:
        """Whether the mark comes next; if so, reading goes on after it."""
        while mark.startswith(found := self._text[self._at : self._at + len(mark)]):
            if found == mark:
                self._at += len(mark)
                return True
            yield
        return False

    def _emit_arguments(self) -> None:
        if self._in_call and (text := "".join(self._arguments)):
            self._emit_part({"arguments": text})
            self._arguments = []

    def _emit_part(self, function: dict[str, str], **head: str) -> None:
        """Emit a part of the last call; its first part has a head."""
        part = {"index": self.call_count - 1, **head, "function": function}
        self._deltas.append({"tool_calls": [part]})

    def _emit(self, text: str) -> None:
        if text and not self._calling.is_enforced:
            self._deltas.append({"content": text})

    def _taken(self) -> list[ChatDelta]:
        deltas, self._deltas = self._deltas, []
        return deltas


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of the text may be the beginning of the mark."""
    for count in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:count]):
            return count
    return 0
