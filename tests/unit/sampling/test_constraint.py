"""Constraints through the real library: what is allowed, what is refused, what is bounded."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from jitney.core import limits
from jitney.core.backend import Vocabulary
from jitney.core.params import Constraint, ConstraintKind
from jitney.errors import InvalidRequest
from jitney.sampling import constraint
from jitney.sampling.constraint import ConstraintCompiler, Matcher
from jitney.sampling.grammar import compile_grammar, failure

END, END_ALSO, CONTROL = 259, 260, 261
VOCABULARY = Vocabulary(
    pieces=(*(bytes([byte]) for byte in range(256)), b"hello", b"ab", b"", b"<e>", b"<f>", b"<c>"),
    control=frozenset({END, END_ALSO, CONTROL}),
    eos_tokens=(END, END_ALSO),
)


def encode(text: str) -> list[int]:
    return list(text.encode())


@pytest.fixture(scope="module")
def compiler() -> Iterator[ConstraintCompiler]:
    with pytest.MonkeyPatch.context() as patch:
        # What is right may be slow on a busy machine; test_constraint_limits has the limits.
        patch.setattr(limits, "CONSTRAINT_COMPILE_S_MAX", 60.0)
        made = ConstraintCompiler(VOCABULARY, encode)
        yield made
        made.close()


def compiled(compiler: ConstraintCompiler, kind: str, text: str) -> Matcher:
    given = Constraint(ConstraintKind(kind), text)
    compiler.prepare(given)
    return compiler.compile(given)


def allowed(matcher: Matcher) -> set[int]:
    return {int(token) for token in np.flatnonzero(matcher.mask())}


def accepts(matcher: Matcher, text: str) -> bool:
    """Whether the text can be written token by token and may end there."""
    tokens = encode(text)
    for count, token in enumerate(tokens):
        matcher.advance_to(tokens[:count])
        if token not in allowed(matcher):
            return False
    matcher.advance_to(tokens)
    return END in allowed(matcher)


def test_the_mask_covers_the_vocabulary_and_ends_only_where_the_text_may(
    compiler: ConstraintCompiler,
) -> None:
    """Guards the end tokens: too early cuts the answer, too late runs on."""
    matcher = compiled(compiler, "choice", '["a", "ab", "\\u00e9"]')
    assert matcher.mask().shape == (len(VOCABULARY.pieces),)
    assert allowed(matcher) == {ord("a"), 257, 0xC3}
    matcher.advance_to([ord("a")])
    assert allowed(matcher) == {ord("b"), END, END_ALSO}
    matcher.advance_to([ord("a"), ord("b")])
    assert allowed(matcher) == {END, END_ALSO}


def test_control_tokens_are_no_text(compiler: ConstraintCompiler) -> None:
    """Guards the boundary between text and structure: `.` does not stand for a control token."""
    assert CONTROL not in allowed(compiled(compiler, "regex", ".+"))


@pytest.mark.parametrize(
    ("kind", "text", "good", "bad"),
    [
        ("json", '{"type":"integer"}', "-12", '"x"'),
        ("json", "true", '{"a": [1, null]}', "x"),
        ("json", '{"type":"string","pattern":"^((a+)+)+$"}', '"aaa"', '"ab"'),
        ("regex", "[0-9]{3}", "123", "12x"),
        ("regex", "^((a+)+)+$", "aaaa", "b"),
        ("choice", '["yes", "\\ud83d\\ude00 \\"no\\""]', '😀 "no"', "y"),
        ("lark", 'start: "a" | "(" start ")"', "((a))", "(a"),
        ("gbnf", 'root ::= root "a" | "b"', "baaa", "ab"),
        ("gbnf", 'root ::= "a"{1,999999999}', "aaa", "b"),
        ("gbnf", '%llguidance {}\nstart: "::=" "x"', "::=x", "x"),
    ],
)
def test_each_language_is_enforced(
    compiler: ConstraintCompiler, kind: str, text: str, good: str, bad: str
) -> None:
    """Guards the translation of every kind of constraint."""
    assert accepts(compiled(compiler, kind, text), good)
    assert not accepts(compiled(compiler, kind, text), bad)


def test_a_schema_makes_every_greedy_text_parse(compiler: ConstraintCompiler) -> None:
    """Guards the point of it all: following any allowed token leads to JSON of the schema."""
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "s": {"enum": ["x", "yy"]}},
        "required": ["n", "s"],
        "additionalProperties": False,
    }
    rng = np.random.default_rng(0)
    for _ in range(10):
        matcher = compiled(compiler, "json", json.dumps(schema))
        tokens: list[int] = []
        while END not in allowed(matcher):
            choices = sorted(allowed(matcher))
            tokens.append(choices[int(rng.integers(len(choices)))])
            matcher.advance_to(tokens)
            assert len(tokens) < 2000
        parsed = json.loads(b"".join(VOCABULARY.pieces[token] for token in tokens))
        assert parsed.keys() == {"n", "s"}
        assert parsed["s"] in ("x", "yy")


DOCUMENT = {"a": [1, {"b": "x  y"}, []], "c": {"d": None}}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(DOCUMENT, separators=(",", ":")),
        json.dumps(DOCUMENT),
        json.dumps(DOCUMENT, indent=2),
        json.dumps(DOCUMENT, indent=4),
        json.dumps(DOCUMENT, indent="\t"),
        json.dumps(DOCUMENT, indent=2).replace("\n", "\r\n"),
    ],
    ids=["compact", "spaced", "indented by 2", "by 4", "by tabs", "with carriage returns"],
)
def test_json_may_be_laid_out_as_people_do(compiler: ConstraintCompiler, text: str) -> None:
    """Guards models that were taught on pretty documents: they may write them as they know."""
    schema = '{"type":"object","properties":{"a":{},"c":{}},"required":["a","c"]}'
    for given in ("true", schema):
        assert accepts(compiled(compiler, "json", given), text)


@pytest.mark.parametrize(
    "space", ["  ", "\t", "\n\n", "\n  \n", " \n", "\r", "\r\n\r\n", "\n" + " " * 21]
)
@pytest.mark.parametrize("form", ["[1,%s2]", "[%s1]", "[1%s]", '{"a":%s1}', '{"a"%s:1}', "{%s}"])
def test_json_takes_no_more_space_than_that(
    compiler: ConstraintCompiler, form: str, space: str
) -> None:
    """Guards answers against space without end: one space, or one new line and its indentation."""
    assert accepts(compiled(compiler, "json", "true"), form % " ")
    assert accepts(compiled(compiler, "json", "true"), form % ("\n" + " " * 20))
    assert not accepts(compiled(compiler, "json", "true"), form % space)


DEEP = 300


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("gbnf", "root ::= (", "Expected"),
        ("gbnf", 'other ::= "a"', "root"),
        ("gbnf", "root ::= root", "no text"),
        ("gbnf", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "deep"),
        ("json", "nonsense", "line 1"),
        ("json", '{"type":"hiccup"}', "hiccup"),
        ("json", '{"type":123}', "type must be"),
        ("json", '{"$ref":"#"}', "no text"),
        ("json", '{"$ref":"http://example.com/x.json"}', "point into the schema itself (#/...)"),
        ("json", '{"type":"string","pattern":"^[a-$("}', "character class"),
        ("json", '{"type":"array","items":' * DEEP + "{}" + "}" * DEEP, "recursion"),
        ("json", '{"not":{"type":"string"}}', "not"),
        ("json", '{"type":"array","uniqueItems":true}', "uniqueItems"),
        ("json", '{"x-guidance":{"lenient":true},"uniqueItems":true}', "uniqueItems"),
        ("json", '{"oneOf":[{"type":"string"},{"minLength":3}]}', "oneOf"),
        ("json", "false", "refused"),
        ("regex", "(", "unclosed"),
        ("regex", "(?=a)b", "look-around"),
        ("lark", 'start: "a" b', "unknown name"),
        ("lark", 'start: %json {"x-guidance":{"lenient":true},"uniqueItems":true}', "unique"),
    ],
)
def test_what_cannot_be_enforced_is_refused_in_one_sentence(
    compiler: ConstraintCompiler, kind: str, text: str, reason: str
) -> None:
    """Guards against a constraint that is quietly loosened, and against unreadable refusals."""
    with pytest.raises(InvalidRequest, match=re.escape(reason)) as caught:
        compiled(compiler, kind, text)
    assert caught.value.parameter == "structured_outputs"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("gbnf", "root ::= ( [x]* )*"),
        ("gbnf", 'root ::= "' + "a" * 100_000 + '"'),
        ("json", json.dumps({"enum": [f"v{index}" for index in range(10_000)]})),
        ("json", '{"type":"string","minLength":1000000000}'),
        ("json", '{"type":"array","minItems":1000000000}'),
        ("regex", "(a{1,1000}){1,1000}"),
        ("regex", "(.*a){50}b"),
        ("regex", "(" * 50_000),
        ("lark", "start: " + "(" * 50_000),
    ],
)
def test_hostile_constraints_are_refused_or_followed(
    compiler: ConstraintCompiler, kind: str, text: str
) -> None:
    """Guards the process: none of these may crash it, hang it, or allow everything."""
    try:
        matcher = compiled(compiler, kind, text)
    except InvalidRequest:
        return
    assert 0 < matcher.mask().sum() < len(VOCABULARY.pieces)


def test_thousands_of_choices_are_followed_to_the_end(compiler: ConstraintCompiler) -> None:
    """Guards the parser's limit on alternatives, which is met at the first token and not before."""
    choices = json.dumps([f"choice number {index}" for index in range(10_000)])
    assert accepts(compiled(compiler, "choice", choices), "choice number 77")
    assert accepts(compiled(compiler, "choice", choices), "choice number 7777")
    assert not accepts(compiled(compiler, "choice", choices), "choice number 77777")


