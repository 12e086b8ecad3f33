"""Compiles schemas, regexes, choices and grammars with llguidance.

Any thread. Compiling untrusted text may take any time and memory, so it is first tried in a process
with limits (`jitney.sandbox`), which `set_up` prepares. That process forks, so this module and its
imports start no thread. Only this module imports llguidance.

Tests: tests/unit/sampling/test_constraint.py and test_constraint_limits.py.
"""

import json
import re
from collections.abc import Callable
from typing import Any, assert_never

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark

from jitney.core.backend import Vocabulary
from jitney.core.params import Constraint, ConstraintKind
from jitney.errors import InvalidRequest
from jitney.sampling.closed_schema import closed_schema
from jitney.sandbox.peak_memory import peak_bytes

# Endless whitespace is valid JSON, and small models tend to write it. A space, or a new line with
# its indentation, is enough. A model that counts its spaces wrong writes as many as it may.
_WHITESPACE = r"\x20|\x0D?\x0A[\x20\x09]{0,20}"
_JSON_DEFAULTS = {"whitespace_pattern": _WHITESPACE}
# A schema can tell llguidance to approximate rules that it cannot enforce. This forbids that.
_JSON_OVERRIDES = {"lenient": False, "coerce_one_of": False}
_LARK = re.compile(r"(?m)^\s*(%llguidance\b|start\s*:(?!:=))")
_REASON_CHARACTERS_MAX = 240
_NAME_CHARACTERS_MAX = 80
_TOO_MUCH = "too many"
"""A part of the library's text when a limit is reached. There is only the text: `stop_reason` is
the same for every failure."""
_OUTSIDE = re.compile(r"Resource '(.*?)' is not present in a registry")
"""The library's text for a reference to another document, which is never fetched."""

STACK_BYTES = 2**29
"""The compiler recurses once for each rule of a chain. The longest possible text must not overflow
the stack, which would end the process. Only the used part of the stack takes memory."""
_ITEMS_MAX = 20_000
"""Alternatives at the same time: 0.02 s of work at a token. The library's own limit is too low for
grammars of a few thousand, and they reach it only after the first token."""
_LEXER_FUEL_MAX = 200_000
"""Work on regexes at a token: 0.04 s for the slowest known."""
_LEXER_STATES_MAX = 100_000
"""States of regexes in one completion: 40 MB."""
_SIMPLE = Constraint(ConstraintKind.JSON, '{"properties":{"a":{"const":1}},"required":["a"]}')

TryResult = tuple[str | None, int]
"""The reason for a refusal, or None, and the memory that compiling took."""


def set_up(inputs: Any) -> Callable[[Any], TryResult]:  # Any: the JSON of `set_up_input`
    """For the process with limits: a function that tries a constraint."""
    vocabulary = Vocabulary(
        pieces=tuple(bytes.fromhex(piece) for piece in inputs["pieces"].split(" ")),
        control=frozenset(inputs["control"]),
        eos_tokens=tuple(inputs["eos_tokens"]),
        bos_token=inputs["bos_token"],
    )
    tokenizer: Any = None  # Any: an LLTokenizer

    def encode(text: str) -> list[int]:
        # Any tokens of the text will do here: no completion is written.
        return [] if tokenizer is None else list(tokenizer.greedy_tokenize(text))

    tokenizer = build_tokenizer(vocabulary, encode)

    def tried(task: Any) -> TryResult:  # Any: a kind and a text
        constraint = Constraint(ConstraintKind(task[0]), task[1])
        # A fresh process needs some memory for any constraint. That does not count.
        compile_grammar(tokenizer, _SIMPLE)
        before = peak_bytes()
        try:
            compile_grammar(tokenizer, constraint)
        except InvalidRequest as error:
            return str(error), 0
        return None, peak_bytes() - before

    return tried


def set_up_input(vocabulary: Vocabulary) -> dict[str, Any]:  # Any: JSON
    """The input of `set_up`."""
    return {
        # One text, made in a loop of Python, so that other threads can run meanwhile.
        "pieces": " ".join(piece.hex() for piece in vocabulary.pieces),
        "control": sorted(vocabulary.control),
        "eos_tokens": list(vocabulary.eos_tokens),
        "bos_token": vocabulary.bos_token,
    }


def build_tokenizer(vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> Any:
    """An LLTokenizer; takes up to a second. Raises InvalidRequest if the model has no end."""
    if not vocabulary.eos_tokens:
        raise refusal("this model has no end token, so a completion could not end")
    return LLTokenizer(
        TokenizerWrapper(_GrammarTokens(vocabulary, encode)), eos_token=list(vocabulary.eos_tokens)
    )


class _GrammarTokens:
    """The vocabulary with the attributes that llguidance's TokenizerWrapper reads."""

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> None:
        self.eos_token_id = vocabulary.eos_tokens[0]
        self.bos_token_id = vocabulary.bos_token
        self.tokens = list(vocabulary.pieces)
        self.special_token_ids = sorted(vocabulary.control)
        self._encode = encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode(errors="replace"))


