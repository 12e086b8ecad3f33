"""Chat templates: messages to the text of a prompt, with what a caller wrote kept apart.

Any thread; renders of one template take turns. A caller's text never becomes a control token:
`render` gives segments, and the name of a control token that a caller wrote stands in a segment
of its own that is not `special`, to be tokenised as plain text.

Two things make sure of that. Before rendering, each such name in the messages is replaced by one
character that occurs neither in them nor in the template, and put back afterwards. And because a
template may also cut text so that a name comes together (`<|e[X]nd|>` without the `[X]`), messages
that hold the beginning of a name are rendered once more with that character replaced as well; if
the control tokens of the two differ, the second one counts.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2.exceptions import TemplateError

from jitney.core import limits
from jitney.core.backend import Vocabulary
from jitney.errors import ContextLengthExceeded, InvalidRequest, ModelError
from jitney.text.names import names_pattern
from jitney.text.sandbox import Sandbox

_log = logging.getLogger("jitney.text")

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""Templates build control tokens from roles (`<|user|>`), so a role is one of these."""

_DEPTH_MAX = 32
_TOOLS = re.compile(r"\btools\b")
_PRIVATE = re.compile("[\U000f0000-\U0010fffd]")
_PRIVATE_FIRST, _PRIVATE_LAST = 0xF0000, 0x10FFFD


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt; names of control tokens in it are those tokens only when `special`."""

    text: str
    special: bool


@dataclass(frozen=True, slots=True)
class _Given:
    """What one render is about. Any: JSON, checked."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    switches: dict[str, bool]
    add_generation_prompt: bool


