"""What a chat gives to the model: the prompt through its chat template, and how it calls tools.

How a model writes calls and reasoning follows from its chat template (`server/formats`). `enforced`
makes a constraint that allows only calls. A template that does not know tools is given them as text
in the system message, in Hermes' form. Off the event loop. Raises a RequestError that names the
wrong field.
"""

import json
from collections.abc import Mapping
from typing import Any

from jitney.core.backend import Segment
from jitney.core.limits import CONSTRAINT_CHARACTERS_MAX
from jitney.core.params import StructuredOutputsParams
from jitney.errors import InvalidRequest, ModelError
from jitney.sampling.closed_schema import closed_schema
from jitney.server.formats.answer_families import HERMES, ModelFormat
from jitney.server.formats.answer_forms import AnswerForm, CallForm, Calling, Reasoning
from jitney.server.openai.chat_body import ChatBody, ChatMessage, NamedChoice, TokenizeBody, Tool
from jitney.server.service import Service
from jitney.text.chat_template import ChatTask

_SEGMENTS_AT_END = 4
"""Of a prompt, to see how it ends."""
CALLS_MAX = 16
"""Calls that one answer is allowed when calls are enforced."""

INVALID = "invalid_json"
"""The name of arguments that are no JSON object."""

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_SPACING = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}
"""As models are trained to write calls. With free space, a model may write only space."""

_INTRODUCTION = """\
You can call these functions, described by JSON schemas:
<tools>
{tools}
</tools>
To call a function, answer with its name and its arguments in this form:
<tool_call>
{{"name": "FUNCTION", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>"""


def chat_of(
    service: Service,
    body: ChatBody | TokenizeBody,
    offered: list[Tool] | None,
    switches: dict[str, bool | str] | None = None,
) -> ChatTask:
    """A conversation for the model's chat template.

    A new turn of the assistant begins at its end, unless the body says otherwise.
    """
    messages, template = body.messages or [], service.template
    if template is None:
        raise ModelError("The model has no chat template.")
    if len(messages) > 1 and {each.role for each in messages[-2:]} == {"assistant"}:
        raise InvalidRequest(
            "messages ends with two messages of the assistant; "
            "put one of a user or a tool between them, or join them.",
            "messages",
        )
    values = [message_values(each) for each in messages]
    listed = offered_values(offered) if offered else None
    if ".thinking" in template.source:
        values = [_with_thinking(each) for each in values]
    if not template.knows_tools:
        values, listed = as_text(values, listed), None
    continues, adds = bool(body.continue_final_message), body.add_generation_prompt
    return template.chat(
        values,
        not continues if adds is None else adds,
        tools=listed,
        switches=switches,
        continue_final_message=continues,
    )


def switches_of(body: ChatBody) -> dict[str, bool | str]:
    """The switches of the chat template, by name. Their values are fixed words."""
    switches: dict[str, bool | str] = {}
    if body.reasoning_effort is not None:
        switches["reasoning_effort"] = body.reasoning_effort
        if body.reasoning_effort == "none":
            switches["enable_thinking"] = False
    options = body.chat_template_kwargs
    if options is not None and options.enable_thinking is not None:
        switches["enable_thinking"] = options.enable_thinking
    if "enable_thinking" in switches:
        # The name in the templates of DeepSeek, Granite and Kimi.
        switches["thinking"] = switches["enable_thinking"]
    return switches


def offered_values(tools: list[Tool]) -> list[dict[str, Any]]:
    """The tools as chat templates read them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                "description": tool.function.description or "",
                "parameters": tool.function.parameters or NO_PARAMETERS,
            },
        }
        for tool in tools
    ]


def message_values(message: ChatMessage) -> dict[str, Any]:
    """A message as chat templates read it; arguments become objects."""
    role = "system" if message.role == "developer" else message.role
    others = message.model_dump(include={"name", "tool_call_id"}, exclude_none=True)
    values = {"role": role, "content": message.text or "", **others}
    if reasoning := message.reasoning_content or message.reasoning:
        values["reasoning_content"] = reasoning
    if message.tool_calls:
        values["tool_calls"] = [each.model_dump() for each in message.tool_calls]
        for call in values["tool_calls"]:
            function = call["function"]
            function["arguments"] = arguments_of(function["arguments"])
    return values


def _with_thinking(values: dict[str, Any]) -> dict[str, Any]:
    """The reasoning under the name that some templates read; gpt-oss refuses it beside both content
    and calls."""
    reasoning = values.get("reasoning_content")
    is_full = values["content"] and values.get("tool_calls")
    return values if reasoning is None or is_full else {**values, "thinking": reasoning}


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of a call; under a name of ours, if a model wrote no JSON object, or was cut
    off in one. What we sent can come back, and the model sees what it wrote."""
    try:
        value = json.loads(text or "{}")
        # Python reads more than JSON has: NaN, 1e999, halves of surrogate pairs.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {INVALID: text}


