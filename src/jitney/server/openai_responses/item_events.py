"""From the deltas of a chat to items of a response and their events: `ItemWriter`. Pure; one thread
at a time.

A writer is fed with deltas in OpenAI's chat form: `reasoning_content`, `content`, `tool_calls`.
Each kind is an item of its own, one behind the other. Events are numbered from 0; their numbers,
and the ids of items, follow from the id of the response and the deltas alone; calls have the ids of
their deltas, which may be the model's own. So events that are made again from stored deltas are the
same, and whoever has some of them can go on by number.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jitney.server.openai.replies import Json, dump_json

Logprobs = list[Json]

ID_DIGITS = 32
"""Of the id of a response, which those of its items begin with."""

_ENDS: Mapping[str, str] = {
    "completed": "response.completed",
    "failed": "response.failed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
}
"""The last event for each state. OpenAI's interface has none of its own for a cancel."""

DONE = b"data: [DONE]\n\n"


class _Text:
    """A message or a thought that is being written."""

    def __init__(self, item: Json, kind: str, name: str) -> None:
        self.item = item
        self.part: Json = {"type": kind, "text": ""}
        if kind == "output_text":
            self.part |= {"annotations": [], "logprobs": []}
        self.name = name
        """The first words of its events."""
        self.texts: list[str] = []


class ItemWriter:
    """The items of one response so far, and the events that led there.

    Methods give events as server-sent ones: those behind the number `after`.
    """

    def __init__(self, response_id: str, after: int = -1) -> None:
        self._base = response_id.removeprefix("resp_")
        self._after = after
        self.items: list[Json] = []
        """The output. The last may be open."""
        self.event_count = 0
        self._text: _Text | None = None
        """What is written, if the last item is open and no call."""
        self._call: Json | None = None
        """The call that is written, if the last item is one."""
        self._arguments: list[str] = []
        self._call_index = -1

    def tell(self, kind: str, response: Json) -> bytes:
        """An event that has the whole response."""
        return self._event(kind, {"response": response})

    def push(self, delta: Json, logprobs: Logprobs | None = None) -> bytes:
        """Events of one delta of a chat."""
        events: list[bytes] = []
        if thought := delta.get("reasoning_content"):
            self._write(events, "reasoning", thought, None)
        if text := delta.get("content"):
            self._write(events, "message", text, logprobs)
        elif logprobs and self._text is not None and self._text.name == "output_text":
            self._text.part["logprobs"] += logprobs
        for part in delta.get("tool_calls") or ():
            self._write_call(events, part)
        return b"".join(events)

    def close(self, status: str = "completed") -> bytes:
        """Events of the end of what is open; it ends in this state."""
        events: list[bytes] = []
        if not self.items and status == "completed":
            self._begin(events, "message")
        self._close(events, status)
        return b"".join(events)

    def end(self, response: Json) -> bytes:
        """The last event."""
        return self.tell(_ENDS[response["status"]], response)

    def error(self, code: str, message: str) -> bytes:
        """An event that says why no more come, whatever number the caller asked from."""
        self.event_count = max(self.event_count, self._after + 1)
        return self._event("error", {"code": code, "message": message, "param": None})

    def _write(self, events: list[bytes], kind: str, text: str, logprobs: Logprobs | None) -> None:
        if self._text is None or self._text.item["type"] != kind:
            self._close(events, "completed")
            self._begin(events, kind)
        written = self._text
        assert written is not None
        written.texts.append(text)
        fields: Json = {**self._place(written.item), "content_index": 0, "delta": text}
        if kind == "message":
            fields["logprobs"] = logprobs or []
            written.part["logprobs"] += logprobs or []
        events.append(self._event(f"response.{written.name}.delta", fields))

    def _begin(self, events: list[bytes], kind: str) -> None:
        """Open a message or a thought, with its one part."""
        if kind == "message":
            item = self._add("msg", {"type": "message", "role": "assistant", "content": []})
            self._text = _Text(item, "output_text", "output_text")
        else:
            item = self._add("rs", {"type": "reasoning", "summary": [], "content": []})
            self._text = _Text(item, "reasoning_text", "reasoning_text")
        part = dict(self._text.part)
        events.append(self._item_event("added", item))
        fields = {**self._place(item), "content_index": 0, "part": part}
        events.append(self._event("response.content_part.added", fields))

    def _write_call(self, events: list[bytes], part: Json) -> None:
        function = part.get("function") or {}
        if part["index"] != self._call_index:
            self._close(events, "completed")
            self._call_index = part["index"]
            names = {"call_id": part["id"], "name": function["name"]}
            item = self._add("fc", {"type": "function_call", **names, "arguments": ""})
            self._call, self._arguments = item, []
            events.append(self._item_event("added", item))
        if self._call is not None and (text := function.get("arguments")):
            self._arguments.append(text)
            fields = {**self._place(self._call), "delta": text}
            events.append(self._event("response.function_call_arguments.delta", fields))

    def _close(self, events: list[bytes], status: str) -> None:
        """End the item that is open."""
        if self._text is not None:
            self._close_text(events, self._text)
        elif self._call is not None:
            self._call["arguments"] = "".join(self._arguments)
            called: Json = {name: self._call[name] for name in ("name", "arguments")}
            fields = {**self._place(self._call), **called}
            events.append(self._event("response.function_call_arguments.done", fields))
        else:
            return
        self._text = self._call = None
        self.items[-1]["status"] = status
        events.append(self._item_event("done", self.items[-1]))

    def _close_text(self, events: list[bytes], written: _Text) -> None:
        item, part = written.item, written.part
        part["text"] = "".join(written.texts)
        item["content"] = [part]
        place: Json = {**self._place(item), "content_index": 0}
        done: Json = {name: part[name] for name in ("text", "logprobs") if name in part}
        events.append(self._event(f"response.{written.name}.done", {**place, **done}))
        events.append(self._event("response.content_part.done", {**place, "part": part}))

    def _add(self, prefix: str, fields: Json) -> Json:
        """A new item behind the others."""
        item_id = f"{prefix}_{self._base}{len(self.items):02x}"
        self.items.append({"id": item_id, "status": "in_progress", **fields})
        return self.items[-1]

    def _place(self, item: Json) -> Json:
        return {"item_id": item["id"], "output_index": len(self.items) - 1}

    def _item_event(self, word: str, item: Json) -> bytes:
        fields = {"output_index": len(self.items) - 1, "item": item}
        return self._event(f"response.output_item.{word}", fields)

    def _event(self, kind: str, fields: Json) -> bytes:
        number, self.event_count = self.event_count, self.event_count + 1
        if number <= self._after:
            return b""
        data = dump_json({"type": kind, "sequence_number": number, **fields})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data.encode())


