"""The body of POST /v1/responses: items, tools, and the form of the answer.

Strict, as all bodies are (`jitney.server.openai.bodies`); sampling fields are those of a chat. What
has no meaning here is left out before (`skipped_kinds`). Pure; any thread.

Tests: tests/unit/server/openai_responses/test_to_chat.py and tests/e2e/openai_responses.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from jitney.server.limits import NAME_CHARACTERS_MAX, PARTS_MAX, TOOLS_MAX
from jitney.server.openai.bodies import (
    Alternatives,
    Name,
    SamplingFields,
    StreamOptions,
    Strict,
    Tokens,
    most,
    note,
)
from jitney.server.openai.chat_body import (
    Effort,
    FunctionName,
    JsonObject,
    Metadata,
    NamedFunction,
    ToolFunction,
)
from jitney.server.openai.check_body import check_fields, parse_object
from jitney.server.openai.refused_fields import OF_BOTH, RefusedField, harmless
from jitney.server.openai_responses import limits
from jitney.server.openai_responses.skipped_kinds import LOGPROBS, leave_out

ItemStatus = Literal["in_progress", "completed", "incomplete"]

_MEDIA = {
    "input_image": "image input is not supported",
    "input_file": "file input is not supported",
    "input_audio": "audio input is not supported",
}


class ItemText(Strict):
    """A part of an item's text, of a caller or of an answer that came back."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str
    annotations: Annotated[list[Any], most(PARTS_MAX)] | None = None
    logprobs: Annotated[list[Any], most(PARTS_MAX)] | None = None


def _without_media(content: Any) -> Any:  # Any: not yet checked
    if isinstance(content, list):
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind in _MEDIA:
                raise ValueError(f"{_MEDIA[kind]}; send text")
    return content


Texts = Annotated[str | Annotated[list[ItemText], most(PARTS_MAX)], BeforeValidator(_without_media)]
Thoughts = Annotated[list[ItemText], most(limits.SUMMARIES_MAX)]


class MessageItem(Strict):
    """What somebody said."""

    type: Literal["message"]
    role: Literal["system", "developer", "user", "assistant"]
    content: Texts
    id: Name | None = None
    status: ItemStatus | None = None
    phase: Name | None = None


class CallItem(Strict):
    """A call that an answer made earlier."""

    type: Literal["function_call"]
    call_id: Name
    name: FunctionName
    arguments: str
    id: Name | None = None
    status: ItemStatus | None = None


class CallOutputItem(Strict):
    """What came of it."""

    type: Literal["function_call_output"]
    call_id: Name
    output: Texts
    name: Name | None = None
    id: Name | None = None
    status: ItemStatus | None = None


class ReasoningItem(Strict):
    """An earlier thought."""

    type: Literal["reasoning"]
    id: Name | None = None
    summary: Thoughts | None = None
    content: Thoughts | None = None
    encrypted_content: str | None = None
    status: ItemStatus | None = None


class ReferenceItem(Strict):
    """An item of a stored answer, which is put in its place."""

    type: Literal["item_reference"]
    id: Name


Item = Annotated[
    MessageItem | CallItem | CallOutputItem | ReasoningItem | ReferenceItem,
    Field(discriminator="type"),
]


class ResponseTool(ToolFunction):
    """A function that the model may call."""

    type: Literal["function"]


class ChosenTool(NamedFunction):
    """One function by name."""

    type: Literal["function"]


class AllowedTools(Strict):
    """Some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenTool], most(TOOLS_MAX, least=1)]


class FormatOfText(Strict):
    """The form of the text; a schema is always enforced."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_\-]{1,64}$")] | None = None
    description: str | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextOptions(Strict):
    """What the text is like."""

    format: FormatOfText | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(Strict):
    """How much is thought."""

    effort: Effort | None = None


class ResponseStream(StreamOptions):
    """Events have the usage anyway."""

    include_usage: Literal[None] = None
    continuous_usage_stats: Literal[None] = None


_CHOSEN = harmless("the thought is given as it is, without a summary", "auto")

OF_RESPONSES: Mapping[str, RefusedField] = {
    **OF_BOTH,
    "access_programs": harmless("there are no programs"),
    "context_management": harmless("a conversation is never cut"),
    "conversation": RefusedField("conversations are continued by previous_response_id; use that"),
    "image": harmless("there are no images"),
    "logprobs": RefusedField(f"use top_logprobs, and {LOGPROBS} in include"),
    "max_completion_tokens": RefusedField("it is max_output_tokens here; use that"),
    "max_tokens": RefusedField("it is max_output_tokens here; use that"),
    "max_tool_calls": harmless("it counts tools that run at OpenAI"),
    "messages": RefusedField("use input, or /v1/chat/completions"),
    "moderation": RefusedField("this server does not moderate; leave it out"),
    "n": RefusedField("a response is one answer; leave it out", (1,)),
    "prompt": RefusedField("no prompts are stored here; use input and instructions"),
    "reasoning_effort": RefusedField("it is reasoning.effort here; use that"),
    "request_id": RefusedField("the ids of responses are made here; leave it out"),
    "response_format": RefusedField("it is text.format here; use that"),
}

