"""Tests of `jitney.server.openai.translate`: scopes, priorities, and logprobs in both shapes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.core.batch import TokenLogprob
from jitney.core.request import Priority
from jitney.server.openai.logprobs_reply import LOWEST, LegacyLogprobs, chat_logprobs, token_name
from jitney.server.openai.translate import allowed_priority, cache_scope
from jitney.tokenizers.byte_tokenizer import byte_vocabulary, encode

VOCABULARY = byte_vocabulary()


@given(st.text(), st.text(), st.text(), st.text())
def test_scopes_are_equal_only_for_equal_pairs(a: str, b: str, c: str, d: str) -> None:
    """Guards tenants: no salt can be chosen that looks like another key's."""
    assert (cache_scope(a, b) == cache_scope(c, d)) == ((a, b) == (c, d))
    assert len(cache_scope(a, b)) <= 64


@pytest.mark.parametrize(
    ("given_as", "priority"),
    [
        (None, Priority.NORMAL),
        ("low", Priority.LOW),
        ("critical", Priority.CRITICAL),
        (0, Priority.NORMAL),
        (-1, Priority.HIGH),
        (-2, Priority.CRITICAL),
        (-100, Priority.CRITICAL),
        (1, Priority.LOW),
        (100, Priority.LOW),
    ],
)
def test_priorities_by_name_and_by_vllms_numbers(
    given_as: str | int | None, priority: Priority
) -> None:
    """Guards the sign: to vLLM the lower number is served first."""
    assert allowed_priority(given_as, None) is priority


def test_tokens_of_half_a_character_have_names_of_their_own() -> None:
    """Guards dictionaries by token: two halves must not have one name."""
    first, second = "é".encode()
    assert token_name(first, VOCABULARY) == "bytes:\\xc3"
    assert token_name(second, VOCABULARY) == "bytes:\\xa9"
    assert token_name(ord("a"), VOCABULARY) == "a"


def test_offsets_are_those_of_characters_in_the_text() -> None:
    """Guards tools that cut the text by them."""
    legacy = LegacyLogprobs(VOCABULARY, skip_special=True)
    tokens = encode("aé the", special=False)
    logprobs = [None, *(TokenLogprob(token, -1.0) for token in tokens[1:])]
    shaped = legacy.shaped(tokens, logprobs)
    assert shaped["text_offset"] == [0, 1, 1, 2]
    assert shaped["token_logprobs"] == [None, -1.0, -1.0, -1.0]
    assert legacy.shaped([ord("z")], [TokenLogprob(ord("z"), float("-inf"))]) == {
        "tokens": ["z"],
        "token_logprobs": [LOWEST],
        "top_logprobs": [{"z": LOWEST}],
        "text_offset": [6],
    }


def test_chat_logprobs_carry_bytes() -> None:
    """Guards clients that put characters together from tokens."""
    first = "é".encode()[0]
    shaped = chat_logprobs([TokenLogprob(first, -0.5, ((first, -0.5), (65, -2.0)))], VOCABULARY)
    (token,) = shaped["content"]
    assert token["bytes"] == [first]
    assert token["token"] == "\ufffd"
    assert [each["token"] for each in token["top_logprobs"]] == ["\ufffd", "A"]
