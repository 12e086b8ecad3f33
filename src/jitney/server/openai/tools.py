"""Tools: how a model is told of them, how it writes calls, and how it is made to. Any thread.

The format follows from the model's chat template: Hermes and Qwen (`<tool_call>`), Mistral
(`[TOOL_CALLS]`) or Llama 3 (JSON, perhaps after `<|python_tag|>`). A template that knows nothing
of tools is given them as text in the system message, in Hermes' form.
"""

import json
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jitney.core.backend import Vocabulary
from jitney.core.limits import CONSTRAINT_CHARACTERS_MAX
from jitney.core.params import StructuredOutputsParams
from jitney.errors import InvalidRequest
from jitney.sampling.closed_schema import closed_schema
from jitney.server.openai.chat_body import ChatBody, ChatMessage, NamedChoice, Tool
from jitney.server.openai.tool_calls import CallFormat, CallParser
from jitney.text.chat_template import ChatTemplate

HERMES = CallFormat(name="hermes", opening="<tool_call>", closing="</tool_call>")
MISTRAL = CallFormat(name="mistral", opening="[TOOL_CALLS]", is_list=True, id_length=9)
LLAMA = CallFormat(
    name="llama3", opening="<|python_tag|>", arguments_key="parameters", is_bare=True
)
CALLS_MAX = 16
"""Calls that one answer is allowed when calls are enforced."""

_NO_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
_SPACING = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}
"""As models are trained to write calls; free space would be an invitation to fill it."""

_LETTERS = string.ascii_letters + string.digits
_INTRODUCTION = """\
You can call these functions, described by JSON schemas:
<tools>
{tools}
</tools>
To call a function, answer with its name and its arguments in this form:
<tool_call>
{{"name": "FUNCTION", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>"""


def format_of(template: ChatTemplate) -> CallFormat:
    """How the model behind this template writes calls."""
    source = template.source
    if MISTRAL.opening in source:
        return MISTRAL
    if HERMES.opening in source:
        return HERMES
    if LLAMA.opening in source or ('"parameters"' in source and template.knows_tools):
        return LLAMA
    return HERMES


@dataclass(frozen=True, slots=True)
class Calling:
    """What tools mean for one request: which there are, and whether some must be called."""

    form: CallFormat
    names: tuple[str, ...]
    parallel: bool
    is_enforced: bool
    starts_inside: bool
    """Whether the answer is calls from its first character on, without a mark."""
    shows_control: bool
    """Whether the mark is a control token, so that these must be part of the text."""

    def parser(self) -> CallParser:
        """For one completion."""
        return CallParser(
            self.form,
            self.names,
            parallel=self.parallel,
            starts_inside=self.starts_inside,
            only_calls=self.is_enforced,
        )

    def new_id(self) -> str:
        """An id for a call."""
        if self.form.id_length is not None:
            return "".join(secrets.choice(_LETTERS) for _ in range(self.form.id_length))
        return f"call_{secrets.token_hex(12)}"


def read_calling(body: ChatBody, template: ChatTemplate, vocabulary: Vocabulary) -> Calling | None:
    """What the body says of tools; None when none are to be called. Raises InvalidRequest."""
    tools = body.tools or []
    choice = body.tool_choice
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise InvalidRequest("tools holds two functions of one name.", "tools")
    if not tools:
        if choice in (None, "none") or choice == "auto":
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
    form = format_of(template)
    is_control = _is_control(form.opening, vocabulary)
    is_enforced = choice == "required" or isinstance(choice, NamedChoice)
    return Calling(
        form=form,
        names=tuple(names),
        parallel=body.parallel_tool_calls is not False and not isinstance(choice, NamedChoice),
        is_enforced=is_enforced,
        starts_inside=is_enforced and (form.is_list or form.is_bare or is_control),
        shows_control=is_control and not is_enforced,
    )


def enforced(calling: Calling, tools: list[Tool]) -> StructuredOutputsParams:
    """A constraint under which the answer is calls and nothing else."""
    form = calling.form
    called = [tool for tool in tools if tool.function.name in calling.names]
    definitions = {_definition(at): _rebased(tool, at) for at, tool in enumerate(called)}
    calls = [_call_schema(form, tool, at) for at, tool in enumerate(called)]
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if form.is_list:
        count_max = CALLS_MAX if calling.parallel else 1
        return StructuredOutputsParams(
            json={
                "type": "array",
                "items": schema,
                "minItems": 1,
                "maxItems": count_max,
                "$defs": definitions,
            }
        )
    schema = {**schema, "$defs": definitions}
    if calling.starts_inside:
        return StructuredOutputsParams(json=schema)
    written = json.dumps({**schema, "x-guidance": _SPACING})
    closed = _marked(calling, closed_schema(written))
    # What closing adds must not be what makes it too long.
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
    """The schema of a tool's arguments, with pointers that hold where it will stand."""
    root = f"#/$defs/{_definition(at)}"

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(each) for each in value]
        if not isinstance(value, dict):
            return value
        made = {name: moved(each) for name, each in value.items()}
        pointer = made.get("$ref")
        if isinstance(pointer, str) and pointer.startswith("#"):
            made["$ref"] = root + pointer[1:]
        return made

    return moved(tool.function.parameters or _NO_PARAMETERS)


def _call_schema(form: CallFormat, tool: Tool, at: int) -> dict[str, Any]:
    parameters = {"$ref": f"#/$defs/{_definition(at)}"}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.function.name}, form.arguments_key: parameters},
        "required": ["name", form.arguments_key],
        "additionalProperties": False,
    }


def _is_control(mark: str, vocabulary: Vocabulary) -> bool:
    name = mark.encode()
    return any(vocabulary.pieces[token] == name for token in vocabulary.control)


def offered(tools: list[Tool]) -> list[dict[str, Any]]:
    """The tools as chat templates read them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                "description": tool.function.description or "",
                "parameters": tool.function.parameters or _NO_PARAMETERS,
            },
        }
        for tool in tools
    ]


def message_values(message: ChatMessage, index: int) -> dict[str, Any]:
    """A message as chat templates read it; arguments become objects."""
    role = "system" if message.role == "developer" else message.role
    values: dict[str, Any] = {"role": role, "content": message.text or ""}
    if message.name is not None:
        values["name"] = message.name
    if message.tool_call_id is not None:
        values["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        values["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments, index),
                },
            }
            for call in message.tool_calls
        ]
    return values


def _arguments(text: str, index: int) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"messages[{index}].tool_calls has arguments that are no JSON object.", "messages"
        )
    return value


def as_text(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """The same conversation for a template that knows no tools: all of it as text."""
    told = [_as_text(message) for message in messages]
    if not tools:
        return told
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    introduction = _INTRODUCTION.format(tools=listed)
    if told[0]["role"] == "system":
        first = {**told[0], "content": f"{told[0]['content']}\n\n{introduction}"}
        return [first, *told[1:]]
    return [{"role": "system", "content": introduction}, *told]


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
