"""The response object: what a caller gets, and what is kept of the request for it.

`asked_of` has the fields that repeat the request. They are made once, and stored.
Pure; any thread.

Tests: tests/e2e/openai_responses/test_protocol.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jitney.engine.answer import Usage
from jitney.server.error_object import INVALID, RATE
from jitney.server.openai.replies import Json
from jitney.server.openai_responses.response_body import ResponseBody

OBJECT = "response"

_ERRORS: Mapping[str, str] = {INVALID: "invalid_prompt", RATE: "rate_limit_exceeded"}
_DEFAULTS: Json = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0}
_DEFAULTS |= {"frequency_penalty": 0.0, "top_logprobs": 0, "truncation": "disabled"}
_REPEATED = (
    *("instructions", "previous_response_id", "max_output_tokens", "user", "prompt_cache_key"),
    "safety_identifier",
)


@dataclass(slots=True, kw_only=True)
class ResponseState:
    """One response: what was asked, and how far it is. Times are seconds since 1970."""

    id: str
    asked: Json
    """The fields of the object that repeat the request."""
    created_at: int
    status: str
    completed_at: int | None = None
    usage: Json | None = None
    error: Json | None = None
    is_stored: bool = False
    is_background: bool = False
    output: list[Json] = field(default_factory=list)

    def object(self) -> Json:
        """What a caller gets."""
        is_cut = self.status == "incomplete"
        return {
            "id": self.id,
            "object": OBJECT,
            "created_at": self.created_at,
            "completed_at": self.completed_at if self.status == "completed" else None,
            "status": self.status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            **self.asked,
            "output": self.output,
            "error": self.error,
            "usage": self.usage,
            "store": self.is_stored,
            "background": self.is_background,
            "service_tier": "default",
            "max_tool_calls": None,
        }


def asked_of(body: ResponseBody, model: str) -> Json:
    """The fields of the object that repeat the request."""
    given = body.model_dump(exclude_none=True, by_alias=True, mode="json")
    text: Json = given.get("text", {})
    return {
        "model": model,
        **{name: given.get(name) for name in _REPEATED},
        **{name: given.get(name, default) for name, default in _DEFAULTS.items()},
        "tools": [_tool(each) for each in given.get("tools", ())],
        "tool_choice": given.get("tool_choice", "auto"),
        "parallel_tool_calls": given.get("parallel_tool_calls", True),
        "text": {"format": text.get("format", {"type": "text"}), "verbosity": "medium"},
        "reasoning": {"effort": given.get("reasoning", {}).get("effort"), "summary": None},
        "metadata": given.get("metadata", {}),
    }


def _tool(tool: Json) -> Json:
    empty = dict.fromkeys(("description", "parameters", "strict"))
    return {**empty, **tool}


def usage_object(usages: list[Usage], reasoning_count: int | None = None) -> Json:
    """What was counted; with the tokens of reasoning, if it is known how many there were."""
    prompt_count = sum(each.prompt_count for each in usages)
    output_count = sum(each.completion_count for each in usages)
    cached_count = sum(each.cached_count for each in usages)
    return {
        "input_tokens": prompt_count,
        "input_tokens_details": {"cached_tokens": cached_count, "cache_write_tokens": 0},
        "output_tokens": output_count,
        "output_tokens_details": {"reasoning_tokens": reasoning_count or 0},
        "total_tokens": prompt_count + output_count,
    }


def error_object(body: Mapping[str, Any]) -> Json:
    """What a failed response says, from OpenAI's error object."""
    error = body["error"]
    return {"code": _ERRORS.get(error["type"], "server_error"), "message": error["message"]}
