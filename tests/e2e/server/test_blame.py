"""Errors name a field that the caller sent, in `param` and in words."""

from typing import Any

import pytest

from tests.e2e.server.harness import Running, check_error

SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("unwelcome", [{"ignore_eos": True}, {"min_tokens": 2}])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": SCHEMA}, "response_format"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tools"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
    ],
)
def test_what_decides_the_form_of_a_chat_is_blamed_by_its_own_name(
    server: Running, fields: dict[str, Any], param: str, unwelcome: dict[str, Any]
) -> None:
    """Guards the caller's time: a field that was not sent cannot be mended."""
    error = check_error(server.chat(**fields, **unwelcome), 400, param)
    assert error["message"].startswith(f"{param} ")
    assert ("structured_outputs" in error["message"]) == (param == "structured_outputs")
