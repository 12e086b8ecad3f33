"""From the body of a response, and what came before it, to the body of a chat. Pure; any thread.

A conversation is a list of items; a chat has messages. The calls of one turn and its text become
one message of the assistant. All that systems and developers say first becomes one message, because
most chat templates take one.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jitney.errors import InvalidRequest
from jitney.server.openai.bodies import SamplingFields
from jitney.server.openai.chat_body import ChatBody, check_turns
from jitney.server.openai.check_body import check_fields
from jitney.server.openai_responses.response_body import (
    AllowedTools,
    ChosenTool,
    FormatOfText,
    ReferenceItem,
    ResponseBody,
)
from jitney.server.openai_responses.skipped_kinds import LOGPROBS

Json = dict[str, Any]  # Any: a JSON value

NONE: Mapping[str, Json] = {}

_SYSTEM = ("system", "developer")


def chat_body(
    body: ResponseBody, earlier: Iterable[Json] = (), referred: Mapping[str, Json] = NONE
) -> ChatBody:
    """The chat that answers a body behind these items. Raises Refusal and InvalidRequest."""
    items = [*earlier, *input_items(body, referred)]
    messages = messages_of(body.instructions, items)
    if not messages:
        raise InvalidRequest("input has nothing that could be answered.", "input")
    check_turns(messages, "input")
    fields = {
        **_sampling(body),
        "messages": messages,
        "max_tokens": body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls,
        **_tools(body),
        **_form(body.text.format if body.text is not None else None),
        **_logprobs(body),
    }
    if body.reasoning is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    return check_fields({name: each for name, each in fields.items() if each is not None}, ChatBody)


def input_items(body: ResponseBody, referred: Mapping[str, Json] = NONE) -> list[Json]:
    """The items of a body as JSON; in the place of references the items with these ids."""
    return [
        referred[each.id] if isinstance(each, ReferenceItem) else each.model_dump(exclude_none=True)
        for each in body.input
    ]


def messages_of(instructions: str | None, items: Iterable[Json]) -> list[Json]:
    """The messages of a conversation."""
    messages: list[Json] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        _ADD[item["type"]](messages, item)
    return messages


def _add_message(messages: list[Json], item: Json) -> None:
    role, text = item["role"], text_of(item["content"])
    last = messages[-1] if messages else {}
    is_head = role in _SYSTEM and all(each["role"] in _SYSTEM for each in messages)
    if last and (is_head or role == last["role"] == "assistant"):
        last["content"] = "\n\n".join(each for each in (last.get("content"), text) if each)
    else:
        messages.append({"role": role, "content": text})


def _add_call(messages: list[Json], item: Json) -> None:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant"})
    function = {"name": item["name"], "arguments": item["arguments"]}
    calls = messages[-1].setdefault("tool_calls", [])
    calls.append({"id": item["call_id"], "type": "function", "function": function})


def _add_output(messages: list[Json], item: Json) -> None:
    said = {"tool_call_id": item["call_id"], "content": text_of(item["output"])}
    messages.append({"role": "tool", **said})


def _add_thought(messages: list[Json], item: Json) -> None:
    """What was thought before a message or a call; one that is encrypted cannot be read."""
    thought = text_of(item.get("content") or item.get("summary") or [])
    if thought:
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant"})
        before = messages[-1].get("reasoning_content")
        messages[-1]["reasoning_content"] = "\n\n".join(filter(None, (before, thought)))


_ADD: Mapping[str, Callable[[list[Json], Json], None]] = {
    "message": _add_message,
    "function_call": _add_call,
    "function_call_output": _add_output,
    "reasoning": _add_thought,
}


def text_of(content: str | list[Json]) -> str:
    """The text of an item; parts are lines of it, as in a chat."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _sampling(body: ResponseBody) -> Json:
    """Fields of the same name and meaning."""
    own = set(ResponseBody.model_fields) & set(SamplingFields.model_fields)
    names = own - set(ResponseBody.refused) - {"stream_options"}
    given = body.model_dump(include=names & body.model_fields_set, by_alias=True)
    return {name: value for name, value in given.items() if value is not None}


def _tools(body: ResponseBody) -> Json:
    tools, choice = body.tools or [], body.tool_choice
    if isinstance(choice, AllowedTools):
        names = {each.name for each in choice.tools}
        if missing := names - {each.name for each in tools}:
            raise InvalidRequest(
                f"tool_choice names {min(missing)}, which is not among the tools.", "tool_choice"
            )
        tools = [each for each in tools if each.name in names]
    found: Json = {}
    if tools:
        found["tools"] = [_function(each.model_dump(exclude_none=True)) for each in tools]
    if isinstance(choice, ChosenTool):
        found["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice is not None:
        found["tool_choice"] = choice.mode if isinstance(choice, AllowedTools) else choice
    return found


def _function(tool: Json) -> Json:
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


def _form(wanted: FormatOfText | None) -> Json:
    if wanted is None or wanted.type == "text":
        return {}
    if wanted.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    if wanted.name is None:
        raise InvalidRequest("text.format of type json_schema has a name and a schema.", "text")
    named = wanted.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _logprobs(body: ResponseBody) -> Json:
    is_included = LOGPROBS in (body.include or ())
    if body.top_logprobs is not None and not is_included:
        raise InvalidRequest(f"top_logprobs needs {LOGPROBS} in include.", "top_logprobs")
    return {"logprobs": True, "top_logprobs": body.top_logprobs} if is_included else {}
