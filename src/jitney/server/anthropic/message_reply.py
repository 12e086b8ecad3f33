"""Replies in Anthropic's form, made from those of OpenAI's: `MessageReply`. Pure; one thread at a
time.

A stream is blocks of thinking, text and tool use, one after the other. A whole reply is made from
the events of a stream, so both have the same blocks.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from jitney.core.request import Request
from jitney.engine.answer import Answer, Delta, Usage
from jitney.server.anthropic.message_body import MessagesBody
from jitney.server.anthropic.message_chat import carried
from jitney.server.anthropic.message_errors import error_body
from jitney.server.error_object import Refusal
from jitney.server.openai.conversation import INVALID, arguments_of
from jitney.server.openai.replies import Json, Reply, dump_json

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
"""What a stream says that has nothing to say."""

_TEXT, _THINKING, _TOOL = "text", "thinking", "tool_use"
_DELTAS = {
    _TEXT: ("text_delta", "text"),
    _THINKING: ("thinking_delta", "thinking"),
    _TOOL: ("input_json_delta", "partial_json"),
}
"""For each kind of block: the type of what is added to it, and the name of its text."""

_REASONS = {"tool_calls": "tool_use", "stop": "end_turn", "length": "max_tokens"}
_SIGNATURE = "jitney"
"""Of thinking whose text is there. Some clients send back no thinking without one."""


def message_event(value: Json) -> bytes:
    """One server-sent event, with its name."""
    return f"event: {value['type']}\ndata: {dump_json(value)}\n\n".encode()


@dataclass(slots=True)
class _Blocks:
    """Turns deltas of OpenAI's chats into events; `index` is that of the block that is open."""

    hides_thinking: bool = False
    index: int = -1
    kind: str | None = None
    _thought: list[str] = field(default_factory=list)
    """What is not shown of the open block."""
    _call: int = -1
    _has_input: bool = False
    _end: str = ""
    """What is still written behind the input of a tool."""

    def events(self, delta: Json) -> list[Json]:
        """What a delta adds."""
        found: list[Json] = []
        if thought := delta.get("reasoning_content"):
            found += self._opened(_THINKING, {"thinking": "", "signature": ""})
            if self.hides_thinking:
                self._thought.append(thought)
            else:
                found.append(self._added(thought))
        if text := delta.get("content"):
            found += [*self._opened(_TEXT, {"text": ""}), self._added(text)]
        for part in delta.get("tool_calls") or ():
            found += self._called(part)
        return found

    def closed(self) -> list[Json]:
        """The end of the open block, if one is."""
        if self.kind is None:
            return []
        found: list[Json] = []
        if self.kind == _THINKING:
            signature = carried("".join(self._thought)) if self.hides_thinking else _SIGNATURE
            signed = {"type": "signature_delta", "signature": signature}
            found = [{"type": "content_block_delta", "index": self.index, "delta": signed}]
        elif self._end:
            found = [self._added(self._end)]
        self.kind, self._thought, self._end = None, [], ""
        return [*found, {"type": "content_block_stop", "index": self.index}]

    def _called(self, part: Json) -> list[Json]:
        """What a part of a call adds; its first part has a head. An input that begins as no object
        is a string in one."""
        found: list[Json] = []
        function = part["function"]
        text = function.get("arguments")
        if part["index"] != self._call:
            self._call, self._has_input = part["index"], False
            head = {"id": part["id"], "name": function["name"], "input": {}}
            found += self._opened(_TOOL, head, is_new=True)
        if text and not self._has_input:
            self._has_input = True
            if text.lstrip()[:1] != "{":
                found.append(self._added(f'{{"{INVALID}": "'))
                self._end = '"}'
        if text:
            found.append(self._added(json.dumps(text)[1:-1] if self._end else text))
        return found

    def _opened(self, kind: str, head: Json, *, is_new: bool = False) -> list[Json]:
        if kind == self.kind and not is_new:
            return []
        found = self.closed()
        self.kind = kind
        self.index += 1
        block = {"type": kind, **head}
        return [
            *found,
            {"type": "content_block_start", "index": self.index, "content_block": block},
        ]

    def _added(self, text: str) -> Json:
        assert self.kind is not None, "A block is open"
        kind, name = _DELTAS[self.kind]
        delta = {"type": kind, name: text}
        return {"type": "content_block_delta", "index": self.index, "delta": delta}


