"""Every row of the tables of fields: a server does what the reference page says."""

from typing import Any

import pytest

from jitney.config import ServeSettings
from jitney.server.openai.bodies import CompletionBody, Strict
from jitney.server.openai.chat_body import ChatBody, TokenizeBody
from jitney.server.openai.refused_fields import IGNORED as IGNORED_BY_BOTH
from jitney.server.openai.refused_fields import IGNORED_PARTS, OF_CHAT, RefusedField
from tests.e2e.server.harness import MODEL, Running, World, check_error, running

MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
TABLES: dict[str, tuple[type[Strict], dict[str, Any]]] = {
    "/v1/chat/completions": (ChatBody, {"messages": MESSAGES, "temperature": 0, "max_tokens": 4}),
    "/v1/completions": (CompletionBody, {"prompt": "a", "temperature": 0, "max_tokens": 4}),
    "/tokenize": (TokenizeBody, {"messages": MESSAGES}),
}
"""For each path its kind of body, and one to which a field is added."""

STRANGE = {"strange": [[None]]}
"""No field's value: whoever reads one refuses it."""

VALUES: dict[str, Any] = {
    **dict.fromkeys(("ignore_eos", "include_stop_str_in_output", "stream", "echo", "store"), True),
    **dict.fromkeys(("skip_special_tokens", "cache_prompt", "parallel_tool_calls"), False),
    **dict.fromkeys(("add_generation_prompt", "add_special_tokens"), False),
    **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty"), 0.5),
    **dict.fromkeys(("repetition_penalty", "repeat_penalty"), 1.5),
    **dict.fromkeys(("n", "top_logprobs"), 2),
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), 3),
    **dict.fromkeys(("min_tokens", "best_of"), 1),
    **dict.fromkeys(("top_k", "seed"), 5),
    **dict.fromkeys(("stop", "user", "cache_salt", "request_id"), "x"),
    **dict.fromkeys(("prompt", "prompt_cache_key", "safety_identifier"), "b"),
    "model": "fake",
    "min_p": 0.1,
    "logit_bias": {"65": 1},
    "stop_token_ids": [5],
    "structured_outputs": {"choice": ["a", "b"]},
    "stream_options": {"include_usage": True},
    "priority": "high",
    "deadline_ms": 60_000,
    "messages": MESSAGES,
    "response_format": {"type": "json_object"},
    "tools": TOOLS,
    "tool_choice": "none",
    "continue_final_message": True,
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning_effort": "low",
    "reasoning_format": "none",
    "thinking_token_budget": 8,
    "metadata": {"k": "v"},
}
"""A value of each field that is taken."""

WITH: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "tool_choice": {"tools": TOOLS},
    "parallel_tool_calls": {"tools": TOOLS},
    "add_special_tokens": {"messages": None, "prompt": "a"},
    "prompt": {"messages": None},
    "max_completion_tokens": {"max_tokens": None},
}
"""Fields that need, or exclude, another one."""

TAKEN = [
    (path, name, name in kind.without_effect)
    for path, (kind, _) in TABLES.items()
    for name in kind.model_fields
]
REFUSED = [
    (path, name, field)
    for path, (kind, _) in TABLES.items()
    for name, field in kind.refused.items()
    if not field.is_harmless
]
IGNORED = [
    (path, name)
    for path, (kind, _) in TABLES.items()
    for name, field in kind.refused.items()
    if field.is_harmless
]
FULL: dict[str, Any] = {
    **dict.fromkeys(OF_CHAT.keys() & {*IGNORED_BY_BOTH, "prediction"}, STRANGE),
    "messages": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "hi", "cache_control": STRANGE}],
            "cache_control": STRANGE,
            "copilot_cache_control": STRANGE,
        },
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "1",
                    "index": 0,
                    "function": {"name": "f", "arguments": "{}", "parsed_arguments": STRANGE},
                }
            ],
            "parsed": STRANGE,
            "provider_specific_fields": STRANGE,
        },
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ],
    "tools": [{**TOOLS[0], "cache_control": STRANGE, "copilot_mcp_server_name": "x"}],
}
"""A body with everything in it that is ignored."""


