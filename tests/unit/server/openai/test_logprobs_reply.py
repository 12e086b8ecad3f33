"""Tests of `jitney.server.openai.logprobs_reply`: logprobs in both forms."""

from jitney.core.batch import LOGPROB_MIN, TokenLogprob
from jitney.server.openai.logprobs_reply import LegacyLogprobs, chat_logprobs, token_name
from jitney.tokenizers.byte_tokenizer import byte_vocabulary, encode

VOCABULARY = byte_vocabulary()


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
        "token_logprobs": [LOGPROB_MIN],
        "top_logprobs": [{"z": LOGPROB_MIN}],
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
