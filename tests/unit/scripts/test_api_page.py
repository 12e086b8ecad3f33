"""Tests of the page of the HTTP interface, and of the fields of bodies that it is made from."""

import ast
import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from jitney.core.params import PARAMETERS
from jitney.server.anthropic.message_body import MessagesBody
from jitney.server.batches.batch_routes import BatchBody
from jitney.server.error_object import CODES, Refusal
from jitney.server.openai.bodies import PASSED_ON, CompletionBody, Strict
from jitney.server.openai.chat_body import ChatBody, TokenizeBody
from jitney.server.openai.check_body import check_body
from scripts.api_page import api_reference

BODIES: tuple[type[Strict], ...] = (
    *(ChatBody, CompletionBody, TokenizeBody, BatchBody),
    MessagesBody,
)
ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "api.md"
SOURCE = ROOT / "src" / "jitney" / "server"


def published(*kinds: Any) -> set[str]:
    return {name for kind in kinds for name in get_type_hints(kind)}


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (
            CompletionBody,
            published(
                completion_create_params.CompletionCreateParamsNonStreaming,
                completion_create_params.CompletionCreateParamsStreaming,
            ),
        ),
        (
            ChatBody,
            published(
                chat_create_params.CompletionCreateParamsNonStreaming,
                chat_create_params.CompletionCreateParamsStreaming,
            ),
        ),
    ],
    ids=["completions", "chat"],
)
def test_every_published_field_is_known(body: type[Strict], names: set[str]) -> None:
    """Guards the promise: OpenAI's client knows no field that we say nothing about."""
    assert names - set(body.model_fields) - set(body.refused) == set()
    assert len(names) > 10


@pytest.mark.parametrize("body", BODIES)
def test_a_field_is_taken_or_refused(body: type[Strict]) -> None:
    """Guards the tables of a body: what it refuses, or takes without effect, is what it says."""
    assert set(body.refused) & set(body.model_fields) == set()
    assert body.without_effect <= set(body.model_fields)


def test_a_sampling_parameter_is_a_field_of_both() -> None:
    """Guards the table of parameters: what stands in it can be asked for, or is refused."""
    for body in (CompletionBody, ChatBody):
        assert set(PARAMETERS) <= {*body.model_fields, *body.refused}


def test_supported_fields_are_used_and_accepted_ones_are_not() -> None:
    """Guards the word on the page: a field that nothing reads cannot be called supported."""
    names = ("batches", "anthropic", "openai_responses")
    batches, anthropic, responses = (set((SOURCE / name).rglob("*.py")) for name in names)
    own = {BatchBody: batches, MessagesBody: anthropic}
    for body in BODIES:
        used = set(PASSED_ON)
        for file in own.get(body, set(SOURCE.rglob("*.py")) - batches - anthropic - responses):
            used |= {
                node.attr
                for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
                if isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "body"
            }
        for name in body.model_fields:
            assert (name in used) == (name not in body.without_effect), name


def test_every_field_has_a_row_on_the_page() -> None:
    """Guards the table that callers read: status, and meaning or hint, of every field."""
    page = api_reference()
    for body in BODIES:
        for name in body.model_fields:
            word = "accepted, without effect" if name in body.without_effect else "supported"
            assert f"| `{name}` | {word} | " in page, name
        for name, field in {**body.refused, **body.ignored_parts}.items():
            word = "ignored" if field.is_harmless else "refused"
            assert f"| `{name}` | {word} | " in page, name


def accepts(body: type[Strict], **given: Any) -> bool:
    """Whether no field of these is refused by name."""
    try:
        check_body(json.dumps(given).encode(), body)
    except Refusal as refusal:
        return refusal.code != "unsupported_parameter"
    return True


def test_a_field_that_asks_for_nothing_passes() -> None:
    """Guards clients that send defaults: false and null ask for nothing, and 0 is not false."""
    assert accepts(CompletionBody, prompt="x", suffix="", echo=None)
    assert not accepts(CompletionBody, prompt="x", suffix=False)
    assert not accepts(CompletionBody, prompt="x", suffix="x")
    assert not accepts(CompletionBody, prompt="x", use_beam_search=0)
    assert accepts(ChatBody, modalities=["text"])
    assert not accepts(ChatBody, modalities=["audio"])


def test_what_asks_for_nothing_is_left_out() -> None:
    """Guards the body behind it, which has no such field."""
    content = json.dumps({"prompt": "x", "suffix": "", "n": 1}).encode()
    assert check_body(content, CompletionBody).model_fields_set == {"prompt", "n"}


def test_reasons_are_parts_of_a_sentence() -> None:
    """Guards the messages that they are put into."""
    for body in BODIES:
        for name, refused in body.refused.items():
            assert refused.reason[0].islower(), name
            assert not refused.reason.endswith("."), name
        for name, field in body.model_fields.items():
            assert (field.description or "").endswith("."), name


def test_the_committed_page_is_what_the_source_makes() -> None:
    """Guards the page against growing old; `make docs` writes it."""
    assert PAGE.read_text(encoding="utf-8") == api_reference()


def test_every_code_of_a_refusal_is_on_the_page() -> None:
    """Guards the list of codes, which programs match on: none is missing, and none is unused."""
    page = api_reference()
    assert [code for code in CODES if f"`{code}`" not in page] == []
    files = [*SOURCE.rglob("*.py")]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    assert set(re.findall(r'(?:Refusal|ErrorReply)\(\s*"([a-z_]+)"', text)) <= set(CODES)
    before, _, table = text.partition("\n_CODES: ")
    elsewhere = before + table.partition("\n}\n")[2]
    assert [code for code in CODES if f'"{code}"' not in elsewhere] == []
