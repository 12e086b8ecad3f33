"""From the deltas of a chat to items of a response and their events: `ItemWriter`. Pure; one thread
at a time.

A writer is fed with deltas in OpenAI's chat form: `reasoning_content`, `content`, `tool_calls`.
Events are numbered from 0; their numbers, and the ids of items, follow from the id of the response
and the deltas alone; calls have the ids of their deltas, which may be the model's own. So events
that are made again from stored deltas are the same, and whoever has some of them can go on by
number.

Four events at the end of an item have all of its text and logprobs. Those are made JSON once, with
their delta, and the same bytes are in each: the logprobs of a long answer take a second to write.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jitney.server.openai.replies import SLICE_ITEMS, Json, dump_json, dump_slices
from jitney.server.openai_responses.item_list import (
    CALL,
    MESSAGE,
    Atom,
    ItemList,
    OutputItem,
    atoms_of,
    part_of,
)

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

_TEXT_EVENTS, _CALL_EVENTS = 3, 2
"""Events at the end of an item."""


class Written(list[bytes]):
    """JSON that is written already, in parts that others may have too."""


class Content:
    """What is in one item, as JSON: delta by delta, and at its end in one part each."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._logprobs: list[str] = []
        self._whole: tuple[Written, Written] | None = None

    def add(self, atom: Atom) -> tuple[str, str]:
        """Add the text and the logprobs of an atom; both as JSON."""
        text, logprobs = dump_json(atom.text), _dump_list(atom.logprobs)
        self._texts.append(text[1:-1])
        if atom.logprobs:
            self._logprobs.append(logprobs[1:-1])
        return text, logprobs

    def whole(self) -> tuple[Written, Written]:
        """All of its text, and of its logprobs. Nothing is added any more."""
        if self._whole is None:
            text, logprobs = "".join(self._texts), ",".join(self._logprobs)
            self._texts, self._logprobs = [], []
            self._whole = (
                Written((b'"', text.encode(), b'"')),
                Written((b"[", logprobs.encode(), b"]")),
            )
        return self._whole


