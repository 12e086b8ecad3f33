"""What a caller may ask, and the sentence that refuses the rest."""

import json
import math
from dataclasses import fields
from typing import Any

import pytest

from jitney.core import limits
from jitney.core.params import PARAMETERS, ConstraintKind, SamplingParams, StructuredOutputsParams
from jitney.errors import InvalidRequest

# Any: values of every wrong type, as a caller might send them.
BAD: list[tuple[str, Any]] = [
    ("n", 0),
    ("n", True),
    ("n", 1.0),
    ("n", limits.COMPLETIONS_MAX + 1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", -0.1),
    ("temperature", "hot"),
    ("temperature", True),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("top_p", math.nan),
    ("top_k", -2),
    ("top_k", False),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", math.inf),
    ("frequency_penalty", 2.1),
    ("presence_penalty", math.nan),
    ("seed", 2**63),
    ("seed", 1.5),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("max_tokens", 0),
    ("max_tokens", 2**31),
    ("logprobs", limits.LOGPROBS_MAX + 1),
    ("logprobs", True),
    ("prompt_logprobs", -1),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {1: math.nan}),
    ("logit_bias", {1: 101}),
    ("logit_bias", {"1": 1.0}),
    ("logit_bias", [(1, 1.0)]),
    ("stop", ""),
    ("stop", ["fine", ""]),
    ("stop", [1]),
    ("stop", ["x"] * (limits.STOP_STRINGS_MAX + 1)),
    ("stop", "x" * (limits.STOP_STRING_CHARACTERS_MAX + 1)),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [True]),
    ("stop_token_ids", list(range(limits.STOP_TOKENS_MAX + 1))),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_refused_by_name(name: str, value: object) -> None:
    """Guards native code and other callers: nothing out of range passes, NaN and bools included."""
    with pytest.raises(InvalidRequest) as refusal:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert refusal.value.parameter is not None
    assert refusal.value.parameter.startswith(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", limits.TEMPERATURE_MAX),
        ("top_k", -1),
        ("top_p", 1),
        ("seed", -(2**63)),
        ("max_tokens", None),
        ("logprobs", 0),
        ("logit_bias", {0: -100, 5: 100.0}),
        ("stop", ("a", "b")),
    ],
)
def test_the_edges_are_allowed(name: str, value: object) -> None:
    """Guards against a bound that is off by one."""
    params = SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert getattr(params, name) == value


def test_the_table_has_every_parameter() -> None:
    """Guards those who go through the table: a parameter without a row is in no body and no page.

    Numbers and switches have their own type there, because bodies take it from the table.
    """
    given = {each.name: each for each in fields(SamplingParams) if each.init}
    assert set(PARAMETERS) == set(given)
    for name, row in PARAMETERS.items():
        assert row.about.endswith("."), name
        if row.lowest is not None or row.type is bool:
            assert row.type == given[name].type, name


def test_stop_strings_have_one_form() -> None:
    """Guards everything below: one string, a list and nothing all become a tuple."""
    assert SamplingParams(stop="x").stop_strings == ("x",)
    assert SamplingParams(stop=["x", "y"]).stop_strings == ("x", "y")
    assert SamplingParams().stop_strings == ()


def test_a_constraint_has_one_form() -> None:
    """Guards the seam: whatever the caller wrote, the core carries a kind and a text."""
    made = StructuredOutputsParams(choice=["a", "b"]).constraint()
    assert (made.kind, json.loads(made.text)) == (ConstraintKind.CHOICE, ["a", "b"])
    made = StructuredOutputsParams(json={"type": "object"}).constraint()
    assert (made.kind, json.loads(made.text)) == (ConstraintKind.JSON, {"type": "object"})
    assert StructuredOutputsParams(grammar='root ::= "a"').constraint().kind is ConstraintKind.GBNF
    assert StructuredOutputsParams(grammar='start: "a"').constraint().kind is ConstraintKind.LARK


@pytest.mark.parametrize(
    "given", [{}, {"regex": "a", "choice": ["b"]}, {"choice": []}, {"choice": [""]}, {"regex": ""}]
)
def test_a_constraint_is_exactly_one_thing(given: dict[str, Any]) -> None:
    """Guards against a constraint that is silently the first of two, or none at all."""
    with pytest.raises(InvalidRequest):
        StructuredOutputsParams(**given)


def test_a_mistake_in_a_grammar_names_its_field() -> None:
    """Guards the caller, who wrote `grammar`: which language it is in is for us to find out."""
    with pytest.raises(InvalidRequest, match=r"^grammar takes a non-empty string\.$"):
        StructuredOutputsParams(grammar="")
    with pytest.raises(InvalidRequest, match=r"^The grammar constraint has"):
        StructuredOutputsParams(grammar="root ::= " + " " * limits.CONSTRAINT_CHARACTERS_MAX)


@pytest.mark.parametrize("other", [{"min_tokens": 1}, {"ignore_eos": True}])
def test_a_constraint_alone_decides_the_end(other: dict[str, Any]) -> None:
    """Guards against an end token that the constraint wants and the sampling forbids."""
    with pytest.raises(InvalidRequest):
        SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"), **other)