class ChatTemplate:
    """One model's chat template. `now` is the date that it is told, if it asks for one.

    A prompt of more segments than `tokens_max` is refused before they are made.
    """

    def __init__(
        self,
        source: str,
        vocabulary: Vocabulary,
        now: Callable[[], datetime] = datetime.now,
        *,
        tokens_max: int = limits.TOKENS_MAX,
    ) -> None:
        self._tokens_max = tokens_max
        self._lock = threading.Lock()
        self._sandbox = Sandbox(now)
        self._template = self._sandbox.compiled(source)
        names = {_name(vocabulary, token) for token in vocabulary.control} - {""}
        self._taken = frozenset(_PRIVATE.findall(source + "".join(names)))
        found, firsts = names_pattern(names), names_pattern(name[:1] for name in names)
        self._names = re.compile(found) if names else None
        self._firsts = re.compile(firsts) if names else None
        self._both = re.compile(f"{found}|{firsts}") if names else None
        eos = vocabulary.eos_tokens
        self._values = {
            "bos_token": _name(vocabulary, vocabulary.bos_token),
            "eos_token": _name(vocabulary, eos[0] if eos else None),
            "documents": None,
        }
        self.source = source

    @property
    def knows_tools(self) -> bool:
        """Whether the template reads the tools that it is given."""
        return _TOOLS.search(self.source) is not None

    def render(
        self,
        messages: list[dict[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tools: list[dict[str, Any]] | None = None,
        switches: Mapping[str, bool] | None = None,
    ) -> tuple[Segment, ...]:
        """The prompt for these messages. Raises InvalidRequest (theirs) or ModelError (ours).

        The template's own beginning-of-text token is part of it, if the template writes one.
        Tools are as much a caller's text as messages are. `switches` are handed to the template
        by name; their names must not come from a caller.
        """
        # Any: messages and tools are JSON, and are checked here.
        checked = [_checked(message, index) for index, message in enumerate(_listed(messages))]
        given = _Given(checked, tools, {**(switches or {})}, add_generation_prompt)
        texts = [*_texts(checked, 0), *_texts(tools, 0)]
        count = sum(map(len, texts))
        if count > limits.PROMPT_CHARACTERS_MAX:
            raise _invalid(
                f"messages hold {count} characters; the limit is {limits.PROMPT_CHARACTERS_MAX}."
            )
        _check_encodable(texts)
        text, marks = self._rendered(given, texts, self._names)
        if self._names and self._firsts and any(map(self._firsts.search, texts)):
            safe, safe_marks = self._rendered(given, texts, self._both)
            # What is hidden is no part of a name: these are the control tokens of each.
            if self._names.findall(safe) != self._names.findall(text):
                text, marks = safe, safe_marks
        return _split(text, {mark: name for name, mark in marks.items()}, self._tokens_max)

    def _rendered(
        self, given: "_Given", texts: list[str], hidden: re.Pattern[str] | None
    ) -> tuple[str, dict[str, str]]:
        """Render with every occurrence of `hidden` in the caller's text kept out of the way.

        The prompt, and the character that stands in it for each text that was hidden.
        """
        marks = self._marks(texts, hidden)
        messages, tools = given.messages, given.tools
        if marks and hidden is not None:
            messages, tools = _mapped(
                [messages, tools], lambda text: hidden.sub(lambda at: marks[at[0]], text)
            )
        values: dict[str, object] = {
            **self._values,
            **given.switches,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": given.add_generation_prompt,
        }
        with self._lock:
            text = self._run(values, sum(map(len, texts)))
        if len(text) > limits.PROMPT_CHARACTERS_MAX:
            raise _invalid(
                f"messages make a prompt of {len(text)} characters; "
                f"the limit is {limits.PROMPT_CHARACTERS_MAX}."
            )
        return text, marks

    def _run(self, values: dict[str, object], count: int) -> str:
        try:
            return self._sandbox.rendered(self._template, values, count)
        except ModelError:
            raise
        except Exception as error:
            if type(error) is TemplateError:
                # What a template says by raise_exception; all others are of a kind of their own.
                raise _invalid(f"the chat template refuses these messages: {error}") from None
            # It is a program of someone else's, and may fail in any way there is, with any words.
            _log.info("the chat template failed with %s", type(error).__name__)
            raise _invalid(
                "the chat template cannot render these messages; check their roles, their order "
                "and their fields."
            ) from None

    def _marks(self, texts: list[str], hidden: re.Pattern[str] | None) -> dict[str, str]:
        """For each text to hide, a character that stands nowhere else."""
        if hidden is None:
            return {}
        found = dict.fromkeys(name for text in texts for name in hidden.findall(text))
        if not found:
            return {}
        taken = self._taken.union(*(_PRIVATE.findall(text) for text in texts))
        free = (
            chr(point)
            for point in range(_PRIVATE_FIRST, _PRIVATE_LAST + 1)
            if chr(point) not in taken
        )
        marks = dict(zip(found, free, strict=False))
        if len(marks) < len(found):
            raise _invalid("messages use up all private characters of Unicode.")
        return marks


def _name(vocabulary: Vocabulary, token: int | None) -> str:
    if token is None or not 0 <= token < len(vocabulary.pieces):
        return ""
    return vocabulary.pieces[token].decode("utf-8", errors="replace")


def _split(text: str, names: dict[str, str], tokens_max: int) -> tuple[Segment, ...]:
    """Put the hidden texts back, each apart from what surrounds it."""
    if not names:
        return (Segment(text, True),) if text else ()
    parts = re.split("([" + "".join(names) + "]+)", text)
    # The first and the last may be empty; each of the others is a token at least.
    if len(parts) - 2 > tokens_max:
        raise ContextLengthExceeded(
            f"messages hold so many names of control tokens that the prompt has {len(parts)} "
            f"parts, and the context holds {tokens_max} tokens; take them out.",
            "messages",
        )
    segments = (
        Segment("".join(names[mark] for mark in part), False) if index % 2 else Segment(part, True)
        for index, part in enumerate(parts)
    )
    return tuple(segment for segment in segments if segment.text)


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, "messages")


def _listed(messages: object) -> list[object]:
    if not isinstance(messages, list) or not messages:
        raise _invalid("messages must be a list of at least one message.")
    return messages


def _checked(message: object, index: int) -> dict[str, Any]:
    """The message with its content as one string."""
    where = f"messages[{index}]"
    if not isinstance(message, dict) or not all(isinstance(key, str) for key in message):
        raise _invalid(f"{where} must be an object with a role and a content.")
    role = message.get("role")
    if role not in ROLES:
        raise _invalid(f"{where}.role must be one of {', '.join(ROLES)}.")
    content = message.get("content")
    if content is None and role == "assistant" and message.get("tool_calls"):
        return message
    return {**message, "content": _content(content, where)}


def _content(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _invalid(f"{where}.content must be a string or a list of text parts.")
    parts: list[str] = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise _invalid(f'{where}.content may hold parts of type "text" only, each with a text.')
        parts.append(text)
    return "".join(parts)


def _texts(value: object, depth: int) -> Iterator[str]:
    """Every string in the messages, the keys of objects included."""
    if depth > _DEPTH_MAX:
        raise _invalid(f"messages are nested more than {_DEPTH_MAX} deep.")
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _texts(key, depth + 1)
            yield from _texts(part, depth + 1)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part, depth + 1)
    elif value is not None and not isinstance(value, bool | int | float):
        raise _invalid(f"messages hold a {type(value).__name__}, which is no JSON value.")


def _mapped(value: Any, change: Callable[[str], str]) -> Any:  # Any: a JSON value
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_mapped(key, change): _mapped(part, change) for key, part in value.items()}
    if isinstance(value, list):
        return [_mapped(part, change) for part in value]
    return value


def _check_encodable(texts: list[str]) -> None:
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError:
        raise _invalid("messages hold half of a surrogate pair, which is no character.") from None
