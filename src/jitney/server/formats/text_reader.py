"""Text that is read while it arrives: `TextReader`; and what it adds to a message: `DeltaWriter`.

Pure; one thread. Readers are generators: each `yield` waits for more text, and `close` of the
parser that runs them loses nothing. Every character is looked at a bounded number of times, however
the text is cut.

Tests: tests/unit/server/formats/test_families.py, tests/unit/server/formats/test_answer_parser.py.
"""

import json
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from jitney.server.formats.answer_forms import AnswerForm

SPACE = " \n\r\t"
CLOSERS = "}])"
"""Behind a call that is complete they belong to it, too: models write one too many."""
CONTENT, REASONING = "content", "reasoning_content"
"""The fields of text in a delta."""

ResultT = TypeVar("ResultT")
Reading = Generator[None, None, ResultT]
"""Reads text that arrives in parts: each `yield` waits for more of it."""

ChatDelta = dict[str, Any]  # Any: a JSON value
"""What text adds to a message, in OpenAI's form: reasoning, content, or a part of a call."""

_ID_CHARACTERS_MAX = 160


class TextReader:
    """Text that arrives in parts, and the place where reading goes on."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.unsure: list[str] = []
        """Text that was read, and is content unless a call follows."""

    def add(self, text: str) -> None:
        """More text."""
        self.text, self.at = self.text[self.at :] + text, 0

    def taken(self) -> str:
        """The text that was not sure until now."""
        text, self.unsure = "".join(self.unsure), []
        return text

    def next(self) -> Reading[str]:
        """The next character."""
        while self.at == len(self.text):
            yield
        character = self.text[self.at]
        self.at += 1
        self.unsure.append(character)
        return character

    def skip(self, skipped: str = SPACE) -> Reading[str]:
        """The next character that is not one of these; reading goes on with it."""
        while True:
            end = self.at
            while end < len(self.text) and self.text[end] in skipped:
                end += 1
            self.unsure.append(self.text[self.at : end])
            self.at = end
            if end < len(self.text):
                return self.text[end]
            yield

    def comes(self, *marks: str) -> Reading[str]:
        """Which of these marks comes next; the empty text if none does."""
        while True:
            found = next((each for each in marks if self.text.startswith(each, self.at)), None)
            if found is not None:
                return found
            rest = self.text[self.at : self.at + max(map(len, marks))]
            if not any(each.startswith(rest) for each in marks):
                return ""
            yield

    def skip_mark(self, *marks: str) -> Reading[bool]:
        """Whether one of these marks comes next; if so, reading goes on after it."""
        found = yield from self.comes(*marks)
        self.at += len(found)
        self.unsure.append(found)
        return bool(found)

    def word(self, characters: str, count_max: int = _ID_CHARACTERS_MAX) -> Reading[str]:
        """Characters of this kind, up to a limit."""
        found: list[str] = []
        while len(found) < count_max:
            while self.at == len(self.text):
                yield
            if self.text[self.at] not in characters:
                break
            found.append((yield from self.next()))
        return "".join(found)

    def copy(self, mark: str, take: Callable[[str], None]) -> Reading[None]:
        """Hand on the text up to a mark, and go on after it."""
        while (place := self.text.find(mark, self.at)) < 0:
            end = len(self.text) - overlap(self.text[self.at :], mark)
            take(self.text[self.at : end])
            self.unsure.append(self.text[self.at : end])
            self.at = end
            yield
        take(self.text[self.at : place])
        self.unsure.append(self.text[self.at : place] + mark)
        self.at = place + len(mark)

    def json_string(self) -> Reading[str]:
        """The rest of a string in JSON, with both of its quotation marks."""
        written = ['"']
        while len(written) == 1 or written[-1] != '"':
            written.append((yield from self.next()))
            if written[-1] == "\\":
                written[-1] += yield from self.next()
        return "".join(written)


def overlap(text: str, mark: str) -> int:
    """How many characters at the end of the text may be the beginning of the mark."""
    if mark[0] not in text[1 - len(mark) :] or len(mark) == 1:
        return 0
    for count in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:count]):
            return count
    return 0


class DeltaWriter:
    """What was read, as deltas of a message."""

    def __init__(self, form: AnswerForm) -> None:
        self._calling = form.calling
        self._silent: set[str] = set()
        """Fields that the caller does not read."""
        if form.calling is not None and form.calling.is_enforced:
            self._silent.add(CONTENT)
        if not form.includes_reasoning:
            self._silent.add(REASONING)
        self._deltas: list[ChatDelta] = []
        self._arguments: list[str] = []
        self._has_arguments = False
        self.is_in_call = False
        """Whether the text belongs to a call, so that nothing of it is content."""
        self.call_count = 0

    def text(self, field: str, text: str) -> None:
        """Text of this field."""
        if not text or field in self._silent:
            return
        if self._deltas and field in self._deltas[-1]:
            self._deltas[-1][field] += text
        else:
            self._deltas.append({field: text})

    def is_read(self, field: str) -> bool:
        """Whether the caller reads this field."""
        return field not in self._silent

    def begin(self) -> None:
        """A call may begin."""
        self._arguments, self._has_arguments = [], False

    def named(self, name: str, written_id: str = "") -> bool:
        """The name of a call: it is one if there is such a tool."""
        assert self._calling is not None, "only requests with tools have calls"
        if self.is_in_call or name not in self._calling.names:
            return False
        self.is_in_call = True
        self.call_count += 1
        has_id = 0 < len(written_id) <= _ID_CHARACTERS_MAX
        call_id = written_id if has_id else self._calling.new_id()
        self._part({"name": name, "arguments": ""}, id=call_id, type="function")
        return True

    def arguments(self, text: str) -> None:
        """More of the call's arguments: JSON."""
        self._has_arguments = True
        self._arguments.append(text)

    @property
    def has_arguments(self) -> bool:
        """Whether the call has any yet."""
        return self._has_arguments

    def end(self) -> None:
        """The call has ended. Without arguments, they are an empty object."""
        if not self._has_arguments:
            self.arguments("{}")
        self.flush()

    def flush(self) -> None:
        """Pass on the arguments that are there, once it is a call."""
        if self.is_in_call and (text := "".join(self._arguments)):
            self._part({"arguments": text})
            self._arguments = []

    def taken(self) -> list[ChatDelta]:
        """The deltas since the last time."""
        self.flush()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _part(self, function: dict[str, str], **head: str) -> None:
        part = {"index": self.call_count - 1, **head, "function": function}
        self._deltas.append({"tool_calls": [part]})


def whole(text: str) -> str:
    """The text without halves of a pair of UTF-16, which JSON can hold and no encoding can."""
    return text.encode("utf-16-le", errors="surrogatepass").decode("utf-16-le", errors="replace")


def written(value: Any) -> str:  # Any: a JSON value
    """The value as JSON, as models write it."""
    return json.dumps(value, ensure_ascii=False)
