"""Constraints: schemas, regexes, choices and grammars, compiled and followed by llguidance.

`ConstraintCompiler.compile` may be called from any thread; a `Matcher` belongs to the thread that
runs batches. A constraint is text from a stranger: compiling it is bounded in time, in work and in
memory, and what cannot be enforced to the letter is refused, never loosened. The only module that
imports llguidance; the rest of the package works without it.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, assert_never

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark
from numpy.typing import NDArray

from jitney.core import limits
from jitney.core.backend import Vocabulary
from jitney.core.params import CONSTRAINT_REFUSED, Constraint, ConstraintKind
from jitney.errors import InvalidRequest, QueueFull

# Whitespace without end is valid JSON, and small models are fond of it. A space, or a new line and
# its indentation, is all that anybody needs.
_WHITESPACE = r"\x20|\x0D?\x0A[\x20\x09]{0,40}"
_JSON_DEFAULTS = {"whitespace_pattern": _WHITESPACE}
# A schema can ask llguidance to approximate what it cannot enforce; here it cannot.
_JSON_OVERRIDES = {"lenient": False, "coerce_one_of": False}
_LARK = re.compile(r"(?m)^\s*(%llguidance\b|start\s*:(?!:=))")
_REASON_CHARACTERS_MAX = 240

_COMPILES_MAX = 2
"""Compiled at once; the others wait for their turn."""
_CACHED_MAX = 256
_CACHED_CHARACTERS_MAX = 1_000_000
"""Compiled constraints kept, the least recently used leaving first. One takes up to a hundred times
the memory of its text."""
_STACK_BYTES = 2**29
"""The compiler goes down one level for each rule of a chain; as many as a text can hold must not
overflow its stack, which would end the process. Only what is used of it takes memory."""
_ROW_ITEMS_MAX = 50_000
"""Alternatives that are followed at once. The library's own bound is met by grammars of a few
thousand, and only after the first token."""


class Matcher:
    """One completion's place in its constraint. Rebuilt from the tokens alone if it is lost."""

    def __init__(self, state: Any, vocabulary_size: int) -> None:  # Any: an LLMatcher
        self._state = state
        self._vocabulary_size = vocabulary_size
        self._consumed = 0

    def advance_to(self, completion_tokens: Sequence[int]) -> None:
        """Take in what is new of the completion; start over if some of it was taken back."""
        if len(completion_tokens) < self._consumed:
            self._state.reset()
            self._consumed = 0
        fresh = list(completion_tokens[self._consumed :])
        self._consumed = len(completion_tokens)
        if fresh and not self._state.consume_tokens(fresh):
            raise _refusal(f"the completion left it ({_reason(self._state.get_error())})")

    def mask(self) -> NDArray[np.bool_]:
        """True for each token that may follow; the end tokens too when the text may end here."""
        bits = np.frombuffer(self._state.compute_bitmask(), dtype=np.uint8)
        if self._state.is_error():
            raise _refusal(f"it cannot go on ({_reason(self._state.get_error())})")
        return np.unpackbits(bits, count=self._vocabulary_size, bitorder="little").view(np.bool_)