def as_text(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """The same conversation, all as text, for a template that knows no tools."""
    written = [_as_text(message) for message in messages]
    if not tools:
        return written
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    introduction = _INTRODUCTION.format(tools=listed)
    if written[0]["role"] == "system":
        first = {**written[0], "content": f"{written[0]['content']}\n\n{introduction}"}
        return [first, *written[1:]]
    return [{"role": "system", "content": introduction}, *written]


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message["content"]
    kept = {name: message[name] for name in ("reasoning_content", "thinking") if name in message}
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = "\n".join(
        f"{HERMES.opening}\n{json.dumps(call['function'], ensure_ascii=False)}\n{HERMES.closing}"
        for call in message.get("tool_calls", ())
    )
    text = f"{content}\n{calls}" if content and calls else content or calls
    return {"role": message["role"], "content": text, **kept}


def answer_form(
    body: ChatBody, model: ModelFormat, calling: Calling | None, prompt: tuple[Segment, ...]
) -> AnswerForm:
    """How the answer to this prompt is read."""
    reasoning = model.reasoning
    if reasoning is None:
        return AnswerForm(calling=calling)
    has_channels = model.family.has_channels
    return AnswerForm(
        reasoning=reasoning,
        is_thinking=_ends_thinking(body, reasoning, prompt),
        has_channels=has_channels,
        includes_reasoning=body.include_reasoning is not False,
        closing_token=None if has_channels else model.tokens.get(reasoning.closing),
        calling=calling,
    )


def _ends_thinking(body: ChatBody, reasoning: Reasoning, prompt: tuple[Segment, ...]) -> bool:
    """Whether the prompt ends within the reasoning."""
    if body.continue_final_message:
        begun = body.messages[-1].text or ""
        return begun.rfind(reasoning.opening) > begun.rfind(reasoning.closing)
    end = "".join(text for text, _ in prompt[-_SEGMENTS_AT_END:]).rstrip()
    return end.endswith(reasoning.opening)


def read_calling(body: ChatBody, model: ModelFormat) -> Calling | None:
    """How the body uses tools; None if no tool may be called. Raises InvalidRequest."""
    tools = body.tools or []
    choice = body.tool_choice
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise InvalidRequest("tools has two functions of one name.", "tools")
    if not tools:
        if choice in (None, "none", "auto"):
            return None
        raise InvalidRequest("tool_choice asks for a call, and there are no tools.", "tool_choice")
    if choice == "none":
        return None
    if isinstance(choice, NamedChoice):
        if choice.function.name not in names:
            raise InvalidRequest(
                f"tool_choice names {choice.function.name}, which is not among the tools.",
                "tool_choice",
            )
        names = [choice.function.name]
    is_enforced = choice == "required" or isinstance(choice, NamedChoice)
    form = model.family.enforced if is_enforced else model.family.calls
    is_control = form.opening in model.control
    return Calling(
        form=form,
        names=tuple(names),
        schemas={tool.function.name: tool.function.parameters or {} for tool in tools},
        parallel=body.parallel_tool_calls is not False and not isinstance(choice, NamedChoice),
        is_enforced=is_enforced,
        starts_inside=is_enforced and (form.is_list or form.is_bare or is_control),
    )


def enforced(calling: Calling, tools: list[Tool]) -> StructuredOutputsParams:
    """A constraint that allows only calls."""
    form = calling.form
    called = [tool for tool in tools if tool.function.name in calling.names]
    definitions = {_definition(at): _rebased(tool, at) for at, tool in enumerate(called)}
    calls = [_call_schema(form, tool, at) for at, tool in enumerate(called)]
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if form.is_list:
        counts = {"minItems": 1, "maxItems": CALLS_MAX if calling.parallel else 1}
        listed = {"type": "array", "items": schema, **counts, "$defs": definitions}
        return StructuredOutputsParams(json=listed)
    schema = {**schema, "$defs": definitions}
    if calling.starts_inside:
        return StructuredOutputsParams(json=schema)
    written = json.dumps({**schema, "x-guidance": _SPACING})
    closed = _marked(calling, closed_schema(written))
    # Use the closed schema only if it is short enough.
    is_short = len(closed) <= CONSTRAINT_CHARACTERS_MAX
    return StructuredOutputsParams(grammar=closed if is_short else _marked(calling, written))


def _marked(calling: Calling, schema: str) -> str:
    """A grammar of calls between their marks."""
    form = calling.form
    repeated = f'("\\n" call){{0,{CALLS_MAX - 1}}}' if calling.parallel else ""
    opening, closing = json.dumps(form.opening + "\n"), json.dumps("\n" + form.closing)
    return f"start: call {repeated}\ncall: {opening} payload {closing}\npayload: %json {schema}\n"


def _definition(at: int) -> str:
    return f"tool{at}"


def _rebased(tool: Tool, at: int) -> Any:  # Any: a JSON schema
    """The schema of a tool's arguments, with pointers for its new place."""
    root = f"#/$defs/{_definition(at)}"

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(each) for each in value]
        if not isinstance(value, dict):
            return value
        copied = {name: moved(each) for name, each in value.items()}
        pointer = copied.get("$ref")
        if isinstance(pointer, str) and pointer.startswith("#"):
            copied["$ref"] = root + pointer[1:]
        return copied

    return moved(tool.function.parameters or NO_PARAMETERS)


def _call_schema(form: CallForm, tool: Tool, at: int) -> dict[str, Any]:
    parameters = {"$ref": f"#/$defs/{_definition(at)}"}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.function.name}, form.arguments_key: parameters},
        "required": ["name", form.arguments_key],
        "additionalProperties": False,
    }
