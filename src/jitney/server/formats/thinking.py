"""What a model may write before a constraint holds: its reasoning, and no more of it than allowed.

A lead is a grammar of Lark in which `@answer` stands for the constraint. Reasoning is matched
token by token where one token ends it: that costs almost nothing at a token, and counts tokens.
Pure; any thread.
"""

import json
import re
from dataclasses import replace

from jitney.core.backend import Vocabulary
from jitney.core.params import StructuredOutputsParams
from jitney.server.formats.answer_families import ModelFormat
from jitney.server.formats.answer_forms import AnswerForm, Reasoning, marks_in

_SPACE = "SPACE: /[ \\n]{1,4}/\n"
_TOKEN_CHARACTERS = 4
"""What a token of reasoning counts as, where the mark that ends it is not one token."""
_TEXT_MAX = 50_000
"""Characters that such reasoning is counted up to: each takes a state of the lexer."""


def after_reasoning(
    answer: StructuredOutputsParams | None,
    model: ModelFormat,
    form: AnswerForm,
    vocabulary: Vocabulary,
    budget: int | None,
) -> StructuredOutputsParams | None:
    """The constraint of an answer after reasoning of at most so many tokens. Without a constraint
    and a budget there is none."""
    if form.reasoning is None or (answer is None and budget is None):
        return answer
    writer = _LeadWriter(model, form.reasoning, vocabulary)
    is_free = answer is None
    if form.has_channels:
        lead = writer.channels(budget, is_free=is_free)
    else:
        lead = writer.marked(budget, is_open=form.is_thinking)
    if answer is None:
        answer = StructuredOutputsParams(
            grammar=writer.free_answer(has_channels=form.has_channels, is_open=form.is_thinking)
        )
    return replace(answer, lead=lead)


class _LeadWriter:
    """Writes the grammars for one model."""

    def __init__(self, model: ModelFormat, reasoning: Reasoning, vocabulary: Vocabulary) -> None:
        self._tokens = model.tokens
        self._reasoning = reasoning
        self._ends = list(vocabulary.eos_tokens)
        self._control = vocabulary.control

    def marked(self, budget: int | None, *, is_open: bool) -> str:
        """Reasoning between two marks; the first may be in the prompt."""
        opening, closing = self._reasoning.opening, self._reasoning.closing
        inside, rule = self._thought(closing, budget)
        if is_open:
            return f"start: {inside} SPACE? @answer\n{rule}{_SPACE}"
        whole = f"(SPACE? {self._mark(opening)} {inside} SPACE?)?"
        return f"start: {'' if budget == 0 else whole} @answer\n{rule}{_SPACE}"

    def channels(self, budget: int | None, *, is_free: bool) -> str:
        """A message of analysis, and what stands before the answer. An answer that is free has the
        header of its message."""
        inside, rule = self._thought(self._reasoning.closing, budget)
        analysis = self._mark(self._reasoning.opening)
        thought = f"({analysis} {inside} {self._mark('<|start|>assistant')})?"
        final = "" if is_free else self._mark("<|channel|>final<|message|>")
        return f"start: {'' if budget == 0 else thought} {final} @answer\n{rule}"

    def free_answer(self, *, has_channels: bool, is_open: bool) -> str:
        """Any answer in which no other reasoning begins."""
        opening = marks_in(self._reasoning.opening)[0]
        if has_channels:
            return f"start: {self._mark(opening)} /final|commentary/ {_without(self._ends)}*\n"
        token = self._tokens.get(opening)
        if token is None and not is_open:
            return self._free_text(opening)
        return f"start: {_without(self._ends if token is None else [*self._ends, token])}*\n"

    def _free_text(self, opening: str) -> str:
        """Any answer that does not begin with a mark of several tokens."""
        others = sorted(self._control.difference(self._ends))
        marks = f" (<[{','.join(map(str, others))}]> REST)*" if others else ""
        return (
            f"start: FIRST{marks}\n"
            f"FIRST: /(?s:.*)/ & ~/[ \\n]*{re.escape(opening)}(?s:.*)/\nREST: /(?s:.*)/\n"
        )

    def _thought(self, closing: str, budget: int | None) -> tuple[str, str]:
        """What stands up to the closing mark, that mark included, and the rule for it."""
        if budget == 0:
            return self._mark(closing), ""
        token = self._tokens.get(closing)
        if token is not None:
            count = "*" if budget is None else f"{{0,{budget}}}"
            return f"thought <[{token}]>", f"thought: {_without([token, *self._ends])}{count}\n"
        # The library can end a text early, but not with a mark behind it.
        count = "*" if budget is None else f"{{0,{min(budget * _TOKEN_CHARACTERS, _TEXT_MAX)}}}"
        return "thought", f"thought[suffix={json.dumps(closing)}]: /(.|\\n){count}/\n"

    def _mark(self, text: str) -> str:
        """Marks and words, each mark by its token if it has one."""
        found, rest = [], text
        for mark in marks_in(text):
            before, _, rest = rest.partition(mark)
            token = self._tokens.get(mark)
            found += [json.dumps(before)] if before else []
            found.append(json.dumps(mark) if token is None else f"<[{token}]>")
        return " ".join([*found, json.dumps(rest)] if rest else found)


def _without(tokens: list[int]) -> str:
    return f"<[^{','.join(map(str, sorted(set(tokens))))}]>"
