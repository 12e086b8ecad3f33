"""Bodies of /v1/chat/completions and /tokenize: messages, tools, formats of the answer.

Pure; any thread. Rules that tie fields together are in `jitney.server.openai.translate`.

Tests: tests/unit/server/openai/test_check_body.py, tests/e2e/server/test_field_tables.py.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from jitney.core.limits import TOKENS_MAX
from jitney.errors import InvalidRequest
from jitney.server import limits
from jitney.server.openai.bodies import (
    MODEL_NOTE,
    Alternatives,
    Name,
    SamplingFields,
    Strict,
    Tokens,
    most,
    note,
)
from jitney.server.openai.refused_fields import IGNORED_PARTS, OF_CHAT, OF_TOKENIZE

FunctionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.\-]{1,128}$")]
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
        str | Annotated[list[TextPart], most(limits.PARTS_MAX)] | None,
        BeforeValidator(_without_media),
    ] = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], most(limits.TOOLS_MAX)] | None = None
    tool_call_id: Name | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
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
        reasoning = self.reasoning_content or self.reasoning
        if reasoning and self.role != "assistant":
            raise ValueError("reasoning belongs to messages of the assistant")
        has_other = self.role == "assistant" and (self.tool_calls or reasoning)
        if self.content is None and not has_other:
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
Messages = Annotated[list[ChatMessage], most(limits.MESSAGES_MAX, least=1)]
Tools = Annotated[list[Tool], most(limits.TOOLS_MAX)]


class ChatBody(SamplingFields):
    """POST /v1/chat/completions."""

    without_effect = frozenset({"metadata", "prompt_cache_key", "safety_identifier", "store"})
    refused = OF_CHAT
    ignored_parts = IGNORED_PARTS

    messages: Messages = Field(
        description="Text, from system, developer, user, assistant and tool. Several parts of "
        "text in one message are joined with a line break between them."
    )
    max_completion_tokens: Tokens | None = note("As max_tokens; only one of the two.")
    logprobs: bool | None = note("Whether to give the logprob of each token.")
    top_logprobs: Alternatives | None = note("0 to 20 alternatives for each token; needs logprobs.")
    response_format: ResponseFormat | None = note(
        "`text`, `json_object` or `json_schema`, always enforced; see JSON above."
    )
    tools: Tools | None = note(
        "Up to 128 functions. A schema that cannot be enforced is refused whatever `tool_choice` "
        "says; `strict` changes nothing: `tool_choice` decides what is enforced."
    )
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = note(
        "`none`, `auto`, `required`, or one function by name; the last two are enforced."
    )
    parallel_tool_calls: bool | None = note("False keeps it to one call. Default: true.")
    add_generation_prompt: bool | None = note(
        "False leaves out the beginning of the assistant's turn. Default: true, unless the last "
        "message is continued."
    )
    continue_final_message: bool | None = note(
        "True: the prompt ends with the text of the last message, and the answer goes on from "
        "there, without it. Not together with add_generation_prompt. Default: false, and a last "
        "message of the assistant is followed by a new turn."
    )
    chat_template_kwargs: TemplateOptions | None = note("`enable_thinking` and nothing else.")
    reasoning_effort: Effort | None = note(
        "`none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`, handed to the chat template "
        "by this name; `none` is `enable_thinking: false` as well. A template that reads neither "
        "writes the same prompt."
    )
    reasoning_format: Literal["none", "auto", "deepseek"] | None = note(
        "llama-server's: `none` leaves reasoning in `content`, with its marks. Default: `auto`, "
        "which is `deepseek`: it is in `reasoning_content`."
    )
    include_reasoning: bool | None = note(
        "vLLM's: false leaves reasoning out of the reply; it is computed and counted all the same."
    )
    thinking_token_budget: Annotated[int, Field(ge=0, le=TOKENS_MAX)] | None = note(
        "vLLM's: after so many tokens of reasoning it is ended, and the answer begins; 0 leaves it "
        "out. Where the mark that ends it is not one token, four characters count as one. A model "
        "that does not reason is within every budget."
    )
    metadata: Metadata | None = note(
        f"Up to {limits.METADATA_ENTRIES_MAX} strings of {limits.METADATA_VALUE_CHARACTERS_MAX} "
        f"characters under names of {limits.METADATA_KEY_CHARACTERS_MAX}; nothing is stored that "
        "they could be kept with."
    )
    store: bool | None = note(
        "Nothing is stored, whatever it says: an answer cannot be asked for again later."
    )
    prompt_cache_key: Name | None = note(
        f"Up to {limits.NAME_CHARACTERS_MAX} characters; prefixes are found by their tokens, and "
        "`cache_salt` keeps them apart."
    )
    safety_identifier: Name | None = note(
        f"Up to {limits.NAME_CHARACTERS_MAX} characters; there is no abuse monitoring, and `user` "
        "says who it is."
    )


class TokenizeBody(Strict):
    """POST /tokenize: a prompt, or messages."""

    refused = OF_TOKENIZE
    ignored_parts = IGNORED_PARTS

    model: Name | None = note(MODEL_NOTE)
    prompt: str | None = note("A text.")
    add_special_tokens: bool | None = note("False: without the token that begins every text.")
    messages: Messages | None = note("A conversation, instead of a prompt.")
    tools: Tools | None = note("As in a chat; with messages.")
    add_generation_prompt: bool | None = note("As in a chat; with messages.")
    continue_final_message: bool | None = note("As in a chat; with messages.")


def check_turns(messages: Iterable[Mapping[str, Any]], field: str) -> None:
    """Refuse too many calls in one turn of a conversation that is called `field` elsewhere. Raises
    InvalidRequest."""
    if any(len(each.get("tool_calls") or ()) > limits.TOOLS_MAX for each in messages):
        message = f"{field}: a turn has more than {limits.TOOLS_MAX} calls."
        raise InvalidRequest(message, field)
