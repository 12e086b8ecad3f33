"""Bodies of /v1/messages and /v1/messages/count_tokens. Pure; any thread.

As strict as OpenAI's: see `jitney.server.openai.bodies`. A string that stands for one block of text
becomes that block here, so that everything else reads blocks alone.

Tests: tests/unit/server/anthropic/test_message_body.py.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, StringConstraints, Tag

from jitney.core.limits import TOKENS_MAX
from jitney.core.params import PARAMETERS
from jitney.server import limits
from jitney.server.anthropic.message_fields import IGNORED_PARTS, OF_COUNTS, OF_MESSAGES
from jitney.server.openai.bodies import Name, StopStrings, Strict, most, note, parameter
from jitney.server.openai.chat_body import FunctionName, JsonObject

Count = Annotated[int, Field(ge=1, le=TOKENS_MAX)]

_MEDIA = {
    **dict.fromkeys(("image", "document"), "images and documents are not supported; send text"),
    "search_result": "search results are not supported; send their text",
    "container_upload": "this server keeps no files; send text",
}
_OF_SERVERS = "it is of a tool that Anthropic's servers run, and there are none here"
OWN_TOOLS = (None, "custom")
"""Types of tools that the caller describes. All others are Anthropic's."""


class TextBlock(Strict):
    """A text."""

    type: Literal["text"]
    text: str


class ToolReference(Strict):
    """The name of a tool that was found."""

    type: Literal["tool_reference"]
    tool_name: FunctionName


class ToolUse(Strict):
    """A call that the assistant made earlier."""

    type: Literal["tool_use"]
    id: Name
    name: FunctionName
    input: JsonObject


class Thinking(Strict):
    """What the assistant thought before it answered."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinking(Strict):
    """Thinking that Anthropic's servers alone can read."""

    type: Literal["redacted_thinking"]
    data: str


def _as_blocks(content: Any) -> Any:  # Any: not yet checked
    """A string as one block of text; what cannot be read here is refused by name."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    for block in content if isinstance(content, list) else ():
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind in _MEDIA:
            raise ValueError(_MEDIA[kind])
        if isinstance(kind, str) and kind.startswith(("server_tool", "mcp_tool", "web_", "code_")):
            raise ValueError(
                f"{kind[: limits.NAME_CHARACTERS_MAX]} is not supported: {_OF_SERVERS}"
            )
    return content


_Texts = Annotated[list[TextBlock], most(limits.PARTS_MAX)]
TextBlocks = Annotated[_Texts, BeforeValidator(_as_blocks, json_schema_input_type=str | _Texts)]
ResultBlock = Annotated[TextBlock | ToolReference, Field(discriminator="type")]


_Results = Annotated[list[ResultBlock], most(limits.PARTS_MAX)]
ResultBlocks = Annotated[
    _Results, BeforeValidator(_as_blocks, json_schema_input_type=str | _Results)
]


class ToolResult(Strict):
    """What a tool gave back."""

    type: Literal["tool_result"]
    tool_use_id: Name
    content: ResultBlocks | None = None
    is_error: bool | None = None


class MessageTool(Strict):
    """A tool that the caller runs."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: JsonObject
    strict: bool | None = None


class ServerTool(Strict):
    """A tool of Anthropic's own, with any fields."""

    model_config = ConfigDict(
        extra="allow",
        # The forms of a tool exclude each other, also in the document.
        json_schema_extra={"properties": {"type": {"type": "string", "not": {"const": "custom"}}}},
    )

    type: Annotated[str, StringConstraints(max_length=limits.NAME_CHARACTERS_MAX)]
    name: Any = None


def _kind_of_tool(value: Any) -> str:  # Any: not yet checked
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "own" if kind in OWN_TOOLS or not isinstance(kind, str) else "server"


AnyTool = Annotated[
    Annotated[MessageTool, Tag("own")] | Annotated[ServerTool, Tag("server")],
    Discriminator(_kind_of_tool),
]


class NewTool(Strict):
    """A tool that the conversation brings."""

    type: Literal["tool_definition"]
    definition: MessageTool


class KnownTool(Strict):
    """A tool by its name."""

    type: Literal["tool_reference"]
    name: FunctionName


class ToolAddition(Strict):
    """From here on there is one tool more."""

    type: Literal["tool_addition"]
    tool: Annotated[NewTool | KnownTool, Field(discriminator="type")]