class ItemWriter:
    """The items of one response so far, and the events that led there.

    Methods give events as server-sent ones, in parts: those behind the number `after`. A writer
    that does not keep what is in its items may `forget` that of the open one, and is given it again
    before the item ends; and it does not write the end of the response.
    """

    def __init__(self, response_id: str, after: int = -1, *, keeps: bool = True) -> None:
        self._after = after
        self._keeps = keeps
        self._list = ItemList(response_id, keeps=keeps)
        self._contents: list[Content] = []
        """Of all items, where they are kept."""
        self._content: Content | None = None
        """Of the open item, unless it was forgotten."""
        self._around = "", ""
        """What its deltas have before their number, and between that and their text."""
        self.event_count = 0

    @property
    def open(self) -> OutputItem | None:
        """The item that is written."""
        return self._list.open

    @property
    def closing_count(self) -> int:
        """How many events the end of the open item has."""
        if self.open is None:
            return 0
        return _CALL_EVENTS if self.open.kind == CALL else _TEXT_EVENTS

    def wants(self, count: int) -> bool:
        """Whether any of the next so many events is behind the number."""
        return self.event_count + count - 1 > self._after

    def begins(self, atom: Atom) -> bool:
        """Whether the open item ends before this atom, and another begins."""
        return self._list.begins(atom)

    def tell(self, response: Json, *kinds: str) -> list[bytes]:
        """Events that have this response without items."""
        written = _written(response)
        return [part for kind in kinds for part in self._event(kind, {"response": written})]

    def push(self, stored: Json) -> bytes:
        """Events of one delta of a chat, as it is stored."""
        return b"".join(part for atom in atoms_of(stored) for part in self.take(atom))

    def take(self, atom: Atom) -> list[bytes]:
        """Events of a part of a delta."""
        events: list[bytes] = []
        if self._list.begins(atom):
            events += self.end_item()
            events += self._begin(atom.kind, atom.call)
        item = self._list.taker(atom)
        if item is None:
            return events
        if not (self._keeps or self.wants(1)):
            self.forget()
            self.event_count += bool(atom.text)
            return events
        written = (self._content or Content()).add(atom)
        return events + self._delta(item, *written) if atom.text else events

    def forget(self) -> None:
        """Keep nothing of what is in the open item."""
        self._content = None

    @property
    def misses_content(self) -> bool:
        """Whether what is in the open item has to be given before it ends."""
        is_forgotten = self.open is not None and self._content is None
        return is_forgotten and self.wants(self.closing_count)

    def end_item(self, status: str = "completed", content: Content | None = None) -> list[bytes]:
        """Events of the end of the open item, if there is one; it ends in this state."""
        item, count = self.open, self.closing_count
        content = content or self._content
        if item is None or not self.wants(count):
            self._list.end(status)
            self.event_count += count
            return []
        assert content is not None, "it was given"
        self._list.end(status)
        text, logprobs = content.whole()
        events: list[bytes] = []
        place = self._place(item)
        if item.kind == CALL:
            fields = {**place, "name": item.head["name"], "arguments": text}
            events += self._event("response.function_call_arguments.done", fields)
        else:
            part = part_of(item.kind)
            done = {"text": text} | ({"logprobs": logprobs} if "logprobs" in part else {})
            place["content_index"] = 0
            events += self._event(f"response.{part['type']}.done", {**place, **done})
            fields = {**place, "part": _written({**part, **done})}
            events += self._event("response.content_part.done", fields)
        return events + self._item_event("done", _whole_item(item, text, logprobs))

    def close(self, status: str = "completed") -> list[bytes]:
        """Events of the end of what is open, with the whole answer; there is an item at least, if
        it is completed."""
        events: list[bytes] = []
        if not self._list.count and status == "completed":
            events += self._begin(MESSAGE)
        return events + self.end_item(status)

    def end(self, response: Json) -> list[bytes]:
        """The last event: the response with all items, which are kept."""
        output = Written([b"["])
        for item, content in zip(self._list.items, self._contents, strict=True):
            output += (b"," if len(output) > 1 else b"",)
            output += _whole_item(item, *content.whole())
        whole = _written({**response, "output": Written((*output, b"]"))})
        return [*self._event(_ENDS[response["status"]], {"response": whole}), DONE]

    def error(self, code: str, message: str) -> list[bytes]:
        """An event that says why no more come, whatever number the caller asked from."""
        self.event_count = max(self.event_count, self._after + 1)
        return self._event("error", {"code": code, "message": message, "param": None})

    def _begin(self, kind: str, call: Json | None = None) -> list[bytes]:
        """Open an item; a message or a thought with its one part."""
        item = self._list.begin(kind, call)
        self._content, self._around = Content(), self._delta_around(item)
        if self._keeps:
            self._contents.append(self._content)
        events = self._item_event("added", item.head)
        if kind != CALL:
            fields = {**self._place(item), "content_index": 0, "part": part_of(kind)}
            events += self._event("response.content_part.added", fields)
        return events

    def _delta(self, item: OutputItem, text: str, logprobs: str) -> list[bytes]:
        """The event of each token, so it is not made by way of an object."""
        number, self.event_count = self.event_count, self.event_count + 1
        if number <= self._after:
            return []
        before, behind = self._around
        rest = f',"logprobs":{logprobs}' if item.kind == MESSAGE else ""
        return [f"{before}{number}{behind}{text}{rest}}}\n\n".encode()]

    def _delta_around(self, item: OutputItem) -> tuple[str, str]:
        place = self._place(item)
        name = "function_call_arguments"
        if item.kind != CALL:
            place["content_index"] = 0
            name = part_of(item.kind)["type"]
        kind = f"response.{name}.delta"
        before = f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":'
        return before, f',{dump_json(place)[1:-1]},"delta":'

    def _place(self, item: OutputItem) -> Json:
        return {"item_id": item.head["id"], "output_index": self._list.count - 1}

    def _item_event(self, word: str, item: Json | Written) -> list[bytes]:
        fields = {"output_index": self._list.count - 1, "item": item}
        return self._event(f"response.output_item.{word}", fields)

    def _event(self, kind: str, fields: Json) -> list[bytes]:
        number, self.event_count = self.event_count, self.event_count + 1
        if number <= self._after:
            return []
        data = _written({"type": kind, "sequence_number": number, **fields})
        return [b"event: %b\ndata: " % kind.encode(), *data, b"\n\n"]


def _whole_item(item: OutputItem, text: Written, logprobs: Written) -> Written:
    if item.kind == CALL:
        return _written({**item.head, "arguments": text})
    part = {**part_of(item.kind), "text": text}
    if item.kind == MESSAGE:
        part["logprobs"] = logprobs
    return _written({**item.head, "content": Written((b"[", *_written(part), b"]"))})


def _written(fields: Json) -> Written:
    """An object as JSON, with what is written already behind the rest."""
    plain = {name: each for name, each in fields.items() if not isinstance(each, Written)}
    assert plain, "an object has a type, an id or a number"
    parts = Written((dump_json(plain)[:-1].encode(),))
    for name, each in fields.items():
        if isinstance(each, Written):
            parts += (b',"%b":' % name.encode(), *each)
    parts.append(b"}")
    return parts


def _dump_list(values: Sequence[Json]) -> str:
    """In slices only where it is long: they take longer."""
    return dump_json(values) if len(values) <= SLICE_ITEMS else dump_slices(values)


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
