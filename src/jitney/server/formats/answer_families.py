"""The table of families: how a model writes its answers follows from its chat template. Pure.

Each row has words that only templates of this family have. The first row that fits is taken. A
template that none fits is told of tools as text, in Hermes' form. Reasoning is looked for where the
template names the mark that ends it.

Tests: tests/unit/server/formats/test_families.py.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from jitney.core.backend import Vocabulary
from jitney.server.formats.answer_forms import AnswerForm, CallForm, CallStyle, Reasoning

_DEEPSEEK: Final = (
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
)
_KIMI: Final = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")

THINK = Reasoning(opening="<think>", closing="</think>")
HERMES = CallForm(style=CallStyle.TAGS, opening="<tool_call>", closing="</tool_call>")
CODER = CallForm(
    style=CallStyle.TAGS, opening=HERMES.opening, closing=HERMES.closing, bare_opening="<function="
)
SEED = CallForm(
    style=CallStyle.TAGS,
    opening="<seed:tool_call>",
    closing="</seed:tool_call>",
    bare_opening=CODER.bare_opening,
)
MISTRAL = CallForm(
    style=CallStyle.NAMED, opening="[TOOL_CALLS]", separator="[ARGS]", is_list=True, id_length=9
)
LLAMA = CallForm(opening="<|python_tag|>", arguments_key="parameters", is_bare=True)
GRANITE = CallForm(opening="<|tool_call|>", is_list=True)
NEMOTRON = CallForm(opening="<TOOLCALL>", closing="</TOOLCALL>", is_list=True)
PYTHONIC = CallForm(
    style=CallStyle.PYTHON,
    opening="<|python_start|>",
    closing="<|python_end|>",
    arguments_key="parameters",
    is_list=True,
    is_bare=True,
)
LFM2 = CallForm(
    style=CallStyle.PYTHON,
    opening="<|tool_call_start|>",
    closing="<|tool_call_end|>",
    is_list=True,
)
GEMMA = CallForm(
    style=CallStyle.GEMMA, opening="<|tool_call>", closing="<tool_call|>", quote='<|"|>'
)
FUNCTION_GEMMA = CallForm(
    style=CallStyle.GEMMA,
    opening="<start_function_call>",
    closing="<end_function_call>",
    quote="<escape>",
)
DEEPSEEK = CallForm(
    style=CallStyle.NAMED,
    opening="<\uff5ctool\u2581call\u2581begin\uff5c>",
    separator="<\uff5ctool\u2581sep\uff5c>",
    closing="<\uff5ctool\u2581call\u2581end\uff5c>",
    section=_DEEPSEEK,
)
KIMI = CallForm(
    style=CallStyle.NAMED,
    opening="<|tool_call_begin|>",
    separator="<|tool_call_argument_begin|>",
    closing="<|tool_call_end|>",
    section=_KIMI,
    keeps_id=True,
)
HARMONY = CallForm(opening="<|channel|>")
"""Calls of gpt-oss are messages in channels, which have their own part of the parser."""
BARE = CallForm(opening="", is_bare=True)
"""One object without marks: calls that are enforced where a family has a form of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How a family of models writes its answers."""

    name: str
    words: tuple[str, ...]
    """A template of this family has at least one of them."""
    calls: CallForm
    reasoning: Reasoning = THINK
    """The marks around reasoning, where its templates name them."""
    has_channels: bool = False

    @property
    def enforced(self) -> CallForm:
        """The form in which calls are enforced: JSON, which a schema describes."""
        is_json = self.calls.style in (CallStyle.JSON, CallStyle.TAGS) or self.calls is MISTRAL
        return self.calls if is_json and not self.has_channels else BARE


FAMILIES = (
    Family(
        name="gpt-oss",
        words=("<|channel|>",),
        calls=HARMONY,
        reasoning=Reasoning(opening="<|channel|>analysis<|message|>", closing="<|end|>"),
        has_channels=True,
    ),
    Family(
        name="mistral",
        words=(MISTRAL.opening, "[THINK]"),
        calls=MISTRAL,
        reasoning=Reasoning(opening="[THINK]", closing="[/THINK]"),
    ),
    Family(
        name="gemma",
        words=("<|channel>", GEMMA.opening),
        calls=GEMMA,
        reasoning=Reasoning(opening="<|channel>thought", closing="<channel|>"),
    ),
    Family(name="functiongemma", words=(FUNCTION_GEMMA.opening,), calls=FUNCTION_GEMMA),
    Family(name="deepseek", words=(DEEPSEEK.opening, _DEEPSEEK[0]), calls=DEEPSEEK),
    Family(
        name="kimi",
        words=(KIMI.opening, _KIMI[0]),
        calls=KIMI,
        reasoning=Reasoning(opening="<think>", closing="</think>", ends_at_calls=True),
    ),
    Family(
        name="lfm2",
        words=(LFM2.opening, "<|tool_list_start|>", '"List of tools: '),
        calls=LFM2,
    ),
    Family(name="granite", words=(GRANITE.opening,), calls=GRANITE),
    Family(name="nemotron", words=(NEMOTRON.opening,), calls=NEMOTRON),
    Family(
        name="seed",
        words=(SEED.opening,),
        calls=SEED,
        reasoning=Reasoning(opening="<seed:think>", closing="</seed:think>"),
    ),
    Family(name="qwen-coder", words=(CODER.bare_opening,), calls=CODER),
    Family(name="glm", words=("<arg_key>",), calls=HERMES),
    Family(name="hermes", words=(HERMES.opening,), calls=HERMES),
    Family(name="pythonic", words=(PYTHONIC.opening, "func_name1(param"), calls=PYTHONIC),
    Family(name="llama", words=(LLAMA.opening,), calls=LLAMA),
)
PLAIN = Family(name="plain", words=(), calls=HERMES)
_LLAMA = FAMILIES[-1]


def family_of(source: str, *, knows_tools: bool) -> Family:
    """The family of the model behind a chat template."""
    for family in FAMILIES:
        if any(word in source for word in family.words):
            return family
    return _LLAMA if knows_tools and '"parameters"' in source else PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFormat:
    """How one model writes its answers, and which of its tokens are marks."""

    family: Family
    reasoning: Reasoning | None
    """The marks around its reasoning; None if it does not reason."""
    control: frozenset[str]
    """Marks that are control tokens, which are in a text only if it shows them."""
    tokens: Mapping[str, int]
    """Marks that are one token."""

    def shows_control(self, marks: Iterable[str]) -> bool:
        """Whether one of these marks is in a text only with control tokens shown."""
        return not self.control.isdisjoint(marks)


def model_format(source: str, vocabulary: Vocabulary, *, knows_tools: bool) -> ModelFormat:
    """The format of a model with this chat template. It looks at every token once."""
    family = family_of(source, knows_tools=knows_tools)
    reasoning = family.reasoning if family.reasoning.closing in source else None
    form = AnswerForm(reasoning=reasoning, has_channels=family.has_channels)
    marks = {*family.calls.marks, *form.marks}
    names = {mark.encode(): mark for mark in marks}
    pieces = enumerate(vocabulary.pieces)
    tokens = {names[piece]: token for token, piece in pieces if piece in names}
    control = frozenset(name for name, token in tokens.items() if token in vocabulary.control)
    return ModelFormat(family=family, reasoning=reasoning, control=control, tokens=tokens)
