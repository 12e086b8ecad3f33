"""Which part of a chat's deltas goes into which item of a response: `ItemList`. Pure; one thread at
a time.

Each kind is an item of its own, one behind the other. A delta is cut into atoms, each of which goes
into one item, so that whoever reads stored deltas can stop between any two of them.

Tests: tests/unit/server/openai_responses/test_item_events.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jitney.server.openai.replies import Json

REASONING, MESSAGE, CALL = "reasoning", "message", "function_call"

_PREFIXES = {REASONING: "rs", MESSAGE: "msg", CALL: "fc"}


class Atom(NamedTuple):
    """A part of one item. With logprobs alone it has no kind, and goes into a message that is
    open."""

    kind: str
    text: str
    logprobs: Sequence[Json] = ()
    call: Json | None = None


@dataclass(slots=True)
class OutputItem:
    """An item, without what is in it; that is in these lists where somebody keeps it."""

    head: Json
    texts: list[str] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Its type."""
        return str(self.head["type"])

    def takes(self, atom: Atom) -> bool:
        """Whether the atom is of its kind."""
        return self.kind == (atom.kind or MESSAGE)

    def object(self) -> Json:
        """The item with what these lists have."""
        text = "".join(self.texts)
        if self.kind == CALL:
            return {**self.head, "arguments": text}
        part: Json = {**part_of(self.kind), "text": text}
        if self.kind == MESSAGE:
            part["logprobs"] = self.logprobs
        return {**self.head, "content": [part]}


class ItemList:
    """The items so far; at most one of them, the last, is open."""

    def __init__(self, response_id: str, *, keeps: bool = True) -> None:
        self._base = response_id.removeprefix("resp_")
        self._keeps = keeps
        self._call_index = -1
        self.items: list[OutputItem] = []
        """All of them, where they are kept."""
        self.count = 0
        self.open: OutputItem | None = None

    def begins(self, atom: Atom) -> bool:
        """Whether an item begins with this atom, and the open one ends before it."""
        if atom.call is not None:
            return bool(atom.call["index"] != self._call_index)
        return bool(atom.kind) and (self.open is None or self.open.kind != atom.kind)

    def begin(self, kind: str, call: Json | None = None) -> OutputItem:
        """Open an item behind the others."""
        item_id = f"{_PREFIXES[kind]}_{self._base}{self.count:02x}"
        head: Json = {"id": item_id, "status": "in_progress", "type": kind}
        if call is not None:
            self._call_index = call["index"]
            head |= {"call_id": call["id"], "name": call["function"]["name"], "arguments": ""}
        else:
            name, value = ("role", "assistant") if kind == MESSAGE else ("summary", [])
            head |= {name: value, "content": []}
        self.open = OutputItem(head)
        self.count += 1
        if self._keeps:
            self.items.append(self.open)
        return self.open

    def end(self, status: str) -> None:
        """The open one, if there is one, ends in this state."""
        if self.open is not None:
            self.open.head["status"] = status
            self.open = None

    def taker(self, atom: Atom) -> OutputItem | None:
        """The open item, if the atom goes into it."""
        return self.open if self.open is not None and self.open.takes(atom) else None


def atoms_of(stored: Json) -> list[Atom]:
    """The parts of a delta as it is stored, with its logprobs."""
    delta, logprobs = stored["delta"], stored.get("logprobs") or ()
    atoms = []
    if thought := delta.get("reasoning_content"):
        atoms.append(Atom(REASONING, thought))
    if text := delta.get("content"):
        atoms.append(Atom(MESSAGE, text, logprobs))
    elif logprobs and not thought:
        atoms.append(Atom("", "", logprobs))
    for part in delta.get("tool_calls") or ():
        arguments = (part.get("function") or {}).get("arguments") or ""
        atoms.append(Atom(CALL, arguments, call=part))
    return atoms


def part_of(kind: str) -> Json:
    """The one part of a message or a thought, as it begins."""
    if kind == MESSAGE:
        return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    return {"type": "reasoning_text", "text": ""}


def output_of(response_id: str, deltas: Sequence[Json], status: str) -> list[Json]:
    """The items that these deltas make, once they have ended."""
    found = ItemList(response_id)
    for stored in deltas:
        for atom in atoms_of(stored):
            if found.begins(atom):
                found.end("completed")
                found.begin(atom.kind, atom.call)
            if (item := found.taker(atom)) is not None:
                item.texts.append(atom.text)
                item.logprobs += atom.logprobs
    if not found.items and status == "completed":
        found.begin(MESSAGE)
    # What is open stays so while more comes.
    found.end(status if status in ("completed", "in_progress") else "incomplete")
    return [item.object() for item in found.items]
