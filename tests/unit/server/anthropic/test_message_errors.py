"""Tests of `jitney.server.anthropic.message_errors`: every code has a type of Anthropic's."""

import pytest

from jitney import errors
from jitney.core.sequence import check_prompt_length
from jitney.server.anthropic.message_errors import error_body, is_asked, status_of
from jitney.server.error_object import CODES, Refusal, refusal_of

TYPES = {
    *("invalid_request_error", "authentication_error", "permission_error", "not_found_error"),
    *("request_too_large", "rate_limit_error", "api_error", "overloaded_error", "timeout_error"),
}


@pytest.mark.parametrize("code", CODES)
def test_each_code_has_a_type_that_fits_its_status(code: str) -> None:
    """Guards clients that decide by the type: a fault of ours is never theirs."""
    refusal = Refusal(code, "It is wrong.")
    body = error_body(refusal, "req-1")
    kind, status = body["error"]["type"], status_of(refusal)
    assert kind in TYPES
    assert body["request_id"] == "req-1"
    is_ours = kind in ("api_error", "overloaded_error", "timeout_error")
    assert is_ours == (status >= 499)


@pytest.mark.parametrize(
    ("code", "status"), [("shutting_down", 529), ("deadline_exceeded", 504), ("disk_full", 507)]
)
def test_what_has_another_status_there(code: str, status: int) -> None:
    """Guards clients that try again at 529."""
    assert status_of(Refusal(code, "x")) == status


def test_a_prompt_that_is_too_long_is_told_in_numbers() -> None:
    """Guards compaction: agents read them from the message."""
    with pytest.raises(errors.ContextLengthExceeded) as raised:
        check_prompt_length(5000, 4096)
    message = error_body(refusal_of(raised.value), "")["error"]["message"]
    assert message == "prompt is too long: 5000 tokens > 4096 maximum"


def test_a_message_names_its_field() -> None:
    """Guards callers: there is no other place for it."""
    named = Refusal("invalid_value", "It is wrong.", param="tools")
    assert error_body(named, "")["error"]["message"] == "tools: It is wrong."


def test_paths_of_both_interfaces_are_told_apart_by_a_header() -> None:
    """Guards OpenAI's clients of /v1/models, and every path that only begins alike."""
    version = [(b"anthropic-version", b"2023-06-01")]
    for path in ("/v1/messages", "/v1/messages/batches/x"):
        assert is_asked(path, [])
    for path in ("/v1/models", "/v1/models/a/b"):
        assert is_asked(path, version)
        assert not is_asked(path, [])
    for path in ("/v1/messages2", "/v1/modelsx", "/v1/chat/completions"):
        assert not is_asked(path, version)