def output_of(response_id: str, deltas: Sequence[Json], status: str) -> list[Json]:
    """The items that these deltas make, once they have ended."""
    writer = ItemWriter(response_id, after=sys.maxsize)  # no events are written
    for each in deltas:
        push(writer, each)
    # What is open stays so while more comes.
    writer.close(status if status in ("completed", "in_progress") else "incomplete")
    return writer.items


def push(writer: ItemWriter, stored: Json) -> bytes:
    """Events of a delta as it is stored: with its logprobs, if there are any."""
    return writer.push(stored["delta"], stored.get("logprobs"))


def response_of_item(item_id: str) -> str:
    """The id of the response whose answer has an item with this id."""
    return f"resp_{item_id.partition('_')[2][:ID_DIGITS]}"


def kept_delta(choice: Json) -> Json | None:
    """What is stored of a chat's chunk; None if it adds nothing to an item."""
    delta = {name: each for name, each in choice["delta"].items() if name != "role" and each}
    logprobs = (choice.get("logprobs") or {}).get("content")
    if not delta and not logprobs:
        return None
    return {"delta": delta, "logprobs": logprobs} if logprobs else {"delta": delta}


def state_of(finish_reason: Any) -> str:
    """The state of a response whose chat ended so."""
    return "incomplete" if finish_reason == "length" else "completed"