class ToolRemoval(Strict):
    """From here on there is one tool less."""

    type: Literal["tool_removal"]
    tool: KnownTool


Block = Annotated[
    TextBlock | ToolUse | ToolResult | Thinking | RedactedThinking | ToolAddition | ToolRemoval,
    Field(discriminator="type"),
]
TAGS = frozenset(
    (
        *("text", "tool_use", "tool_result", "thinking", "redacted_thinking", "tool_reference"),
        *("tool_addition", "tool_removal", "tool_definition", "own", "server"),
    )
)


_ListedBlocks = Annotated[list[Block], most(limits.PARTS_MAX)]
MessageBlocks = Annotated[
    _ListedBlocks, BeforeValidator(_as_blocks, json_schema_input_type=str | _ListedBlocks)
]


class AnthropicMessage(Strict):
    """One message. Agents send messages of the system in between, and some without content."""

    role: Literal["user", "assistant", "system"]
    content: MessageBlocks


class ToolChoice(Strict):
    """Whether a tool is to be used, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Strict):
    """Whether to think before the answer, and how long."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None
    display: Name | None = None


class OutputFormat(Strict):
    """JSON that a schema allows."""

    type: Literal["json_schema"]
    schema_: Annotated[JsonObject, Field(alias="schema")]


class OutputConfig(Strict):
    """How hard to try, and the form of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class MessageMetadata(Strict):
    """Whose request it is."""

    user_id: Name | None = None


class CountBody(Strict):
    """POST /v1/messages/count_tokens."""

    refused = OF_COUNTS
    ignored_parts = IGNORED_PARTS
    tags = TAGS

    model: Name = Field(
        description="A name from /v1/models. A name of Anthropic's own (`claude-...`) means the "
        "model that is served; then the header `x-jitney-ignored` has `model`, the reply names "
        "the model that answered, and `--strict` refuses it."
    )
    messages: Annotated[list[AnthropicMessage], most(limits.MESSAGES_MAX, least=1)] = Field(
        description="From user and assistant, in turn or not: text, `tool_use`, `tool_result`, "
        "`thinking`; a string is one text. A last message of the assistant is continued. Messages "
        "of the system in between are written into the user's turn, between `<system-reminder>` "
        "marks. `tool_addition` and `tool_removal` change the tools of the call. What "
        "`redacted_thinking` holds is ignored. Images and documents are refused."
    )
    system: TextBlocks | None = note(
        "A string, or blocks of text. The line `x-anthropic-billing-header: ...` at its beginning, "
        "which differs from call to call, is left out: no prefix would be found again."
    )
    tools: Annotated[list[AnyTool], most(limits.TOOLS_MAX)] | None = note(
        "Up to 128. Tools with another `type` than `custom` are run by Anthropic's servers: they "
        "are left out where there are others, and refused where there are none. A schema that "
        "cannot be enforced is refused."
    )
    tool_choice: ToolChoice | None = note(
        "`auto`, `any`, `tool` with a name, or `none`; `any` and `tool` are enforced. With "
        "`disable_parallel_tool_use` there is one call at most."
    )
    thinking: ThinkingConfig | None = note(
        "`enabled` with `budget_tokens`, `adaptive`, or `disabled`, which is the default: the "
        "switch `enable_thinking` of the chat template. With `display` as `omitted` the text of a "
        "thinking block is empty, and its `signature` carries it to the next call; with any other "
        "word it is there."
    )
    output_config: OutputConfig | None = note(
        "`effort`, handed to the chat template as `reasoning_effort`, and `format`: a "
        "`json_schema`, always enforced."
    )


class MessagesBody(CountBody):
    """POST /v1/messages."""

    refused = OF_MESSAGES

    max_tokens: Count = Field(
        description="At least 1. More than the context has room for means all the room there is."
    )
    stream: bool | None = note("Server-sent events, as Anthropic names them.")
    stop_sequences: StopStrings | None = note(PARAMETERS["stop"].about)
    temperature: float | None = parameter("temperature")
    top_p: float | None = parameter("top_p")
    top_k: int | None = parameter("top_k")
    metadata: MessageMetadata | None = note(
        "`user_id`: as `user` in OpenAI's bodies, a label in the line of the server's log."
    )
