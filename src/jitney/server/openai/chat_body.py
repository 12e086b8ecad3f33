"""Bodies of /v1/chat/completions and /tokenize: messages, tools, formats of the answer.

Pure; any thread. Rules that tie fields together are in `jitney.server.openai.translate`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from jitney.server import limits
from jitney.server.openai.bodies import Alternatives, Name, SamplingFields, Strict, Tokens

FunctionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.\-]{1,64}$")]
JsonObject = dict[str, Any]  # Any: a JSON schema, or arguments of a tool

_MEDIA = {
    "image_url": "image input is not supported",
    "input_audio": "audio input is not supported",
    "file": "file input is not supported",
}


class TextPart(Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


def _without_media(content: Any) -> Any:  # Any: not yet checked
    if isinstance(content, list):
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind in _MEDIA:
                raise ValueError(f"{_MEDIA[kind]}; send text")
    return content


class CalledFunction(Strict):
    """What an assistant called, and with what: JSON in a string."""

    name: FunctionName
    arguments: str


class ToolCall(Strict):
    """A call that an assistant made earlier in the conversation."""

    id: Name
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Strict):
    """One message. Fields that only replies have may come back as null."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | Annotated[list[TextPart], Field(fail_fast=True, max_length=limits.PARTS_MAX)] | None,
        BeforeValidator(_without_media),
    ] = None
    name: Name | None = None
    tool_calls: (
        Annotated[list[ToolCall], Field(fail_fast=True, max_length=limits.TOOLS_MAX)] | None
    ) = None
    tool_call_id: Name | None = None
    refusal: Literal[None] = None
    audio: Literal[None] = None
    function_call: Literal[None] = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls belong to messages of the assistant")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("messages of tools, and only they, have a tool_call_id")
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("content is missing")
        return self

    @property
    def text(self) -> str | None:
        """The content as one string; parts are lines of it, as other servers have it."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content


class ToolFunction(Strict):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: ToolFunction


class NamedFunction(Strict):
    """Which function."""

    name: FunctionName


class NamedChoice(Strict):
    """This tool and no other."""

    type: Literal["function"]
    function: NamedFunction


class TextFormat(Strict):
    """Anything goes."""

    type: Literal["text"]


class ObjectFormat(Strict):
    """Some JSON object."""

    type: Literal["json_object"]


class SchemaOfAnswer(Strict):
    """A JSON schema with a name; always enforced, strict or not."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_\-]{1,64}$")]
    description: str | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None


class SchemaFormat(Strict):
    """JSON that a schema allows."""

    type: Literal["json_schema"]
    json_schema: SchemaOfAnswer


ResponseFormat = Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]


class TemplateOptions(Strict):
    """The one thing that a caller may tell a chat template."""

    enable_thinking: bool | None = None


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=limits.METADATA_KEY_CHARACTERS_MAX)],
        Annotated[str, StringConstraints(max_length=limits.METADATA_VALUE_CHARACTERS_MAX)],
    ],
    Field(max_length=limits.METADATA_ENTRIES_MAX),
]
Messages = Annotated[
    list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=limits.MESSAGES_MAX)
]
Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=limits.TOOLS_MAX)]


class ChatBody(SamplingFields):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None
    reasoning_effort: Effort | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    prompt_cache_key: Name | None = None
    safety_identifier: Name | None = None


class TokenizeBody(Strict):
    """POST /tokenize: a prompt, or messages."""

    model: Name | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