IN_RESPONSES: Mapping[str, RefusedField] = {
    "reasoning.context": harmless("it is decided by the chat template"),
    "reasoning.generate_summary": _CHOSEN,
    "reasoning.mode": harmless("there is one mode"),
    "reasoning.summary": _CHOSEN,
    "text.verbosity": harmless("no model here has levels of verbosity"),
    "tools.allowed_callers": harmless("a caller calls its tools itself"),
    "tools.async": harmless("a caller calls its tools itself"),
    "tools.cache_control": harmless("prefixes are found by their tokens"),
    "tools.defer_loading": harmless("all tools are told to the model"),
    "tools.output_schema": harmless("what a tool gives is not checked"),
    "input.caller": harmless("a caller calls its tools itself"),
    "input.namespace": harmless("there are no namespaces"),
    "input.content.prompt_cache_breakpoint": harmless("prefixes are found by their tokens"),
}
"""Fields inside others that are ignored: the place of each, without the numbers of items."""


class ResponseBody(SamplingFields):
    """POST /v1/responses."""

    without_effect = frozenset({"prompt_cache_key", "safety_identifier", "truncation"})
    refused = OF_RESPONSES
    ignored_parts = IN_RESPONSES

    input: Annotated[list[Item], most(limits.ITEMS_MAX)] = Field(
        description="A text, or items: `message`, `function_call`, `function_call_output`, "
        "`reasoning`, and `item_reference` to an item of a stored answer. Items of tools that run "
        "at OpenAI are left out, and the header `x-jitney-ignored` names them. Thoughts of earlier "
        "turns are handed to the chat template, unless they are encrypted."
    )
    instructions: str | None = note("The first system message; not carried on to later turns.")
    tools: Annotated[list[ResponseTool], most(TOOLS_MAX)] | None = note(
        "Up to 128 functions. Tools of other kinds are left out, and the header "
        "`x-jitney-ignored` names them."
    )
    tool_choice: (
        Literal["none", "auto", "required"]
        | Annotated[ChosenTool | AllowedTools, Field(discriminator="type")]
        | None
    ) = note(
        "`none`, `auto`, `required`, one function by name, or `allowed_tools`: only those are told "
        "to the model."
    )
    parallel_tool_calls: bool | None = note("False keeps it to one call. Default: true.")
    text: TextOptions | None = note("`format`: `text`, `json_object` or `json_schema`.")
    reasoning: ReasoningOptions | None = note("`effort`, as `reasoning_effort` in a chat.")
    max_output_tokens: Tokens | None = note("As `max_tokens` in a chat.")
    top_logprobs: Alternatives | None = note(
        "0 to 20 alternatives for each token; needs `message.output_text.logprobs` in `include`."
    )
    include: Annotated[list[Name], most(limits.INCLUDE_MAX)] | None = note(
        "`message.output_text.logprobs`; OpenAI's other names add nothing and are ignored."
    )
    previous_response_id: Name | None = note(
        "A stored response: the conversation goes on behind it, with its input and its answer and "
        "those before it."
    )
    store: bool | None = note(
        f"Whether the response is kept for {limits.EXPIRY_S // 86_400} days. Default: true where "
        "there is a folder of jobs; without one nothing is kept."
    )
    background: bool | None = note(
        "True: answers at once, and goes on without a caller, also after the server was killed."
    )
    metadata: Metadata | None = note("Up to 16 strings, kept with the response.")
    stream_options: ResponseStream | None = note("`include_obfuscation` may be false.")
    truncation: Literal["auto", "disabled"] | None = note("An input is never cut: refused instead.")
    prompt_cache_key: Name | None = note(
        f"Up to {NAME_CHARACTERS_MAX} characters; prefixes are found by their tokens."
    )
    safety_identifier: Name | None = note("There is no abuse monitoring.")


def check_response(
    content: bytes, values_max: int, ignored: list[str] | None = None
) -> ResponseBody:
    """The body in these bytes. Raises Refusal with status 400."""
    fields = parse_object(content, values_max)
    leave_out(fields, ignored)
    return check_fields(fields, ResponseBody, ignored)
