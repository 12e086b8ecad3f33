"""From a body of Anthropic's to the chat of OpenAI's interface that means the same: `chat_of`.

Worker threads. Pure. What a chat cannot hold is written as text or left out, and named to the
caller; what it would mean is in the notes of the bodies. Raises Refusal and InvalidRequest.

Tests: tests/unit/server/anthropic/test_message_chat.py.
"""

import base64
import json
from typing import Any

from pydantic import ValidationError

from jitney.errors import InvalidRequest
from jitney.server.anthropic.message_body import (
    AnthropicMessage,
    Block,
    CountBody,
    MessagesBody,
    MessageTool,
    NewTool,
    RedactedThinking,
    ServerTool,
    TextBlock,
    Thinking,
    ThinkingConfig,
    ToolAddition,
    ToolRemoval,
    ToolResult,
    ToolUse,
)
from jitney.server.anthropic.message_fields import MODEL, REDACTED, SERVER_TOOLS
from jitney.server.error_object import Refusal
from jitney.server.openai.chat_body import ChatBody, check_turns
from jitney.server.openai.replies import Json
from jitney.server.openai.translate import check_model
from jitney.server.service import Service

BILLING = "x-anthropic-billing-header:"
"""How the line begins that Claude Code puts before its system prompt. It differs from call to call
(`cch=...`, `cc_prev_req=...`), and says nothing to a model."""

OWN_MODELS = "claude-"
"""How Anthropic's names of models begin."""

_SIGNED = "jitney-"
"""How a signature of ours begins."""

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def check_name(service: Service, name: str, ignored: list[str] | None) -> None:
    """Refuse the name of a model that is not served, unless it is one of Anthropic's own.

    Agents ask several of those beside the one that they were given. The reply says who answered.
    """
    if name in service.settings.served_model_name:
        return
    if ignored is None or not name.startswith(OWN_MODELS):
        check_model(service, name)
    else:
        ignored.append(MODEL)


def chat_of(body: CountBody, ignored: list[str] | None) -> ChatBody:
    """The same as a chat. What is left out is added to `ignored`; without that list it is refused.
    Raises InvalidRequest and Refusal."""
    chat = _Conversation(ignored)
    chat.add_tools(body.tools or [])
    for message in body.messages:
        chat.add(message)
    if not chat.messages:
        raise InvalidRequest("messages has no text, and no call or result.", "messages")
    check_turns(chat.messages, "messages")
    fields = {
        "messages": [*_system(body.system or []), *chat.messages],
        "tools": list(chat.tools.values()) or None,
        **_choice(body, has_tools=bool(chat.tools)),
        **_thinking(body.thinking),
        **_output(body),
        **(_sampling(body) if isinstance(body, MessagesBody) else {}),
        "continue_final_message": chat.ends_with_assistant() or None,
    }
    try:
        return ChatBody.model_validate(fields)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        raise InvalidRequest(f"messages: {found['msg']}", "messages") from None


def _system(blocks: list[TextBlock]) -> list[Json]:
    texts = [each.text for each in blocks]
    while texts and texts[0].startswith(BILLING):
        _, _, rest = texts[0].partition("\n")
        texts[:1] = [rest] if rest.strip() else []
    return [{"role": "system", "content": "\n".join(texts)}] if texts else []


