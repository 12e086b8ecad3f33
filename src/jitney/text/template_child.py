"""A chat template in its process: compiled once, then rendered for one chat after another.

`jitney.text.chat_template` has `set_up` called there; both speak JSON, and what can be foreseen
comes back as a value. A template comes with a model file and is a stranger's program. Jinja's
sandbox, set up as Hugging Face does it, keeps it away from Python; the process bounds its time and
its memory, so nothing here counts what it does (decision 17). Nothing that is imported here may
start a thread.

    ["ready", None]       to a task of None: the template can be used
    ["done", pieces]      the prompt
    ["parts", count]      there would be so many, and each is a token at least
    ["invalid", text]     a sentence for whoever wrote the messages
    ["failed", kind]      the template failed on the messages; the kind of its error
    ["model", text]       a sentence for whoever chose the model

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
from jitney.text.hiding import Hiding, MarksUsedUp

_WORDS_CHARACTERS_MAX = 1000
"""Of what a template says itself: it may say anything, at any length."""

_SPACE = "\N{EM SPACE}"
"""A space to everybody who cuts off spaces, and none that templates write themselves."""

Answer = list[Any]


class NothingToContinue(Exception):
    """The template wrote a prompt that the end of the last message is not in."""


class _Generation(Extension):
    """A mark for training, which means nothing here: what is inside stays."""

    tags = {"generation"}  # noqa: RUF012, as Jinja has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Jinja's own way into a tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def set_up(given: Any) -> Callable[[Any], Answer]:
    """What answers to the chats of one template."""
    try:
        template = compiled(given["source"])
    except MemoryError:
        raise
    except Exception as error:
        unreadable: Answer = ["model", _why_unreadable(error)]
        return lambda task: unreadable
    values = given["values"]
    ours = "".join([given["source"], *filter(None, values.values())])
    return _Chats(template, values, Hiding(given["names"], ours), given["tokens_max"]).answer


def compiled(source: str) -> Template:
    """The template, ready to run. Raises whatever Jinja and Python raise for what is none."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    return environment.from_string(source)


@dataclass(frozen=True, slots=True)
class _Chats:
    """One template, the values that it is always given, and the names that callers may not use.

    A prompt of more pieces than `tokens_max` does not fit the model.
    """

    template: Template
    values: dict[str, Any]
    hiding: Hiding
    tokens_max: int

    def answer(self, task: Any) -> Answer:
        """The prompt of a chat, or why there is none."""
        if task is None:
            return ["ready", None]
        given = [task["messages"], task["tools"]]
        try:
            if task["continues"]:
                end = self.hiding.mark(given)
                spaces = _spaces_after(given[0][-1]["content"])
                given = [_marked(given[0], end), given[1]]
                pieces = self.hiding.pieces(
                    given, lambda hidden: _until(end, spaces, self._text(task, *hidden))
                )
            else:
                pieces = self.hiding.pieces(given, lambda hidden: self._text(task, *hidden))
        except MemoryError:
            # This one is for the process to tell.
            raise
        except Exception as error:
            return _answer_of(error)
        if len(pieces) > self.tokens_max:
            return ["parts", len(pieces)]
        count = sum(len(text) for text, _ in pieces)
        if count > limits.PROMPT_CHARACTERS_MAX:
            return [
                "invalid",
                f"messages make a prompt of {count} characters; "
                f"the limit is {limits.PROMPT_CHARACTERS_MAX}.",
            ]
        return ["done", pieces]

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
        # A template can write halves of surrogate pairs, which no tokenizer takes.
        text.encode()
        return text


def _marked(messages: Any, end: str) -> Any:
    """The messages with a mark behind the text of the last one, and a space behind the mark."""
    last = messages[-1]
    return [*messages[:-1], {**last, "content": last["content"] + end + _SPACE}]


def _spaces_after(content: str) -> str:
    """The spaces that a template would cut off at the end."""
    kept = content.rstrip()
    return content[len(kept) :] if kept else ""


def _until(end: str, spaces: str, text: str) -> str:
    """What a template wrote up to the mark. Raises NothingToContinue where it is not there."""
    before, found, after = text.rpartition(end)
    if not found:
        raise NothingToContinue
    # A template that cut off the space behind the mark cuts off those before it without the mark.
    return before if after.startswith(_SPACE) else before.removesuffix(spaces)


def _answer_of(error: Exception) -> Answer:
    words = str(error)[:_WORDS_CHARACTERS_MAX]
    if isinstance(error, MarksUsedUp):
        return ["invalid", "messages use up all private characters of Unicode."]
    if isinstance(error, NothingToContinue):
        return [
            "invalid",
            "the chat template does not write out the last message, so it cannot be continued; "
            "leave continue_final_message out.",
        ]
    if isinstance(error, SecurityError):
        return ["model", f"The chat template does what it may not do: {words}."]
    if isinstance(error, RecursionError | OverflowError):
        return [
            "model",
            "The chat template does more work than a chat can need and was stopped; "
            "use another model file or another template.",
        ]
    if type(error) is TemplateError:
        # What a template says by raise_exception; all others are of a kind of their own.
        return ["invalid", f"the chat template refuses these messages: {words}"]
    # It is a program of someone else's, and may fail in any way there is, with any words.
    return ["failed", type(error).__name__]


def _why_unreadable(error: Exception) -> str:
    if isinstance(error, TemplateSyntaxError):
        words = str(error.message)[:_WORDS_CHARACTERS_MAX]
        return f"The chat template cannot be read: {words}, line {error.lineno}."
    # Jinja makes a program of it, and both it and Python have their limits.
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
