"""A chat template in its own process: compiled once, then rendered for one chat after another.

The process calls `set_up`. It exchanges JSON with `jitney.text.chat_template`: a list of chats, and
a list of their answers. An answer is a list, the segments of a prompt, or an object: the fields of
a `SentError`. A template comes with a model file and is an untrusted program. Jinja's sandbox, set
up as Hugging Face does it, keeps it away from Python. The process limits its time and its memory,
so nothing here counts its work (decision 17). No import here may start a thread.

Tests: tests/unit/text/test_chat_template.py and test_renderer.py.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn  # Any: JSON

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from jitney.core import limits
from jitney.errors import ContextLengthExceeded, InvalidRequest, JitneyError, ModelError
from jitney.text.hiding import Hiding, MarksUsedUp

_QUOTE_CHARACTERS_MAX = 1000
"""Characters that are quoted from a template's own error, which may have any length."""

_END_SPACE = "\N{EM SPACE}"
"""A character that templates strip as a space, and never write themselves."""

RenderAnswer = list[Any] | dict[str, str]


class NothingToContinue(Exception):
    """The end of the last message is not in the prompt that the template wrote."""


class _GenerationTag(Extension):
    """A tag for training. It has no meaning here: its content stays."""

    tags = {"generation"}  # noqa: RUF012, as Jinja has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Called by Jinja for the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def set_up(inputs: Any) -> Callable[[list[Any]], list[RenderAnswer]]:
    """The function that answers chats of one template."""
    try:
        template = compiled(inputs["source"])
    except MemoryError:
        raise
    except Exception as error:
        unreadable = _refused(ModelError, _why_unreadable(error))
        return lambda chats: [unreadable for _ in chats]
    values = inputs["values"]
    ours = "".join([inputs["source"], *filter(None, values.values())])
    return _Chats(template, values, Hiding(inputs["names"], ours), inputs["tokens_max"]).answers


def compiled(source: str) -> Template:
    """The template, ready to run. Raises any error of Jinja or Python if it is not valid."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    return environment.from_string(source)


@dataclass(frozen=True, slots=True)
class _Chats:
    """One template, its constant values, and the names that callers may not use.

    A prompt of more segments than `tokens_max` does not fit the model.
    """

    template: Template
    values: dict[str, Any]
    hiding: Hiding
    tokens_max: int

    def answers(self, chats: list[Any]) -> list[RenderAnswer]:
        """For each chat its prompt, or why there is none."""
        return [self._answer(each) for each in chats]

    def _answer(self, task: Any) -> RenderAnswer:
        # Without a chat, an empty prompt.
        if task is None:
            return []
        parts = [task["messages"], task["tools"]]
        try:
            if task["continues"]:
                end = self.hiding.mark(parts)
                spaces = _spaces_after(parts[0][-1]["content"])
                parts = [_with_end_mark(parts[0], end), parts[1]]
                segments = self.hiding.segments(
                    parts, lambda hidden: _text_before_mark(end, spaces, self._text(task, *hidden))
                )
            else:
                segments = self.hiding.segments(parts, lambda hidden: self._text(task, *hidden))
        except MemoryError:
            # The process reports this one.
            raise
        except Exception as error:
            return _answer_of(error)
        if len(segments) > self.tokens_max:
            # Each needs at least one token.
            return _refused(
                ContextLengthExceeded,
                "messages contains so many names of control tokens that the prompt has "
                f"{len(segments)} parts, but the context has {self.tokens_max} tokens; remove "
                "these names.",
            )
        count = sum(len(text) for text, _ in segments)
        if count > limits.PROMPT_CHARACTERS_MAX:
            return _refused(
                InvalidRequest,
                f"messages make a prompt of {count} characters; "
                f"the limit is {limits.PROMPT_CHARACTERS_MAX}.",
            )
        return [*segments]

    def _text(self, task: Any, messages: Any, tools: Any) -> str:
        now = datetime.fromisoformat(task["now"])
        text = self.template.render(
            self.values,
            **task["switches"],
            strftime_now=lambda style: now.strftime(style),
            messages=messages,
            tools=tools,
            add_generation_prompt=task["add_generation_prompt"],
        )
        # A template can write halves of surrogate pairs, which no tokenizer accepts.
        text.encode()
        return text


def _with_end_mark(messages: Any, end: str) -> Any:
    """The messages with a mark and a space after the text of the last one."""
    last = messages[-1]
    return [*messages[:-1], {**last, "content": last["content"] + end + _END_SPACE}]


def _spaces_after(content: str) -> str:
    """The spaces at the end, which a template may strip."""
    stripped = content.rstrip()
    return content[len(stripped) :] if stripped else ""


def _text_before_mark(end: str, spaces: str, text: str) -> str:
    """The text before the mark. Raises NothingToContinue if there is no mark."""
    before, found, after = text.rpartition(end)
    if not found:
        raise NothingToContinue
    # A template that stripped the space after the mark would also strip `spaces` without a mark.
    return before if after.startswith(_END_SPACE) else before.removesuffix(spaces)


def _refused(kind: type[JitneyError], text: str) -> dict[str, str]:
    return {"kind": kind.__name__, "text": text, "parameter": "messages"}


def _answer_of(error: Exception) -> dict[str, str]:
    words = str(error)[:_QUOTE_CHARACTERS_MAX]
    if isinstance(error, MarksUsedUp):
        return _refused(InvalidRequest, "messages use up all private characters of Unicode.")
    if isinstance(error, NothingToContinue):
        return _refused(
            InvalidRequest,
            "The chat template does not write the last message, so it cannot be continued; "
            "leave continue_final_message out.",
        )
    if isinstance(error, SecurityError):
        text = f"The chat template does something that is not allowed: {words}."
        return _refused(ModelError, text)
    if isinstance(error, RecursionError | OverflowError):
        return _refused(
            ModelError,
            "The chat template does more work than a chat can need and was stopped; "
            "use another model file or another template.",
        )
    if type(error) is TemplateError:
        # The template called raise_exception; all other errors have a class of their own.
        return _refused(InvalidRequest, f"The chat template refuses these messages: {words}")
    # The template is an untrusted program, and may fail in any way, with any text.
    text = (
        "The chat template cannot render these messages; check their roles, their order and "
        "their fields."
    )
    return _refused(InvalidRequest, text) | {"cause": type(error).__name__}


def _why_unreadable(error: Exception) -> str:
    if isinstance(error, TemplateSyntaxError):
        words = str(error.message)[:_QUOTE_CHARACTERS_MAX]
        return f"The chat template cannot be read: {words}, line {error.lineno}."
    # Jinja compiles it to Python, and both have limits.
    return f"The chat template is nested too deeply, or cannot be read ({type(error).__name__})."


def _raise(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, as Hugging Face gives it to templates: no HTML escapes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
