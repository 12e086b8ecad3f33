"""A script: the answers of the fake backend as a person wrote them, one line of JSON for each.

`read_script` reads the file once, at the start; `Script.answer` chooses an answer for a prompt. The
choice depends on the tokens of the prompt alone, so it is the same after a preemption, a restart or
a crash. Pure but for the file; any thread. docs/agents.md has the form of the lines.

Tests: tests/unit/backends/fake/test_script.py.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar  # Any: a call's arguments are any JSON

import msgspec
from msgspec import Meta

from jitney.core.backend import Vocabulary
from jitney.errors import ConfigError
from jitney.tokenizers.byte_tokenizer import ByteTokenizer

SCRIPT_BYTES_MAX = 2**22
LINES_MAX = 10_000
CONTROL_MAX = 256
"""A person writes a script by hand, and each prompt is compared with its lines."""

DELAY_MS_MAX = 10_000
"""Slower than any model: a test of an agent that waits."""

COMPARED_MAX = 160
"""Characters of a text that no line fits, for the person who looks for the reason."""

TEMPLATE = Path(__file__).with_name("chatml.jinja")

_Name = Annotated[str, Meta(min_length=1, max_length=256)]
_StructT = TypeVar("_StructT", bound=msgspec.Struct)


class ScriptCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a tool."""

    name: _Name
    arguments: dict[str, Any] = {}

    def text(self) -> str:
        """The call as models of Hermes' form write it."""
        call = {"name": self.name, "arguments": self.arguments}
        return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


class ScriptLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer, and the conversations that it is for."""

    turn: Annotated[int, Meta(ge=1)] | None = None
    """The number of this answer in its conversation; None is any."""
    contains: Annotated[str, Meta(min_length=1)] | None = None
    """What stands in the prompt since the last answer, or in the whole prompt of the first one."""
    thinking: str | None = None
    text: str | None = None
    calls: tuple[ScriptCall, ...] | None = None
    delay_ms: Annotated[float, Meta(ge=0, le=DELAY_MS_MAX)] = 0
    """How long each of its tokens takes, and so whatever is computed beside it."""

    @property
    def answer(self) -> str:
        """What the model writes."""
        parts = [self.text, *(call.text() for call in self.calls or ())]
        spoken = "\n".join(part for part in parts if part)
        return f"<think>\n{self.thinking}\n</think>\n\n{spoken}" if self.thinking else spoken

    def fits(self, turn: int, news: str) -> bool:
        """Whether it is for a conversation with this turn, and this text since the last one."""
        return self.turn in (None, turn) and (self.contains is None or self.contains in news)


class ScriptMarks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the first line of a script may say of its chat template."""

    template: str | None = None
    """The template's file, from the folder of the script; None is `TEMPLATE`."""
    control: Annotated[tuple[_Name, ...], Meta(max_length=CONTROL_MAX)] = (
        "<|im_start|>",
        "<|im_end|>",
        "<|bos|>",
    )
    """The names of control tokens."""
    end: _Name = "<|im_end|>"
    """The control token that ends an answer."""
    assistant: _Name = "<|im_start|>assistant"
    """What the template writes before each answer."""


