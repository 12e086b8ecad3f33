"""Kinds of tools and items of OpenAI that have no meaning here, and what is done with them.

Tools that run at OpenAI, and the calls of them in a history, are left out, and a header of the
response names them; a strict server refuses them. Kinds that nobody knows are refused. The names in
the header are those of this table, never text of a caller. Pure; any thread.

Tests: tests/unit/server/openai_responses/test_to_chat.py.
"""

from collections.abc import Callable, Collection
from typing import Any

from jitney.server.error_object import Refusal

Fields = dict[str, Any]  # Any: a JSON value

REFERENCE = "item_reference"
ITEMS = ("message", "function_call", "function_call_output", "reasoning", REFERENCE)
"""Kinds of items that are read."""

SKIPPED_TOOLS = frozenset(
    (
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use",
        "computer_use_preview",
        "custom",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "namespace",
        "programmatic_tool_calling",
        "shell",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    )
)
SKIPPED_ITEMS = frozenset(
    (
        "additional_tools",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "custom_tool_call",
        "custom_tool_call_output",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    )
)
SKIPPED_INCLUDES = frozenset(
    (
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    )
)
LOGPROBS = "message.output_text.logprobs"
"""The one name in `include` that adds something."""


def leave_out(fields: Fields, ignored: list[str] | None) -> None:
    """Leave out of a body what has no meaning here, and note the names of its kinds. An input that
    is a text becomes a message. Raises Refusal; without a list for them, also for kinds known."""
    if isinstance(text := fields.get("input"), str):
        fields["input"] = [{"type": "message", "role": "user", "content": text}]
    _keep(fields, "input", _item_kind, ITEMS, SKIPPED_ITEMS, ignored)
    _keep(fields, "tools", _kind, ("function",), SKIPPED_TOOLS, ignored)
    _keep(fields, "include", _itself, (LOGPROBS,), SKIPPED_INCLUDES, ignored)


def _keep(
    fields: Fields,
    name: str,
    kind_of: Callable[[Any], Any],
    read: Collection[str],
    skipped: Collection[str],
    ignored: list[str] | None,
) -> None:
    values = fields.get(name)
    if not isinstance(values, list):
        return
    kept = []
    for at, value in enumerate(values):
        kind = kind_of(value)
        if not isinstance(kind, str) or kind in read:
            kept.append(value)  # what is no kind at all is told by the fields' own check
        elif kind not in skipped:
            message = f"{name}[{at}]: this kind is not known here; read are {', '.join(read)}."
            raise Refusal("invalid_value", message, param=f"{name}[{at}]")
        elif ignored is None:
            message = f"{name}[{at}]: {kind} has no meaning on this server; leave it out."
            raise Refusal("unsupported_parameter", message, param=f"{name}[{at}]")
        elif f"{name}.{kind}" not in ignored:
            ignored.append(f"{name}.{kind}")
    fields[name] = kept


def _item_kind(value: Any) -> Any:
    """The kind of an item; messages and references may leave theirs out."""
    if isinstance(value, dict) and ("role" in value or value.keys() == {"id"}):
        value.setdefault("type", "message" if "role" in value else REFERENCE)
    return _kind(value)


def _kind(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else None


def _itself(value: Any) -> Any:
    return value
