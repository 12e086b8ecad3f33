"""Fields of Anthropic's bodies that are refused or ignored by name, each with the reason. Pure; any
thread.

Agents send fields of many betas, and no answer could differ by most of them: those are ignored, and
a header of the response names them.

Tests: tests/unit/server/anthropic/test_message_body.py, tests/e2e/server/test_messages.py.
"""

from collections.abc import Mapping

from jitney.server.openai.refused_fields import RefusedField, harmless

_PREFIXES = harmless("prefixes are found by their tokens")
_NOTES = harmless("it is a note for others")
_ONE_PLACE = harmless("the model runs where this server does")

OF_MESSAGES: Mapping[str, RefusedField] = {
    "cache_control": _PREFIXES,
    "context_management": harmless("the model reads what the messages hold"),
    "service_tier": harmless("there are no tiers", "auto", "standard_only"),
    "speed": harmless("there is one speed", "standard"),
    "inference_geo": _ONE_PLACE,
    "diagnostics": _NOTES,
    "fallbacks": harmless("there is no other model to fall back to"),
    "fallback_credit_token": _NOTES,
    "user_profile_id": _NOTES,
    "workspace_id": _NOTES,
    "betas": _NOTES,
    "compaction": RefusedField("this server does not shorten conversations; do it in the client"),
    "container": RefusedField("this server runs no code; leave it out"),
    "mcp_servers": RefusedField("call servers of MCP from the client, as tools", ([],)),
    "output_format": RefusedField("it is output_config.format here; use that"),
    "thread": RefusedField("nothing is stored here; send all messages"),
    "prefill": RefusedField("end messages with one of the assistant"),
    "n": RefusedField("there is one answer; leave it out", (1,)),
    "stop": RefusedField("it is stop_sequences here; use that"),
}

OF_COUNTS: Mapping[str, RefusedField] = {
    **OF_MESSAGES,
    **dict.fromkeys(
        ("max_tokens", "metadata", "stop_sequences", "stream", "temperature", "top_k", "top_p"),
        harmless("the tokens of a prompt are counted, and nothing is made"),
    ),
}

IGNORED_PARTS: Mapping[str, RefusedField] = {
    "system.cache_control": _PREFIXES,
    "system.citations": _NOTES,
    "messages.output_config": harmless("the effort of a call is that of its own output_config"),
    "messages.cache_control": _PREFIXES,
    "messages.content.cache_control": _PREFIXES,
    "messages.content.citations": _NOTES,
    "messages.content.caller": _NOTES,
    "messages.content.toolset_name": _NOTES,
    "messages.content.content.cache_control": _PREFIXES,
    "messages.content.content.citations": _NOTES,
    "messages.content.tool.definition.cache_control": _PREFIXES,
    "messages.content.tool.definition.defer_loading": harmless("the model is told of all tools"),
    "messages.content.tool.definition.eager_input_streaming": harmless(
        "the input of a tool is always sent as it comes"
    ),
    "tools.cache_control": _PREFIXES,
    "tools.defer_loading": harmless("the model is told of all tools"),
    "tools.eager_input_streaming": harmless("the input of a tool is always sent as it comes"),
    "tools.input_examples": harmless("chat templates have no place for examples"),
    "tools.allowed_callers": harmless("only the model calls"),
    "tools.ownership_metadata": _NOTES,
    "output_config.task_budget": harmless("max_tokens bounds an answer"),
    "metadata.user_profile_id": _NOTES,
}
"""The same inside others: the place of each, without the numbers of items."""

UNKNOWN = "unknown-fields"
"""Stands in the header for fields that nobody here knows; the names are text of a caller."""

SERVER_TOOLS = "tools.type"
"""Stands in the header for tools that Anthropic's own servers run."""

MODEL = "model"
"""Stands in the header where another model answers than the one that was asked for."""

REDACTED = "messages.content.redacted_thinking"
"""Stands in the header for thinking that only Anthropic's servers can read."""
