"""From the messages of a body to segments of a prompt, through the model's chat template.

A template that does not know tools is given them as text in the system message, in Hermes' form.
Off the event loop. Raises a RequestError that names the wrong field.
"""

import json
from collections.abc import Mapping
from typing import Any

from jitney.core.backend import Segment
from jitney.errors import InvalidRequest, ModelError
from jitney.server.openai.chat_body import ChatBody, ChatMessage, TokenizeBody, Tool
from jitney.server.openai.tools import HERMES, NO_PARAMETERS
from jitney.server.service import Service

_INTRODUCTION = """\
You can call these functions, described by JSON schemas:
<tools>
{tools}
</tools>
To call a function, answer with its name and its arguments in this form:
<tool_call>
{{"name": "FUNCTION", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>"""


def chat_segments(
    service: Service,
    body: ChatBody | TokenizeBody,
    offered: list[Tool] | None,
    switches: dict[str, bool | str] | None = None,
) -> tuple[Segment, ...]:
    """The prompt of a conversation, through the model's chat template.

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
    values = [message_values(each, index) for index, each in enumerate(messages)]
    listed = offered_values(offered) if offered else None
    if not template.knows_tools:
        values, listed = as_text(values, listed), None
    continues, adds = bool(body.continue_final_message), body.add_generation_prompt
    return template.render(
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


def message_values(message: ChatMessage, index: int) -> dict[str, Any]:
    """A message as chat templates read it; arguments become objects."""
    role = "system" if message.role == "developer" else message.role
    others = message.model_dump(include={"name", "tool_call_id"}, exclude_none=True)
    values = {"role": role, "content": message.text or "", **others}
    if message.tool_calls:
        values["tool_calls"] = [each.model_dump() for each in message.tool_calls]
        for call in values["tool_calls"]:
            function = call["function"]
            function["arguments"] = _arguments(function["arguments"], index)
    return values


def _arguments(text: str, index: int) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"messages[{index}].tool_calls has arguments that are not a JSON object.", "messages"
        )
    return value


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
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = "\n".join(
        f"{HERMES.opening}\n{json.dumps(call['function'], ensure_ascii=False)}\n{HERMES.closing}"
        for call in message.get("tool_calls", ())
    )
    text = f"{content}\n{calls}" if content and calls else content or calls
    return {"role": message["role"], "content": text}
