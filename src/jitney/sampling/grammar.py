"""Grammars: schemas, regexes, choices and grammars as llguidance compiles them.

Any thread. Compiling what a stranger wrote may take any time and memory, so it is tried first in a
process with limits (`jitney.sandbox`), which `set_up` makes ready. This module and what it imports
start no thread, since that process forks. The only module that imports llguidance; the rest of the
package works without it.

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
from jitney.sandbox.peak_memory import most_bytes

# Whitespace without end is valid JSON, and small models are fond of it. A space, or a new line and
# its indentation, is all that anybody needs; a model that counts its spaces wrong writes as many as
# it may, at every place.
_WHITESPACE = r"\x20|\x0D?\x0A[\x20\x09]{0,20}"
_JSON_DEFAULTS = {"whitespace_pattern": _WHITESPACE}
# A schema can ask llguidance to approximate what it cannot enforce; here it cannot.
_JSON_OVERRIDES = {"lenient": False, "coerce_one_of": False}
_LARK = re.compile(r"(?m)^\s*(%llguidance\b|start\s*:(?!:=))")
_REASON_CHARACTERS_MAX = 240
_NAME_CHARACTERS_MAX = 80
_TOO_MUCH = "too many"
"""What the library says when a bound is met. It gives texts only: its `stop_reason` is the same for
every failure."""
_OUTSIDE = re.compile(r"Resource '(.*?)' is not present in a registry")
"""What it says of a reference to another document, which nobody fetches."""

STACK_BYTES = 2**29
"""The compiler goes down one level for each rule of a chain; as many as a text can hold must not
overflow its stack, which would end the process. Only what is used of it takes memory."""
_ITEMS_MAX = 20_000
"""Alternatives that are followed at once: 0.02 s of work at a token. The library's own bound is met
by grammars of a few thousand, and only after the first token."""
_LEXER_FUEL_MAX = 200_000
"""Work on regexes at a token: 0.04 s for the worst that were found."""
_LEXER_STATES_MAX = 100_000
"""States of regexes that one completion reaches: 40 MB."""
_SIMPLE = Constraint(ConstraintKind.JSON, '{"properties":{"a":{"const":1}},"required":["a"]}')

Trial = tuple[str | None, int]
"""Why a constraint is refused, if it is, and the memory that it took to compile."""


def set_up(given: Any) -> Callable[[Any], Trial]:  # Any: the JSON of `to_set_up`
    """For the process with limits: a function that tries a constraint."""
    vocabulary = Vocabulary(
        pieces=tuple(bytes.fromhex(piece) for piece in given["pieces"].split(" ")),
        control=frozenset(given["control"]),
        eos_tokens=tuple(given["eos_tokens"]),
        bos_token=given["bos_token"],
    )
    built: list[Any] = []  # Any: the LLTokenizer, once there is one

    def encode(text: str) -> list[int]:
        # Which of its tokens make up a text does not matter here: no text is written.
        return list(built[0].greedy_tokenize(text)) if built else []

    built.append(build_tokenizer(vocabulary, encode))

    def tried(task: Any) -> Trial:  # Any: a kind and a text
        constraint = Constraint(ConstraintKind(task[0]), task[1])
        # What any constraint takes in a fresh process is not this one's.
        compile_grammar(built[0], _SIMPLE)
        before = most_bytes()
        try:
            compile_grammar(built[0], constraint)
        except InvalidRequest as error:
            return str(error), 0
        return None, most_bytes() - before

    return tried


def to_set_up(vocabulary: Vocabulary) -> dict[str, Any]:  # Any: JSON
    """What `set_up` is given."""
    return {
        # One text, and a loop of Python's to make it: other threads have their turns meanwhile.
        "pieces": " ".join(piece.hex() for piece in vocabulary.pieces),
        "control": sorted(vocabulary.control),
        "eos_tokens": list(vocabulary.eos_tokens),
        "bos_token": vocabulary.bos_token,
    }


def build_tokenizer(vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> Any:
    """An LLTokenizer; takes up to a second. Raises InvalidRequest when there can be none."""
    if not vocabulary.eos_tokens:
        raise refusal("this model has no end token, so nothing could end it")
    return LLTokenizer(
        TokenizerWrapper(_Tokens(vocabulary, encode)), eos_token=list(vocabulary.eos_tokens)
    )


class _Tokens:
    """The vocabulary in the shape that llguidance's TokenizerWrapper reads."""

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> None:
        self.eos_token_id = vocabulary.eos_tokens[0]
        self.bos_token_id = vocabulary.bos_token
        self.tokens = list(vocabulary.pieces)
        self.special_token_ids = sorted(vocabulary.control)
        self._encode = encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode(errors="replace"))