class ConstraintCompiler:
    """Compiles constraints for one vocabulary and keeps the latest ones."""

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> None:
        self._vocabulary = vocabulary
        self._encode = encode
        self._lock = threading.Lock()
        self._tokenizer_lock = threading.Lock()
        self._tokenizer: Any = None  # Any: an LLTokenizer, built when first needed (a second)
        self._compiled: OrderedDict[Constraint, Any] = OrderedDict()  # Any: LLMatcher
        self._turns = threading.BoundedSemaphore(_COMPILES_MAX)

    def compile(self, constraint: Constraint) -> Matcher:
        """A matcher at the start of a completion. Raises InvalidRequest within a bounded time."""
        with self._lock:
            state = self._compiled.get(constraint)
            if state is not None:
                self._compiled.move_to_end(constraint)
        if state is None:
            state = self._compile_in_time(constraint)
            with self._lock:
                self._compiled[constraint] = state
                self._forget()
        return Matcher(state.deep_copy(), len(self._vocabulary.pieces))

    def _forget(self) -> None:
        """Keep to the bounds; the newest one stays whatever its size. Called with the lock held."""
        size = sum(len(constraint.text) for constraint in self._compiled)
        while len(self._compiled) > _CACHED_MAX or (
            len(self._compiled) > 1 and size > _CACHED_CHARACTERS_MAX
        ):
            oldest, _ = self._compiled.popitem(last=False)
            size -= len(oldest.text)

    def _compile_in_time(self, constraint: Constraint) -> Any:  # Any: LLMatcher
        tokenizer = self._built_tokenizer()
        done: Future[Any] = Future()
        limit_s = limits.CONSTRAINT_COMPILE_S_MAX
        # Waiting for a turn is nobody's mistake, and is not counted as time to compile.
        if not self._turns.acquire(timeout=2 * limit_s):
            raise QueueFull("other constraints are being compiled; try again later.", limit_s)

        def work() -> None:
            try:
                done.set_result(_compile(tokenizer, constraint))
            except InvalidRequest as error:
                done.set_exception(error)
            except BaseException as error:
                done.set_exception(_refusal(_reason(str(error))))
            finally:
                self._turns.release()

        self._begin(work)
        try:
            return done.result(limit_s)
        except TimeoutError:
            raise _refusal(
                f"it took longer than {limit_s:g} s to compile; make it simpler"
            ) from None

    def _begin(self, work: Callable[[], None]) -> None:
        # A daemon: native code cannot be interrupted, and must not hold up the end of the process.
        thread = threading.Thread(target=work, name="constraint-compile", daemon=True)
        with self._lock:
            usual = threading.stack_size(_STACK_BYTES)
            try:
                thread.start()
            except RuntimeError:
                self._turns.release()
                raise QueueFull(
                    "there is no memory to compile a constraint; try again later.",
                    limits.CONSTRAINT_COMPILE_S_MAX,
                ) from None
            finally:
                threading.stack_size(usual)

    def _built_tokenizer(self) -> Any:  # Any: LLTokenizer
        with self._tokenizer_lock:
            if self._tokenizer is None:
                if not self._vocabulary.eos_tokens:
                    raise _refusal("this model has no end token, so nothing could end it")
                self._tokenizer = LLTokenizer(
                    TokenizerWrapper(_Tokens(self._vocabulary, self._encode)),
                    eos_token=list(self._vocabulary.eos_tokens),
                )
            return self._tokenizer


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


def _compile(tokenizer: Any, constraint: Constraint) -> Any:  # Any: LLTokenizer, LLMatcher
    try:
        grammar = _grammar(constraint)
    except RecursionError:
        raise _refusal("it is nested too deeply") from None
    bounds = LLParserLimits(
        max_items_in_row=_ROW_ITEMS_MAX, step_max_items=_ROW_ITEMS_MAX, verbose_errors=False
    )
    state = LLMatcher(tokenizer, grammar, log_level=0, limits=bounds)
    if state.is_error():
        raise _refusal(_reason(state.get_error()))
    warnings = state.get_grammar_warnings()
    if warnings:
        raise _refusal(f"it cannot be enforced to the letter ({_reason(warnings[0])})")
    # The first mask shows a language without a single text, such as that of `root ::= root`.
    bits = state.compute_bitmask()
    if state.is_error() and "too many" in state.get_error():
        raise _refusal(f"it is too large ({_reason(state.get_error())})")
    if state.is_error() or not any(bits):
        raise _refusal("no text satisfies it")
    return state


def _grammar(constraint: Constraint) -> str:
    match constraint.kind:
        case ConstraintKind.JSON:
            # The schema `true` takes no options, and says the same as the empty object.
            schema = "{}" if constraint.text.strip() == "true" else constraint.text
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


def _refusal(reason: str) -> InvalidRequest:
    return InvalidRequest(f"{CONSTRAINT_REFUSED}: {reason}.", "structured_outputs")


def _reason(error: str) -> str:
    """The part of llguidance's message that says what is wrong, on one line."""
    reason = error.split("\n<", 1)[0].split(". Enable", 1)[0].rsplit("error: ", 1)[-1].strip()
    reason = " ".join(reason.split("\n", 1)[0].split()) or "it cannot be compiled"
    return reason[:_REASON_CHARACTERS_MAX].rstrip(".")
