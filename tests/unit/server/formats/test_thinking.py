"""Tests of `jitney.server.formats.thinking`: a model thinks freely, and then obeys."""

import json
from typing import Any

import pytest

from jitney.core.backend import Vocabulary
from jitney.core.params import StructuredOutputsParams
from jitney.sampling.constraint import ConstraintCompiler, Matcher
from jitney.server.formats.answer_families import ModelFormat, model_format
from jitney.server.formats.answer_forms import AnswerForm
from jitney.server.formats.thinking import after_reasoning
from jitney.tokenizers.byte_tokenizer import byte_vocabulary, encode

BYTES = byte_vocabulary()
MARKS = (
    *("<think>", "</think>", "[THINK]", "[/THINK]", "<|channel>", "<channel|>"),
    *("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
)
MARKED = Vocabulary(
    pieces=(*BYTES.pieces, *(mark.encode() for mark in MARKS)),
    control=BYTES.control | {len(BYTES.pieces) + MARKS.index("[/THINK]")},
    eos_tokens=BYTES.eos_tokens,
)
SOURCES = {
    "hermes": "<tool_call><think></think>",
    "mistral": "[TOOL_CALLS][THINK][/THINK]",
    "gemma": "<|channel>thought<channel|>",
    "gpt-oss": "<|start|><|channel|><|message|><|end|>",
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ANSWER = StructuredOutputsParams(json=SCHEMA)


def formed(
    name: str, vocabulary: Vocabulary, *, is_thinking: bool
) -> tuple[ModelFormat, AnswerForm]:
    model = model_format(SOURCES[name], vocabulary, knows_tools=True)
    form = AnswerForm(
        reasoning=model.reasoning,
        is_thinking=is_thinking,
        has_channels=model.family.has_channels,
    )
    return model, form


def tokens_of(text: str, vocabulary: Vocabulary) -> list[int]:
    """Tokens of a text: marks are one token each where there is one."""
    found: list[int] = []
    while text:
        mark = next((each for each in MARKS if text.startswith(each)), None)
        if mark is not None and vocabulary is MARKED:
            found.append(len(BYTES.pieces) + MARKS.index(mark))
            text = text[len(mark) :]
        else:
            found += text[0].encode()
            text = text[1:]
    return found


COMPILERS = {
    len(each.pieces): ConstraintCompiler(each, lambda text: encode(text, special=False))
    for each in (BYTES, MARKED)
}


def matcher(
    name: str,
    answer: StructuredOutputsParams | None = ANSWER,
    budget: int | None = None,
    vocabulary: Vocabulary = MARKED,
    **choices: Any,
) -> Matcher:
    model, form = formed(name, vocabulary, is_thinking=choices.get("is_thinking", False))
    made = after_reasoning(answer, model, form, vocabulary, budget)
    assert made is not None
    return COMPILERS[len(vocabulary.pieces)].compile(made.constraint())


def taken(text: str, made: Matcher, vocabulary: Vocabulary = MARKED) -> str:
    """What of the text is allowed, and then a dot if it may end there."""
    tokens = tokens_of(text, vocabulary)
    for place, token in enumerate(tokens):
        if not made.mask()[token]:
            return b"".join(vocabulary.pieces[each] for each in tokens[:place]).decode()
        made.advance_to(tokens[: place + 1])
    return text + "." * int(made.mask()[vocabulary.eos_tokens[0]])


GOOD = '{"a": 1}'
ANSWERS = [
    ("hermes", True, f"So {{}}<think>.</think>\n\n{GOOD}"),
    ("hermes", True, f"</think>{GOOD}"),
    ("hermes", False, f"<think>\nSo.\n</think>\n\n{GOOD}"),
    ("hermes", False, GOOD),
    ("mistral", False, f"[THINK]So.[/THINK]{GOOD}"),
    ("gemma", False, f"<|channel>thought\nSo.\n<channel|>{GOOD}"),
    ("gemma", False, GOOD),
    (
        "gpt-oss",
        False,
        "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>"
        + GOOD,
    ),
    ("gpt-oss", False, f"<|channel|>final<|message|>{GOOD}"),
]


@pytest.mark.parametrize(("name", "is_thinking", "text"), ANSWERS)
def test_an_answer_obeys_after_its_reasoning(name: str, is_thinking: bool, text: str) -> None:
    """Guards every kind of mark: thoughts are free, and the answer is not."""
    assert taken(text, matcher(name, is_thinking=is_thinking)) == text + "."
    bad = text.replace(GOOD, '{"a": "x"}')
    assert taken(bad, matcher(name, is_thinking=is_thinking)) == text.replace(GOOD, '{"a": ')


def test_a_thought_does_not_end_the_answer() -> None:
    """Guards callers: an answer that ends in its reasoning is no answer."""
    assert taken("So.", matcher("hermes", is_thinking=True)) == "So."


def test_marks_of_several_tokens() -> None:
    """Guards models whose marks are no tokens: the text decides."""
    made = matcher("hermes", vocabulary=BYTES, is_thinking=True)
    text = f"a </thin b</think>\n\n{GOOD}"
    assert taken(text, made, BYTES) == text + "."
    made = matcher("hermes", budget=3, vocabulary=BYTES, is_thinking=True)
    whole = f"{'x' * 12}</think>{GOOD}"
    assert taken(whole, made, BYTES) == whole + "."
    made = matcher("hermes", budget=3, vocabulary=BYTES, is_thinking=True)
    assert taken("x" * 13, made, BYTES) == "x" * 12
    begun = f"<think>{'x' * 12}"
    assert taken(begun + "x", matcher("hermes", None, 3, BYTES), BYTES) == begun
    text = f"{begun}</think>Hello. <think>"
    assert taken(text, matcher("hermes", None, 3, BYTES), BYTES) == text + "."
    assert taken("Hi. <think>", matcher("hermes", None, 3, BYTES), BYTES) == "Hi. <think>."
    assert taken("<think>", matcher("hermes", None, 0, BYTES), BYTES) == "<think"
    long = matcher("hermes", None, 20_000, BYTES, is_thinking=True)
    assert taken("x" * 3000, long, BYTES) == "x" * 3000


@pytest.mark.parametrize("budget", [0, 1, 5, 1000])
@pytest.mark.parametrize("answer", [ANSWER, None])
def test_a_budget_ends_the_reasoning(budget: int, answer: StructuredOutputsParams | None) -> None:
    """Guards the budget: exactly so many tokens, then nothing but the mark."""
    made = matcher("hermes", answer, budget, is_thinking=True)
    assert taken("x" * (budget + 1), made) == "x" * budget
    assert made.mask().nonzero()[0].tolist() == [MARKED.pieces.index(b"</think>")]
    short = "x" * min(budget, 3) + f"</think>{GOOD}"
    assert taken(short, matcher("hermes", answer, budget, is_thinking=True)) == short + "."


def test_a_budget_where_the_model_decides_to_think() -> None:
    """Guards models that open their reasoning: not twice, and not at all with a budget of 0."""
    text = "<think>xx</think>Hello. <tool_call>"
    assert taken(text, matcher("hermes", None, 2)) == text + "."
    assert taken("<think>xxx", matcher("hermes", None, 2)) == "<think>xx"
    assert taken("Hello", matcher("hermes", None, 0)) == "Hello."
    assert taken("<think>", matcher("hermes", None, 0)) == ""
    free = "<|channel|>analysis<|message|>xx<|end|><|start|>assistant<|channel|>final<|message|>y"
    assert taken(free, matcher("gpt-oss", None, 2)) == free + "."
    assert taken(free, matcher("gpt-oss", None, 1)) == free[: free.index("x<|end|>")]
    assert taken(free, matcher("gpt-oss", None, 0)) == "<|channel|>"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (StructuredOutputsParams(regex="[a-c]+"), "abc"),
        (StructuredOutputsParams(choice=["yes", "no"]), "no"),
        (
            StructuredOutputsParams(grammar='start: "a" inner\ninner: %json {"type": "null"}'),
            "anull",
        ),
        (StructuredOutputsParams(grammar='root ::= "b" [0-9]'), "b7"),
    ],
)
def test_every_kind_of_constraint(answer: StructuredOutputsParams, text: str) -> None:
    """Guards the languages in which a constraint is written."""
    whole = f"x</think>{text}"
    assert taken(whole, matcher("hermes", answer, is_thinking=True)) == whole + "."
    assert taken("x</think>!", matcher("hermes", answer, is_thinking=True)) == "x</think>"


def test_a_replay_from_tokens_is_at_the_same_place() -> None:
    """Guards crashes: a matcher that gets all tokens at once allows what the lost one did."""
    text = f"So it is.</think>\n\n{GOOD}"
    tokens = tokens_of(text, MARKED)
    lost = matcher("hermes", budget=20, is_thinking=True)
    for place in range(len(tokens)):
        again = matcher("hermes", budget=20, is_thinking=True)
        again.advance_to(tokens[:place])
        lost.advance_to(tokens[:place])
        assert (again.mask() == lost.mask()).all()


def test_nothing_changes_without_reasoning() -> None:
    """Guards models that do not reason: their constraint is what it was."""
    model, _ = formed("hermes", MARKED, is_thinking=False)
    assert after_reasoning(ANSWER, model, AnswerForm(), MARKED, None) is ANSWER
    assert after_reasoning(None, *formed("hermes", MARKED, is_thinking=True), MARKED, None) is None
    assert json.loads(ANSWER.constraint().text) == SCHEMA