def compile_grammar(tokenizer: Any, constraint: Constraint) -> Any:  # Any: LLTokenizer, LLMatcher
    """The constraint at its start, with its first mask computed. To be run on a deep stack.

    Raises InvalidRequest or MemoryError.
    """
    try:
        return _compiled(tokenizer, constraint)
    except (InvalidRequest, MemoryError):
        raise
    except RecursionError:
        raise refusal("it is nested too deeply") from None
    except BaseException as error:  # The library's own panics are no Exception.
        raise refusal(reason_in(str(error))) from None


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
        raise refusal(reason_in(state.get_error()))
    warnings = state.get_grammar_warnings()
    if warnings:
        raise refusal(f"it cannot be enforced to the letter ({reason_in(warnings[0])})")
    # The first mask shows a language without a single text, such as that of `root ::= root`.
    bits = state.compute_bitmask()
    if state.is_error() and _TOO_MUCH in state.get_error().lower():
        raise stopped(state.get_error(), "")
    if state.is_error() or not any(bits):
        raise refusal("no text satisfies it")
    return state


def _grammar(constraint: Constraint) -> str:
    match constraint.kind:
        case ConstraintKind.JSON:
            # The schema `true` takes no options, and says the same as the empty object.
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
            # A terminal, which becomes one automaton: thousands of alternatives of a rule would
            # each be followed on their own, and the parser has a limit to that.
            lark = "start: CHOICE\nCHOICE: " + " | ".join(choices)
            return str(LLMatcher.grammar_from_lark(lark))
        case ConstraintKind.LARK:
            return str(LLMatcher.grammar_from_lark(constraint.text))
        case ConstraintKind.GBNF:
            # A Lark grammar that mentions `::=` in a literal is taken for GBNF by its looks.
            is_lark = _LARK.search(constraint.text)
            lark = constraint.text if is_lark else gbnf_to_lark(constraint.text)
            return str(LLMatcher.grammar_from_lark(lark))
    assert_never(constraint.kind)


def refusal(reason: str) -> InvalidRequest:
    """The error that says why a constraint is refused."""
    return InvalidRequest(f"The constraint is refused: {reason}.", "structured_outputs")


def stopped(error: str, otherwise: str) -> InvalidRequest:
    """The error for a constraint that was given up; `otherwise` says what else it means."""
    reason = reason_in(error)
    if _TOO_MUCH in error.lower():
        return refusal(f"it is too complex ({reason}); make it simpler")
    return refusal(f"{otherwise} ({reason})")


def reason_in(error: str) -> str:
    """The part of llguidance's message that says what is wrong, on one line."""
    outside = _OUTSIDE.search(error)
    if outside is not None:
        name = outside[1].removeprefix("json-schema:///")[:_NAME_CHARACTERS_MAX]
        return f"{name!r} is another document; a $ref leads to a place in the schema itself (#/...)"
    reason = error.split("\n<", 1)[0].split(". Enable", 1)[0].rsplit("error: ", 1)[-1].strip()
    reason = " ".join(reason.split("\n", 1)[0].split()) or "it cannot be compiled"
    return reason[:_REASON_CHARACTERS_MAX].rstrip(".")
