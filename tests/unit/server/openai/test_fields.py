"""Tests of `jitney.server.openai.fields` and of the page that is made from it."""

import ast
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from jitney.server.openai import fields
from jitney.server.openai.bodies import CompletionBody, Strict
from jitney.server.openai.chat_body import ChatBody, TokenizeBody
from jitney.server.openai.error_object import CODES
from jitney.server.openai.fields import (
    CHAT,
    COMPLETION,
    TOKENIZE,
    Accepted,
    Field,
    Refused,
    Supported,
)
from jitney.server.openai.reference_page import api_reference
from jitney.server.openai.translate import _PASSED_ON

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "reference" / "api.md"
SOURCE = ROOT / "src" / "jitney" / "server"


def published(*kinds: Any) -> set[str]:
    return {name for kind in kinds for name in get_type_hints(kind)}


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (
            COMPLETION,
            published(
                completion_create_params.CompletionCreateParamsNonStreaming,
                completion_create_params.CompletionCreateParamsStreaming,
            ),
        ),
        (
            CHAT,
            published(
                chat_create_params.CompletionCreateParamsNonStreaming,
                chat_create_params.CompletionCreateParamsStreaming,
            ),
        ),
    ],
    ids=["completions", "chat"],
)
def test_every_published_field_is_in_the_table(table: dict[str, Field], names: set[str]) -> None:
    """Guards the promise: OpenAI's client knows no field that we say nothing about."""
    assert names - set(table) == set()
    assert len(names) > 10


@pytest.mark.parametrize(
    ("table", "body"),
    [(COMPLETION, CompletionBody), (CHAT, ChatBody), (TOKENIZE, TokenizeBody)],
    ids=["completions", "chat", "tokenize"],
)
def test_the_table_is_what_the_bodies_take(table: dict[str, Field], body: type[Strict]) -> None:
    """Guards the table against growing old: what is not refused is a field of the body."""
    taken = {name for name, field in table.items() if not isinstance(field, Refused)}
    assert taken == set(body.model_fields)


def test_supported_fields_are_used_and_accepted_ones_are_not() -> None:
    """Guards the word on the page: a field that nothing reads cannot be called supported."""
    used = set(_PASSED_ON)
    for file in SOURCE.rglob("*.py"):
        used |= {
            node.attr
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "body"
        }
    for table in (CHAT, COMPLETION, TOKENIZE):
        for name, field in table.items():
            if isinstance(field, Supported | Accepted):
                assert (name in used) == isinstance(field, Supported), name


def test_every_field_has_a_row_on_the_page() -> None:
    """Guards the table that callers read: status, and meaning or hint, of every field."""
    page = api_reference()
    words = {Supported: "supported", Accepted: "accepted, without effect", Refused: "refused"}
    for table in (CHAT, COMPLETION, TOKENIZE):
        for name, field in table.items():
            assert f"| `{name}` | {words[type(field)]} | " in page, name


def test_a_field_that_asks_for_nothing_passes() -> None:
    """Guards clients that send defaults: false and null ask for nothing, and 0 is not false."""
    assert fields.refusal_among({"suffix": "", "echo": None}, COMPLETION) is None
    assert fields.refusal_among({"suffix": False}, COMPLETION) == "suffix"
    assert fields.refusal_among({"suffix": "x"}, COMPLETION) == "suffix"
    assert fields.refusal_among({"modalities": ["text"]}, CHAT) is None
    assert fields.refusal_among({"modalities": ["audio"]}, CHAT) == "modalities"
    assert fields.without_refused({"modalities": ["text"], "n": 1}, CHAT) == {"n": 1}


def test_reasons_are_parts_of_a_sentence() -> None:
    """Guards the messages that they are put into."""
    for table in (CHAT, COMPLETION, TOKENIZE):
        for name, field in table.items():
            if isinstance(field, Refused):
                assert field.reason[0].islower(), name
                assert not field.reason.endswith("."), name
            else:
                assert field.note.endswith("."), name


def test_the_committed_page_is_what_the_source_makes() -> None:
    """Guards the page against growing old; `make docs` writes it."""
    assert PAGE.read_text(encoding="utf-8") == api_reference()


def test_every_code_of_a_refusal_is_on_the_page() -> None:
    """Guards the list of codes, which programs match on: none is missing, and none is unused."""
    page = api_reference()
    assert [code for code in CODES if f"`{code}`" not in page] == []
    text = "".join(file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py"))
    assert set(re.findall(r'(?:Refusal|ErrorReply)\(\s*"([a-z_]+)"', text)) <= set(CODES)
    assert [code for code in CODES if text.count(f'"{code}"') < 2] == []