def compile_grammar(tokenizer: Any, constraint: Constraint) -> Any:  # Any: LLTokenizer, LLMatcher
    """The constraint in its first state, with its first mask computed. Needs a deep stack.

    Raises InvalidRequest or MemoryError.
    """
    try:
        return _compiled(tokenizer, constraint)
    except (InvalidRequest, MemoryError):
        raise
    except RecursionError:
        raise refusal("it is nested too deeply") from None
    except BaseException as error:  # Panics of the library are not an Exception.
        raise refusal(short_reason(str(error))) from None


def _compiled(tokenizer: Any, constraint: Constraint) -> Any:  # Any: LLTokenizer, LLMatcher
    grammar = _grammar(constraint)
    bounds = LLParserLimits(
        max_items_in_row=_ITEMS_MAX,
        step_max_items=_ITEMS_MAX,
        step_lexer_fuel=_LEXER_FUEL_MAX,
        max_lexer_states=_LEXER_STATES_MAX,
        verbose_errors=False,
    )
    state = LLMatcher(tokenizer, grammar, log_level=0, limits=bounds)
    if state.is_error():
        raise refusal(short_reason(state.get_error()))
    warnings = state.get_grammar_warnings()
    if warnings:
        raise refusal(f"it cannot be enforced exactly ({short_reason(warnings[0])})")
    # The first mask shows a language without any text, such as `root ::= root`.
    bits = state.compute_bitmask()
    if state.is_error() and _TOO_MUCH in state.get_error().lower():
        raise failure(state.get_error(), "")
    if state.is_error() or not any(bits):
        raise refusal("no text satisfies it")
    return state


def _grammar(constraint: Constraint) -> str:
    match constraint.kind:
        case ConstraintKind.JSON:
            # The schema `true` cannot have options; the empty object means the same.
            schema = "{}" if constraint.text.strip() == "true" else closed_schema(constraint.text)
            return str(
                LLMatcher.grammar_from_json_schema(
                    schema, defaults=_JSON_DEFAULTS, overrides=_JSON_OVERRIDES
                )
            )
        case ConstraintKind.REGEX:
            return str(LLMatcher.grammar_from_regex(constraint.text))
        case ConstraintKind.CHOICE:
            choices = (json.dumps(choice) for choice in json.loads(constraint.text))
            # A terminal becomes one automaton. With a rule, the parser would follow thousands of
            # alternatives one by one, and it has a limit for that.
            lark = "start: CHOICE\nCHOICE: " + " | ".join(choices)
            return str(LLMatcher.grammar_from_lark(lark))
        case ConstraintKind.LARK:
            return str(LLMatcher.grammar_from_lark(constraint.text))
        case ConstraintKind.GBNF:
            # A Lark grammar with `::=` in a literal looks like GBNF.
            is_lark = _LARK.search(constraint.text)
            lark = constraint.text if is_lark else gbnf_to_lark(constraint.text)
            return str(LLMatcher.grammar_from_lark(lark))
        case ConstraintKind.LED:
            lead, kind, text = json.loads(constraint.text)
            return _led(lead, _grammar(Constraint(ConstraintKind(kind), text)))
    assert_never(constraint.kind)


def _led(lead: str, answer: str) -> str:
    """A grammar in which `@answer` stands for another one."""
    # A text of Lark alone is a grammar for the library, too.
    is_lark = not answer.lstrip().startswith("{")
    own = [{"lark_grammar": answer}] if is_lark else json.loads(answer)["grammars"]
    first, *others = own
    return json.dumps({"grammars": [{"lark_grammar": lead}, {**first, "name": "answer"}, *others]})


def refusal(reason: str) -> InvalidRequest:
    """The error for a refused constraint. `reason` is a clause."""
    return InvalidRequest(f"The constraint is refused: {reason}.", "structured_outputs")


def failure(error: str, otherwise: str) -> InvalidRequest:
    """The error for a constraint that failed. `otherwise` is the clause if no limit was reached."""
    reason = short_reason(error)
    if _TOO_MUCH in error.lower():
        return refusal(f"it is too complex ({reason}); make it simpler")
    return refusal(f"{otherwise} ({reason})")


def short_reason(error: str) -> str:
    """The useful part of llguidance's message, on one line."""
    outside = _OUTSIDE.search(error)
    if outside is not None:
        name = outside[1].removeprefix("json-schema:///")[:_NAME_CHARACTERS_MAX]
        return f"{name!r} is another document; a $ref must point into the schema itself (#/...)"
    reason = error.split("\n<", 1)[0].split(". Enable", 1)[0].rsplit("error: ", 1)[-1].strip()
    reason = " ".join(reason.split("\n", 1)[0].split()) or "it cannot be compiled"
    return reason[:_REASON_CHARACTERS_MAX].rstrip(".")