class _Conversation:
    """The messages of a chat as they are added, and the tools that there are at its end."""

    def __init__(self, ignored: list[str] | None) -> None:
        self.messages: list[Json] = []
        self.tools: dict[str, Json] = {}
        self._known: dict[str, Json] = {}
        """All tools so far: one that went may come back by its name."""
        self._elsewhere: list[Any] = []
        """Names of tools that were left out, as they came."""
        self._ignored = ignored

    def add_tools(self, tools: list[MessageTool | ServerTool]) -> None:
        """The tools of the body."""
        own = [each for each in tools if isinstance(each, MessageTool)]
        if len(own) < len(tools):
            message = "tools that Anthropic's servers run are not there; send an input_schema"
            self._leave_out(SERVER_TOOLS, message, may_ignore=bool(own))
        self._elsewhere = [each.name for each in tools if isinstance(each, ServerTool)]
        for tool in own:
            if tool.name in self.tools:
                raise InvalidRequest("tools has two tools of one name.", "tools")
            self._add_tool(tool)

    def add(self, message: AnthropicMessage) -> None:
        """One more message. Those that follow one another in one role become one."""
        texts = [each.text for each in message.content if isinstance(each, TextBlock)]
        if message.role == "system" and any(texts):
            text = "\n".join(texts)
            self._add_text("user", f"<system-reminder>\n{text}\n</system-reminder>")
        for block in message.content:
            if message.role == "system":
                self._change_tools(block)
            elif message.role == "user":
                self._add_of_user(block)
            else:
                self._add_of_assistant(block)
        if message.role == "assistant" and not message.content:
            self._last("assistant")

    def ends_with_assistant(self) -> bool:
        """Whether the answer goes on with what is there. Raises InvalidRequest for open calls."""
        last = self.messages[-1] if self.messages else {}
        if last.get("tool_calls"):
            raise InvalidRequest(
                "messages ends with a tool_use; its tool_result is missing.", "messages"
            )
        return last.get("role") == "assistant"

    def _leave_out(self, name: str, reason: str, *, may_ignore: bool = True) -> None:
        if self._ignored is None or not may_ignore:
            message = f"{name} is not supported: {reason}."
            raise Refusal("unsupported_parameter", message, param=name)
        if name not in self._ignored:
            self._ignored.append(name)

    def _change_tools(self, block: Block) -> None:
        if isinstance(block, ToolAddition):
            if isinstance(block.tool, NewTool):
                self._add_tool(block.tool.definition)
            elif (tool := self._known.get(block.tool.name)) is not None:
                self.tools[block.tool.name] = tool
            elif block.tool.name not in self._elsewhere:
                raise _unknown(block.tool.name)
        elif isinstance(block, ToolRemoval):
            self.tools.pop(block.tool.name, None)
        elif not isinstance(block, TextBlock):
            raise _misplaced(block, "system")

    def _add_tool(self, tool: MessageTool) -> None:
        self.tools[tool.name] = self._known[tool.name] = _tool(tool)

    def _add_of_user(self, block: Block) -> None:
        if isinstance(block, TextBlock):
            self._add_text("user", block.text)
        elif isinstance(block, ToolResult):
            content = _result(block)
            self.messages.append(
                {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
            )
        else:
            raise _misplaced(block, "user")

    def _add_of_assistant(self, block: Block) -> None:
        if isinstance(block, TextBlock):
            self._add_text("assistant", block.text)
        elif isinstance(block, ToolUse):
            self._last("assistant").setdefault("tool_calls", []).append(_call(block))
        elif isinstance(block, Thinking):
            if thought := block.thinking or _carried(block.signature):
                last = self._last("assistant")
                last["reasoning_content"] = last.get("reasoning_content", "") + thought
        elif isinstance(block, RedactedThinking):
            self._last("assistant")
            self._leave_out(REDACTED, "only Anthropic's servers can read it; leave it out")
        else:
            raise _misplaced(block, "assistant")

    def _add_text(self, role: str, text: str) -> None:
        last = self._last(role)
        last["content"] = f"{last['content']}\n{text}" if last["content"] else text

    def _last(self, role: str) -> Json:
        """The last message if it is of this role, or a new one."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": ""})
        return self.messages[-1]


def _misplaced(block: Block, role: str) -> InvalidRequest:
    return InvalidRequest(f"messages: {block.type} has no place in one of {role}.", "messages")


def _unknown(name: str) -> InvalidRequest:
    message = f"messages: tool_addition names {name}, which is no tool so far; send its definition."
    return InvalidRequest(message, "messages")


def _result(block: ToolResult) -> str:
    parts = [
        each.text if isinstance(each, TextBlock) else f"The tool {each.tool_name} can be called."
        for each in block.content or []
    ]
    text = "\n".join(parts)
    return f"Error: {text}" if block.is_error else text


def _call(block: ToolUse) -> Json:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "function": {"name": block.name, "arguments": arguments}}


def _tool(tool: MessageTool) -> Json:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    return {"type": "function", "function": function}


def _choice(body: CountBody, *, has_tools: bool) -> Json:
    choice = body.tool_choice
    if choice is None:
        return {}
    if (choice.type == "tool") != (choice.name is not None):
        raise InvalidRequest("tool_choice: tool, and only tool, has a name.", "tool_choice")
    if not has_tools and choice.type in ("any", "tool"):
        raise InvalidRequest("tool_choice asks for a tool, and there are none.", "tool_choice")
    named = {"type": "function", "function": {"name": choice.name}}
    fields: Json = {"tool_choice": _CHOICES.get(choice.type, named)}
    if choice.disable_parallel_tool_use and has_tools:
        fields["parallel_tool_calls"] = False
    return fields


def _thinking(config: ThinkingConfig | None) -> Json:
    is_on = config is not None and config.type != "disabled"
    fields: Json = {"chat_template_kwargs": {"enable_thinking": is_on}}
    if config is None:
        return fields
    if (config.type == "enabled") != (config.budget_tokens is not None):
        raise InvalidRequest("thinking: enabled, and only enabled, has budget_tokens.", "thinking")
    if config.budget_tokens is not None:
        fields["thinking_token_budget"] = config.budget_tokens
    return fields


def _output(body: CountBody) -> Json:
    config, fields = body.output_config, dict[str, Any]()
    if config is not None and config.effort is not None:
        fields["reasoning_effort"] = config.effort
    if config is not None and config.format is not None:
        named = {"name": "answer", "schema": config.format.schema_}
        fields["response_format"] = {"type": "json_schema", "json_schema": named}
    return fields


def _sampling(body: MessagesBody) -> Json:
    return {
        "max_tokens": body.max_tokens,
        "stream": body.stream,
        "stop": body.stop_sequences or None,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "user": body.metadata.user_id if body.metadata is not None else None,
    }


def carried(thought: str) -> str:
    """A signature that carries a thought which the caller does not want to see."""
    return _SIGNED + base64.b64encode(thought.encode()).decode()


def _carried(signature: str | None) -> str:
    """The thought in a signature of ours; empty if it is none."""
    if not signature or not signature.startswith(_SIGNED):
        return ""
    try:
        return base64.b64decode(signature.removeprefix(_SIGNED), validate=True).decode()
    except ValueError:
        return ""
