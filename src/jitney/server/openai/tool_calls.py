"""Finds calls of tools in a model's text as it comes: `CallParser`. Pure; one per completion.

Models write calls as JSON between marks (`CallFormat`). The parser returns pieces of content and of
calls as early as they are certain. It holds back text that may become a mark, and passes arguments
on while the model writes them. Text that looked like a call and is not one (not JSON, or an unknown
tool) becomes content. If the model can write only calls, such text is a call that was cut off, and
is dropped.
"""

import json
import secrets
import string
from dataclasses import dataclass
from enum import Enum, auto

_SPACE = " \n\r\t"
_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """How a family of models writes calls.

    With `is_list`, one mark opens a JSON list of calls; otherwise each call has its own. With
    `is_bare`, a call may also begin an answer without any mark.
    """

    name: str
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


@dataclass(frozen=True, slots=True)
class ContentPiece:
    """Text that is not a call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """The beginning of a call (with `name`), or more of its arguments."""

    index: int
    name: str | None
    arguments: str


Piece = ContentPiece | CallPiece


class _Mode(Enum):
    TEXT = auto()
    LIST = auto()
    CALL = auto()
    AFTER = auto()
    SHUT = auto()


class _Reader:
    """Follows one JSON object with a name and arguments, a character at a time."""

    def __init__(self, arguments_key: str) -> None:
        self._arguments_keys = ("arguments", arguments_key)
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._key: str | None = None
        self._expects_key = False
        self._part: list[str] = []
        self.name: str | None = None
        self.has_arguments = False
        self.is_done = False
        self.is_bad = False

    def push(self, character: str) -> str:
        """The part of the arguments that this character completes."""
        if self._in_string:
            return self._push_in_string(character)
        if self._depth == 0:
            if character == "{":
                self._depth = 1
                self._expects_key = True
            elif character not in _SPACE:
                self.is_bad = True
            return ""
        if character == '"':
            self._in_string = True
            if self._depth == 1:
                self._part = []
                if not self._expects_key and self._key is None:
                    self.is_bad = True
        if self._depth == 1:
            return self._push_at_top(character)
        return self._push_inside(character)

    def _push_at_top(self, character: str) -> str:
        if character == '"':
            self._part = [character]
            return ""
        if character in "{[":
            self._depth = 2
            if self._key in self._arguments_keys and character == "{":
                self.has_arguments = True
                return character
        elif character == "}":
            self._depth = 0
            self.is_done = True
        elif character == ",":
            self._key = None
            self._expects_key = True
        elif character not in ":" + _SPACE and self._key is None:
            self.is_bad = True
        return ""

    def _push_inside(self, character: str) -> str:
        if character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        return self._argument(character)

    def _argument(self, character: str) -> str:
        """The character where it is part of the arguments."""
        return character if self._key in self._arguments_keys and self.has_arguments else ""

    def _push_in_string(self, character: str) -> str:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False
        if self._depth > 1:
            return self._argument(character)
        self._part.append(character)
        return "" if self._in_string else self._end_string()

    def _end_string(self) -> str:
        try:
            text = str(json.loads("".join(self._part)))
        except ValueError:
            self.is_bad = True
            return ""
        if self._expects_key:
            self._key = text
            self._expects_key = False
        elif self._key == "name":
            self.name = text
        elif self._key in self._arguments_keys and not self.has_arguments:
            # Some models write the arguments as JSON in a string, as the API has them.
            self.has_arguments = True
            return text
        return ""


class CallParser:
    """The text of one completion, in pieces."""

    def __init__(self, calling: Calling) -> None:
        self._calling = calling
        self._form = calling.form
        self._held = ""
        self._space: list[str] = []
        self._skips_space = False
        self._raw: list[str] = []
        self._arguments: list[str] = []
        self._is_accepted = False
        self._may_be_bare = self._form.is_bare
        self._reader = _Reader(self._form.arguments_key)
        self._pieces: list[Piece] = []
        self._mode = _Mode.TEXT
        self.call_count = 0
        if calling.starts_inside:
            self._mode = _Mode.LIST if self._form.is_list else _Mode.CALL

    def push(self, text: str) -> list[Piece]:
        """Add text, and return the pieces that are certain now."""
        self._held += text
        self._advance()
        return self._taken()

    def finish(self) -> list[Piece]:
        """The text has ended: return what was held back."""
        if self._mode is _Mode.LIST or (self._mode is _Mode.CALL and not self._is_accepted):
            self._space, self._raw = self._raw, []
            self._mode = _Mode.TEXT
        if self._mode is _Mode.TEXT:
            text = "".join(self._space) + self._held
            self._emit(text.rstrip(_SPACE) if self.call_count else text)
            self._space, self._held = [], ""
        elif self._mode is _Mode.CALL:
            # Its name was sent, so it counts as a call although it was cut off.
            self.call_count += 1
            self._mode = _Mode.SHUT
        return self._taken()

    def _advance(self) -> None:
        """Read the held text until nothing more is certain."""
        before = None
        while self._held and before != (self._mode, len(self._held)):
            before = (self._mode, len(self._held))
            match self._mode:
                case _Mode.TEXT:
                    self._read_text()
                case _Mode.LIST:
                    self._read_list()
                case _Mode.CALL:
                    self._read_call()
                case _Mode.AFTER:
                    self._read_after()
                case _Mode.SHUT:
                    self._held = ""

    def _read_text(self) -> None:
        """Emit text that is certain. Hold space back, because it is dropped before a call."""
        if self._skips_space or self._may_be_bare:
            stripped = self._held.lstrip(_SPACE)
            if not self._skips_space:
                self._space.append(self._held[: len(self._held) - len(stripped)])
            self._held = stripped
            if not stripped:
                return
            self._skips_space = False
        if self._may_be_bare:
            self._may_be_bare = False
            if self._held.startswith("{"):
                self._open("")
                return
        opening = self._form.opening
        at = self._held.find(opening)
        if at >= 0:
            self._emit_up_to(at)
            self._held = self._held[len(opening) :]
            self._open(opening)
        else:
            self._emit_up_to(len(self._held) - _overlap(self._held, opening))

    def _emit_up_to(self, end: int) -> None:
        """Emit these characters as text, without the space at their end."""
        text, self._held = self._held[:end], self._held[end:]
        body = text.rstrip(_SPACE)
        if body:
            self._emit("".join(self._space) + body)
            self._space = []
        if len(body) < len(text):
            self._space.append(text[len(body) :])

    def _open(self, mark: str) -> None:
        # With the space before it: if this is not a call, all of it is text.
        self._raw = [*self._space, mark]
        self._space = []
        self._mode = _Mode.LIST if self._form.is_list else _Mode.CALL
        self._begin_call()

    def _begin_call(self) -> None:
        self._reader = _Reader(self._form.arguments_key)
        self._arguments = []
        self._is_accepted = False

    def _read_list(self) -> None:
        stripped = self._held.lstrip(_SPACE)
        self._raw.append(self._held[: len(self._held) - len(stripped)])
        self._held = stripped
        if not stripped:
            return
        if stripped[0] == "[":
            self._raw.append("[")
            self._held = stripped[1:]
            self._mode = _Mode.CALL
        else:
            self._give_up()

    def _read_call(self) -> None:
        for count, character in enumerate(self._held, 1):
            self._raw.append(character)
            self._arguments.append(self._reader.push(character))
            if self._reader.name is not None and not self._is_accepted:
                if self._reader.name not in self._calling.names:
                    self._held = self._held[count:]
                    self._give_up()
                    return
                self._is_accepted = True
                self._pieces.append(CallPiece(self.call_count, self._reader.name, ""))
            if self._reader.is_done or self._reader.is_bad:
                self._held = self._held[count:]
                self._end_call()
                return
        self._held = ""
        self._pass_arguments()

    def _pass_arguments(self) -> None:
        if self._is_accepted and self._arguments:
            text = "".join(self._arguments)
            self._arguments = []
            if text:
                self._pieces.append(CallPiece(self.call_count, None, text))

    def _end_call(self) -> None:
        if not self._is_accepted:
            self._give_up()
            return
        self._pass_arguments()
        if not self._reader.has_arguments:
            self._pieces.append(CallPiece(self.call_count, None, "{}"))
        self.call_count += 1
        self._mode = _Mode.AFTER if self._calling.parallel else _Mode.SHUT
        self._begin_call()

    def _read_after(self) -> None:
        form = self._form
        skipped = _SPACE + (";" if form.is_bare else "")
        self._held = self._held.lstrip(skipped)
        if not self._held:
            return
        if form.closing and form.closing.startswith(self._held[: len(form.closing)]):
            if len(self._held) >= len(form.closing):
                self._held = self._held[len(form.closing) :]
                self._mode = _Mode.TEXT
                self._skips_space = True
            return
        first = self._held[0]
        if form.is_list and first in ",]":
            self._held = self._held[1:]
            self._raw = []
            self._mode = _Mode.CALL if first == "," else _Mode.TEXT
            self._skips_space = first == "]"
        elif form.is_bare and first == "{":
            self._raw = []
            self._mode = _Mode.CALL
        else:
            self._mode = _Mode.TEXT

    def _give_up(self) -> None:
        """This is not a call: its text is content."""
        self._emit("".join(self._raw))
        self._raw = []
        self._begin_call()
        self._mode = _Mode.TEXT

    def _emit(self, text: str) -> None:
        if text and not self._calling.is_enforced:
            self._pieces.append(ContentPiece(text))

    def _taken(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of the text may be the beginning of the mark."""
    for count in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:count]):
            return count
    return 0