class ScriptAnswer(NamedTuple):
    """The number of an answer in its conversation, and its tokens without the end token.

    They are None where the script has no line for it.
    """

    turn: int
    tokens: list[int] | None
    delay_s: float = 0.0
    compared: str = ""
    """The end of the text that no line fits."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script that was read, and the tokens in which it is written."""

    lines: tuple[ScriptLine, ...]
    marks: ScriptMarks
    template: str
    tokenizer: ByteTokenizer

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the fake backend with this script."""
        names = self.tokenizer.names
        return Vocabulary(
            pieces=self.tokenizer.pieces,
            control=frozenset(names.values()),
            eos_tokens=(self.tokenizer.token_of(self.marks.end),),
            bos_token=names.get(b"<|bos|>"),
            chat_template=self.template,
        )

    def answer(self, prompt: Sequence[int]) -> ScriptAnswer:
        """The answer to a prompt."""
        turn, news_start = self._turn(prompt)
        pieces = self.tokenizer.pieces
        news = b"".join([pieces[token] for token in prompt[news_start:]]).decode(errors="replace")
        found = next((line for line in self.lines if line.fits(turn, news)), None)
        if found is None:
            return ScriptAnswer(turn, None, compared=news[-COMPARED_MAX:])
        tokens = self.tokenizer.encode(found.answer, special=True)
        return ScriptAnswer(turn, tokens, found.delay_ms / 1e3)

    def _turn(self, prompt: Sequence[int]) -> tuple[int, int]:
        """The number of the answer that comes next, and where the prompt's last one ended."""
        mark = self.tokenizer.encode(self.marks.assistant, special=True)
        places = _places(mark, prompt)
        if len(places) < 2:
            return 1, 0
        end, last = self.tokenizer.token_of(self.marks.end), places[-2]
        return len(places), prompt.index(end, last) if end in prompt[last:] else last


def read_script(path: Path) -> str:
    """A script as one text, its template included. Raises ConfigError for a mistake in it."""
    content = _read(path, "The script")
    marks, rest = _split(content, str(path))
    template = _read(path.parent / marks.template if marks.template else TEMPLATE, "The template")
    built = msgspec.json.encode((marks, template, rest)).decode()
    script_of(built, str(path))
    return built


def script_of(text: str, where: str = "The script") -> Script:
    """The script of a text that `read_script` returned. Raises ConfigError."""
    marks, template, lines = msgspec.json.decode(text, type=tuple[ScriptMarks, str, dict[int, str]])
    read = tuple(_line(line, number, where) for number, line in lines.items())
    if not read:
        raise ConfigError(f"{where} has no answers; write a line such as {EXAMPLE}.")
    return Script(read, marks, template, ByteTokenizer(marks.control))


EXAMPLE = '{"turn": 1, "text": "Hello."}'


def _read(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(SCRIPT_BYTES_MAX + 1)
        if len(content) > SCRIPT_BYTES_MAX:
            raise ConfigError(f"{what} {path} has more than {SCRIPT_BYTES_MAX} bytes.")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} {path} is not UTF-8.") from error


def _split(content: str, where: str) -> tuple[ScriptMarks, dict[int, str]]:
    """The marks, and the lines of answers by their numbers."""
    lines = {at: line for at, line in enumerate(content.split("\n"), 1) if line.strip()}
    if len(lines) > LINES_MAX:
        raise ConfigError(f"{where} has more than {LINES_MAX} lines.")
    first = next(iter(lines), None)
    if first is None or not _is_marks(lines[first]):
        return ScriptMarks(), lines
    marks = _decoded(lines.pop(first), ScriptMarks, first, where)
    if marks.end not in marks.control:
        raise ConfigError(f"{where}, line {first}: end is {marks.end!r}, no name in control.")
    if len(set(marks.control)) < len(marks.control):
        raise ConfigError(f"{where}, line {first}: control has a name twice.")
    return marks, lines


def _is_marks(line: str) -> bool:
    """Whether a line is about the template: it has a name that no answer has."""
    try:
        names = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return False
    return bool(names.keys() & set(ScriptMarks.__struct_fields__))


def _line(line: str, number: int, where: str) -> ScriptLine:
    if _is_marks(line):
        names = ", ".join(ScriptMarks.__struct_fields__)
        raise ConfigError(f"{where}, line {number}: {names} stand in the first line of a script.")
    read = _decoded(line, ScriptLine, number, where)
    if read.thinking is None and read.text is None and read.calls is None:
        raise ConfigError(f"{where}, line {number}: give text, thinking or calls.")
    return read


def _decoded(line: str, kind: type[_StructT], number: int, where: str) -> _StructT:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{where}, line {number}: {str(error).rstrip('.')}.") from None


def _places(mark: list[int], tokens: Sequence[int]) -> list[int]:
    """Where a mark stands among tokens."""
    starts = [at for at, token in enumerate(tokens) if token == mark[0]]
    return [at for at in starts if [*tokens[at : at + len(mark)]] == mark]