def content_of(events: list[Json]) -> list[Json]:
    """The blocks that these events tell of."""
    blocks: list[Json] = []
    inputs: dict[int, str] = {}
    for each in events:
        if each["type"] == "content_block_start":
            blocks.append(each["content_block"])
        elif each["type"] == "content_block_delta":
            delta = each["delta"]
            ((name, text),) = [pair for pair in delta.items() if pair[0] != "type"]
            if name == "partial_json":
                inputs[each["index"]] = inputs.get(each["index"], "") + text
            else:
                blocks[each["index"]][name] += text
    for index, text in inputs.items():
        blocks[index]["input"] = arguments_of(text)
    return blocks


@dataclass(slots=True)
class MessageReply:
    """The reply to one call, in Anthropic's form; `max_tokens` is what the caller asked for, and
    `http_id` the name of the call."""

    _reply: Reply
    max_tokens: int
    http_id: str
    hides_thinking: bool = False
    _blocks: _Blocks = field(init=False)
    _end: Json = field(default_factory=dict)
    """Why it ended, as OpenAI's interface says it."""
    _has_begun: bool = False

    def __post_init__(self) -> None:
        self._blocks = _Blocks(self.hides_thinking)

    @property
    def id(self) -> str:
        """The name of the reply."""
        return "msg_" + self._reply.id.removeprefix("chatcmpl-")

    @property
    def requests(self) -> tuple[Request, ...]:
        """The one request."""
        return self._reply.requests

    @property
    def streams(self) -> bool:
        """Whether the caller reads events."""
        return self._reply.streams

    def whole(self, answers: list[Answer]) -> Json:
        """The reply, all at once."""
        (answer,) = answers
        (done,) = answer.completions
        last = Delta(
            index=0,
            text=done.text,
            tokens=done.tokens,
            finish_reason=done.finish_reason,
            stop_reason=done.stop_reason,
        )
        content = content_of(self._taken(last))
        ending = self._ending(answer.usage)
        return {**self._message(content), **ending, "usage": usage_of(answer.usage)}

    def events(self, place: int, delta: Delta, completion_count: int) -> bytes:
        """What a delta adds to a stream."""
        found = self._begun() + self._taken(delta)
        return b"".join(map(message_event, found))

    def closing(self, usages: list[Usage]) -> bytes:
        """What ends a stream."""
        (usage,) = usages
        delta = {"type": "message_delta", "delta": self._ending(usage), "usage": usage_of(usage)}
        return message_event(delta) + message_event({"type": "message_stop"})

    def failed(self, body: Json) -> bytes:
        """What ends a stream that failed."""
        error = body["error"]
        refusal = Refusal(error["code"], error["message"])
        return message_event(error_body(refusal, self.http_id))

    def _taken(self, delta: Delta) -> list[Json]:
        """The events of a delta, and at its end those that close the last block."""
        found: list[Json] = []
        for choice in self._reply.choices.parts(0, delta):
            found += self._blocks.events(choice["delta"])
            if choice["finish_reason"] is not None:
                self._end = choice
                found += self._blocks.closed()
        return found

    def _begun(self) -> list[Json]:
        if self._has_begun:
            return []
        self._has_begun = True
        # How much of it comes from the cache is told with the end: it is not known before.
        counted = Usage(
            prompt_count=len(self.requests[0].prompt), completion_count=0, cached_count=0
        )
        message = {
            **self._message([]),
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_of(counted),
        }
        return [{"type": "message_start", "message": message}]

    def _message(self, content: list[Json]) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._reply.model,
            "content": content,
        }

    def _ending(self, usage: Usage) -> Json:
        """Why it ended. An answer that ends before as many tokens as were asked for has filled the
        context."""
        reason, stop = self._end.get("finish_reason"), self._end.get("stop_reason")
        if reason == "stop" and isinstance(stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        if reason == "length" and 0 <= usage.completion_count < self.max_tokens:
            return {"stop_reason": "model_context_window_exceeded", "stop_sequence": None}
        return {"stop_reason": _REASONS.get(str(reason), "end_turn"), "stop_sequence": None}


def usage_of(usage: Usage) -> Json:
    """What was counted. Nothing is charged for what enters the cache: it is part of the input."""
    return {
        "input_tokens": usage.prompt_count - usage.cached_count,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_count,
        "output_tokens": usage.completion_count,
        "service_tier": "standard",
    }


def message_form(body: MessagesBody, http_id: str) -> Callable[[Reply], MessageReply]:
    """Makes replies to this body, in Anthropic's form, out of OpenAI's."""
    hides = body.thinking is not None and body.thinking.display == "omitted"
    return lambda reply: MessageReply(reply, body.max_tokens, http_id, hides)
