"""Tests of `error_object`: every class of error has its status, and none tells secrets."""

import inspect

import pytest

from jitney import errors
from jitney.server.error_object import (
    CODES,
    TABLE,
    refusal_for,
    refusal_of,
    retry_headers,
    sentence,
)


def all_errors() -> list[type[errors.JitneyError]]:
    return [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.JitneyError)
    ]


def test_every_class_of_error_is_in_the_table() -> None:
    """Guards a new class: it must be decided what a caller is told."""
    assert set(all_errors()) == set(TABLE)


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_the_request_is_blamed_for_its_own_errors_only(kind: type[errors.JitneyError]) -> None:
    """Guards clients that try again after 5xx: bad input is never one."""
    status, _ = CODES[TABLE[kind].code]
    if issubclass(kind, errors.RequestError):
        assert 400 <= status < 500
    elif issubclass(kind, errors.EngineError):
        assert status >= 500


def test_messages_about_our_side_stay_here() -> None:
    """Guards what only the log may know: files, addresses."""
    for kind in (errors.BackendFailed, errors.BackendCrashed, errors.ConfigError):
        error = kind("it broke in /secret/path.gguf at 0xdeadbeef")
        refusal = refusal_of(error)
        assert refusal.log_message == str(error)
        assert "secret" not in refusal.message


def test_messages_about_a_request_are_passed_on() -> None:
    """Guards the caller: it learns what to mend, and which field."""
    refusal = refusal_of(errors.InvalidRequest("n must be 1 to 16.", "n"))
    assert (refusal.status, refusal.param) == (400, "n")
    assert refusal.body["error"]["message"] == "n must be 1 to 16."


def test_a_prompt_that_is_too_long_is_told_in_the_words_that_programs_look_for() -> None:
    """Guards clients that know this error by OpenAI's words and not by the code, as LiteLLM does:
    to them it would be any bad request, and they would not try a model with more room."""
    long = refusal_of(errors.ContextLengthExceeded("the prompt is long.", "prompt"))
    assert long.code == "context_length_exceeded"
    assert long.message.startswith("This model's maximum context length is ")
    assert long.message.endswith(": the prompt is long.")


def test_a_full_queue_says_when_to_come_back() -> None:
    """Guards the computed time: seconds for HTTP, milliseconds for OpenAI's clients."""
    refusal = refusal_of(errors.QueueFull("full.", 2.3))
    assert (refusal.status, refusal.code) == (429, "rate_limit_exceeded")
    assert refusal.headers == {"retry-after": "3", "retry-after-ms": "2300"}
    assert retry_headers(1e9)["retry-after"] == "600"
    assert retry_headers(0.0)["retry-after"] == "1"


def test_sentences_begin_with_a_capital_unless_with_a_name() -> None:
    """Guards names of fields: max_tokens is not Max_tokens."""
    assert sentence("the prompt is empty.") == "The prompt is empty."
    assert sentence("max_tokens is wrong.") == "max_tokens is wrong."
    assert sentence("messages[0] is wrong.") == "messages[0] is wrong."


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_want_of_memory_is_told_as_such(error: Exception) -> None:
    """Guards a crowded machine: callers are to come back, and nobody is to look for a bug."""
    refusal = refusal_for(error, "req-1")
    assert (refusal.status, refusal.code) == (503, "no_room")
    assert refusal.headers["retry-after"] == "5"