def test_thousands_of_alternatives_are_followed(compiler: ConstraintCompiler) -> None:
    """Guards the same limit in a grammar, where alternatives are rules."""
    assert accepts(compiled(compiler, "gbnf", "root ::= " + '"a" | ' * 3000 + '"b"'), "a")


def chained_refs(count: int) -> str:
    defs: dict[str, Any] = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(count)}
    defs[f"d{count}"] = {"type": "integer"}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": defs})


def chained_rules(count: int) -> str:
    return "start: r0\n" + "".join(f"r{at}: r{at + 1}\n" for at in range(count)) + f'r{count}: "7"'


@pytest.mark.parametrize(
    ("kind", "text"), [("lark", chained_rules(10_000)), ("json", chained_refs(5_000))]
)
def test_long_chains_of_rules_do_not_end_the_process(
    compiler: ConstraintCompiler, kind: str, text: str
) -> None:
    """Guards the stack of native code, which goes down one level for each rule."""
    assert accepts(compiled(compiler, kind, text), "7")


def test_large_constraints_leave_sooner(
    compiler: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards memory: a few large ones take as much as many small ones."""
    monkeypatch.setattr(constraint, "_CACHED_BYTES_MAX", 10**6)
    for letter in "abc":
        compiled(compiler, "json", json.dumps({"enum": [f"{letter}{at}" for at in range(10_000)]}))
    assert [each.text[:12] for each in compiler._compiled] == ['{"enum": ["c']


def test_a_matcher_is_rebuilt_from_the_tokens_alone(compiler: ConstraintCompiler) -> None:
    """Guards preemption and crashes: one leap, many steps and a step back agree."""
    tokens = encode("12:34")
    stepped = compiled(compiler, "regex", "[0-9]{2}:[0-9]{2}(:[0-9]{2})?")
    for count in range(len(tokens) + 1):
        stepped.advance_to(tokens[:count])
    leapt = compiled(compiler, "regex", "[0-9]{2}:[0-9]{2}(:[0-9]{2})?")
    leapt.advance_to(tokens)
    assert allowed(stepped) == allowed(leapt) == {ord(":"), END, END_ALSO}
    stepped.advance_to(tokens[:2])
    assert allowed(stepped) == {ord(":")}


def test_matchers_of_one_constraint_do_not_share_their_place(compiler: ConstraintCompiler) -> None:
    """Guards the cache: it must hand out copies."""
    first, second = (compiled(compiler, "regex", "xy") for _ in range(2))
    first.advance_to([ord("x")])
    assert allowed(first) == {ord("y")}
    assert allowed(second) == {ord("x")}


def test_tokens_that_leave_the_constraint_are_an_error(compiler: ConstraintCompiler) -> None:
    """Guards against a matcher that goes on in silence from a place it cannot be in."""
    matcher = compiled(compiler, "regex", "xy")
    with pytest.raises(InvalidRequest, match="left it"):
        matcher.advance_to([ord("z")])


def test_what_is_too_complex_to_follow_is_to_be_made_simpler(compiler: ConstraintCompiler) -> None:
    """Guards the author of a regex: nothing of the completion was to blame."""
    matcher = compiled(compiler, "regex", "(?:a?){500}a{500}")
    with pytest.raises(InvalidRequest, match=r"it is too complex \(.*\); make it simpler\."):
        matcher.advance_to([ord("a")])


def test_a_model_without_an_end_token_takes_no_constraint() -> None:
    """Guards the library, which needs one."""
    endless = Vocabulary(pieces=(b"a",), control=frozenset(), eos_tokens=())
    with pytest.raises(InvalidRequest, match="no end token"):
        compiled(ConstraintCompiler(endless, encode), "regex", "a")


def test_the_least_recently_used_constraints_leave(
    compiler: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards memory: more constraints than are kept push out the oldest, and those only."""
    compile_one, asked = compile_grammar, list[str]()

    def noted(tokenizer: Any, given: Constraint) -> Any:
        asked.append(given.text)
        return compile_one(tokenizer, given)

    monkeypatch.setattr(constraint, "compile_grammar", noted)
    patterns = [f"kept{number}" for number in range(constraint._CACHED_MAX + 1)]
    first, second, *rest = patterns
    for pattern in (first, second, *rest[:-1]):
        compiled(compiler, "regex", pattern)
    assert asked == patterns[:-1]
    # All are kept; the first is used once more, so that the second is now the oldest.
    compiled(compiler, "regex", first)
    assert asked == patterns[:-1]
    compiled(compiler, "regex", rest[-1])
    for pattern in (first, *rest):
        compiled(compiler, "regex", pattern)
    assert asked == patterns
    assert allowed(compiled(compiler, "regex", second)) == {ord("k")}
    assert asked == [*patterns, second]


@pytest.mark.timeout(240)
def test_many_threads_compile_many_constraints(compiler: ConstraintCompiler) -> None:
    """Guards the lock: many constraints at once, some of them the same."""
    words = [str(number) for number in range(120) for _ in range(2)]

    def first(word: str) -> set[int]:
        return allowed(compiled(compiler, "choice", json.dumps([word])))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(first, words)) == [{ord(word[0])} for word in words]


def test_a_bound_is_known_however_the_library_spells_it() -> None:
    """Guards the same author: some of the library's sentences begin with a capital letter."""
    error = failure(
        "parser error: Too many items (limit 20000; ff_tokens)", "the completion left it"
    )
    assert "it is too complex" in str(error)