def plain(value: Any) -> Any:
    """The same without that."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    names = {path.split(".")[-1] for path in (*OF_CHAT, *IGNORED_PARTS) if path != "prompt"}
    return {name: plain(each) for name, each in value.items() if name not in names}


def asked(path: str, name: str) -> dict[str, Any]:
    value = VALUES.get(name, True if path == "/v1/chat/completions" else 1)
    return {**TABLES[path][1], **WITH.get(name, {}), name: value}


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, name, is_idle in TAKEN if not is_idle]
)
def test_what_is_supported_is_taken_and_read(server: Running, path: str, name: str) -> None:
    """Guards the page: such a field is answered, and not passed over whatever it holds."""
    body = asked(path, name)
    assert server.post(path, body).status_code == 200
    error = check_error(server.post(path, {**body, name: STRANGE}), 400)
    assert error["param"].startswith(name)


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, name, is_idle in TAKEN if is_idle]
)
def test_what_has_no_effect_has_none_and_is_read(server: Running, path: str, name: str) -> None:
    """Guards both halves of the promise: the same answer, and no value of any kind or size."""
    plain, given = (server.post(path, body).json() for body in (TABLES[path][1], asked(path, name)))
    assert given["choices"] == plain["choices"]
    assert given["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    error = check_error(server.post(path, {**asked(path, name), name: STRANGE}), 400)
    assert error["param"].startswith(name)


@pytest.mark.parametrize(("path", "name", "field"), REFUSED)
def test_what_is_refused_is_refused_with_its_reason(
    server: Running, path: str, name: str, field: RefusedField
) -> None:
    """Guards the sentence on the page, which callers get; what asks for nothing passes."""
    body = TABLES[path][1]
    error = check_error(server.post(path, {**body, name: STRANGE}), 400, name)
    assert error["message"] == f"{name} is not supported: {field.reason}."
    for value in (None, *field.allows):
        assert server.post(path, {**body, name: value}).status_code == 200, value


@pytest.mark.parametrize(("path", "name"), IGNORED)
def test_what_is_ignored_is_named_in_a_header(server: Running, path: str, name: str) -> None:
    """Guards both sides: the answer is the same, and the caller can see what was left out."""
    body = TABLES[path][1]
    usual, given = server.post(path, body), server.post(path, {**body, name: STRANGE})
    assert given.json()["choices"] == usual.json()["choices"]
    assert given.headers["x-jitney-ignored"] == name
    assert "x-jitney-ignored" not in server.post(path, {**body, name: None}).headers


@pytest.mark.parametrize("streams", [False, True])
def test_the_header_holds_names_of_the_tables_alone(server: Running, streams: bool) -> None:
    """Guards the header against a caller's text, and its length: the longest one is short."""
    body = {**FULL, "temperature": 0, "max_tokens": 4, "stream": streams}
    given = server.post("/v1/chat/completions", body)
    assert given.status_code == 200, given.text
    names = given.headers["x-jitney-ignored"].split(", ")
    ignored = {name for name, field in ChatBody.refused.items() if field.is_harmless}
    assert sorted(names) == sorted({*ignored, *IGNORED_PARTS})
    assert len(given.headers["x-jitney-ignored"]) < 600
    if not streams:
        usual = server.post("/v1/chat/completions", plain(body)).json()
        assert given.json()["choices"] == usual["choices"]
        assert given.json()["usage"]["prompt_tokens"] == usual["usage"]["prompt_tokens"]
    tokens = {"messages": FULL["messages"], "tools": FULL["tools"]}
    counted = server.post("/tokenize", tokens)
    assert counted.json() == server.post("/tokenize", plain(tokens)).json()
    assert counted.headers["x-jitney-ignored"] == ", ".join(IGNORED_PARTS)


@pytest.mark.parametrize("name", ["messages.cache_control", "ttl\r\nx-evil: 1", "Keep_Alive"])
def test_a_name_that_only_looks_like_a_row_is_unknown(server: Running, name: str) -> None:
    """Guards the header: what is not in the table, letter by letter, is refused."""
    response = server.post("/v1/completions", {"prompt": "a", name: 1})
    assert check_error(response, 400)["code"] == "unknown_parameter"
    assert "x-jitney-ignored" not in response.headers
    assert "x-evil" not in response.headers


def test_a_strict_server_ignores_nothing() -> None:
    """Guards callers who want to hear of every field: one row of each table, and no header."""
    settings = ServeSettings(served_model_name=(MODEL,), strict=True)
    with running(World(settings=settings)) as strict:
        error = check_error(strict.chat(keep_alive="5m"), 400, "keep_alive")
        assert error["message"].startswith("keep_alive is not supported: the model stays loaded")
        parts = [{"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}}]
        response = strict.chat(messages=parts)
        check_error(response, 400, "messages[0].cache_control")
        assert "x-jitney-ignored" not in response.headers
