"""The forms of an answer: how reasoning and calls are written. Frozen values, any thread.

Marks are what the model writes around them. `answer_families` has the form of each family.

Tests: tests/unit/server/formats/test_families.py.
"""

import re
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_LETTERS = string.ascii_letters + string.digits


class CallStyle(StrEnum):
    """How one call is written, between its marks."""

    JSON = "json"
    """An object with a name and arguments."""
    TAGS = "tags"
    """The same; or a name and values between tags, as Qwen3-Coder and GLM have it."""
    NAMED = "named"
    """A name, a mark, and the arguments as JSON."""
    PYTHON = "python"
    """A list of calls as Python has them."""
    GEMMA = "gemma"
    """`call:NAME{key:value}`, with marks around strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """How a family of models writes calls.

    With `is_list`, one mark opens a list of calls; otherwise each call has its own. With `is_bare`,
    a call may also begin an answer without any mark.
    """

    style: CallStyle = CallStyle.JSON
    opening: str
    closing: str = ""
    section: tuple[str, str] | None = None
    """Marks around all calls."""
    bare_opening: str = ""
    """What opens a call where the mark was forgotten. It is a part of the call."""
    separator: str = ""
    """What stands between a name and arguments."""
    arguments_key: str = "arguments"
    quote: str = ""
    """The mark around a string, where it is not a quotation mark."""
    is_list: bool = False
    is_bare: bool = False
    keeps_id: bool = False
    """Whether the model writes the id of a call, and wants to find it in the conversation."""
    id_length: int | None = None
    """Length of a call's id, for templates that require one."""

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks that tell a call from text."""
        found = (self.opening, self.closing, self.separator, self.quote, *(self.section or ()))
        return tuple(mark for mark in found if mark)

    @property
    def openings(self) -> tuple[str, ...]:
        """The marks that end a text, because calls begin."""
        begins = self.section[:1] if self.section else ()
        return tuple(mark for mark in (*begins, self.opening, self.bare_opening) if mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """The marks around what a model thinks before it answers."""

    opening: str
    closing: str
    ends_at_calls: bool = False
    """Whether calls end it too, without its mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """How one request uses tools: their names, and whether one must be called."""

    form: CallForm
    names: tuple[str, ...]
    schemas: Mapping[str, Any] = field(default_factory=dict)  # Any: a JSON schema
    """What each tool takes; values that are written as text are read by it."""
    parallel: bool = True
    is_enforced: bool = False
    """Whether the text is only calls, and the last may be cut off."""
    starts_inside: bool = False
    """Whether the answer begins with a call, without a mark."""

    def new_id(self) -> str:
        """An id for a call."""
        if self.form.id_length is not None:
            return "".join(secrets.choice(_LETTERS) for _ in range(self.form.id_length))
        return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """How one answer is read. Without marks, it is all content."""

    reasoning: Reasoning | None = None
    is_thinking: bool = False
    """Whether the prompt ends within the reasoning, so that the answer begins with it."""
    has_channels: bool = False
    """Whether it is written in channels, as gpt-oss has them."""
    includes_reasoning: bool = True
    """Whether the caller wants to read the reasoning."""
    closing_token: int | None = None
    """The token that ends the reasoning, if it is one: then its tokens can be counted."""
    calling: Calling | None = None

    @property
    def is_plain(self) -> bool:
        """Whether nothing but content can be in it."""
        return self.reasoning is None and self.calling is None and not self.has_channels

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks that are looked for in the text."""
        reasoning, calling = self.reasoning, self.calling
        found = () if reasoning is None else (*marks_in(reasoning.opening), reasoning.closing)
        if self.has_channels:
            found += CHANNEL_MARKS
        # Enforced calls have no marks that are control tokens.
        is_marked = calling is not None and not calling.is_enforced
        return (*found, *calling.form.marks) if calling is not None and is_marked else found


CHANNEL_MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
"""Around the messages of gpt-oss."""
_MARK = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")


def marks_in(text: str) -> tuple[str, ...]:
    """The marks that a text is made of, each as one token may have it."""
    return tuple(_MARK.findall(text))
