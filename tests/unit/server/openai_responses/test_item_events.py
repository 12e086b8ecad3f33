"""Tests of `ItemWriter`: events are numbered, and say what the items are in the end."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jitney.server.openai_responses.item_events import DONE, Content, ItemWriter, kept_delta
from jitney.server.openai_responses.item_list import atoms_of, output_of

ID = "resp_0123456789abcdef0123456789abcdef"


def call_parts(index: int, name: str, *pieces: str) -> list[dict[str, Any]]:
    head = {"index": index, "id": f"functions.{name}:{index}", "type": "function"}
    first = {**head, "function": {"name": name, "arguments": ""}}
    rest = [{"index": index, "function": {"arguments": each}} for each in pieces]
    return [{"tool_calls": [each]} for each in (first, *rest)]


DELTAS: list[dict[str, Any]] = [
    {"reasoning_content": "Let me"},
    {"reasoning_content": " think."},
    {"content": "Hello"},
    {"content": " there"},
    *call_parts(0, "look", '{"at":', " 1}"),
    *call_parts(1, "go", "{}"),
    {"content": "Done."},
]


def events_of(sent: bytes) -> list[dict[str, Any]]:
    """The JSON of events, each under its own name."""
    found = []
    for block in sent.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


Objects = list[dict[str, Any]]


def written(deltas: Objects, status: str = "completed") -> tuple[Objects, Objects]:
    """The output in the last event, and the events before it."""
    writer = ItemWriter(ID)
    sent = [writer.push({"delta": each}) for each in deltas] + writer.close(status)
    last = b"".join(writer.end({"status": status})).removesuffix(DONE)
    return events_of(last)[0]["response"]["output"], events_of(b"".join(sent))


def rebuilt(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output as a client puts it together from events alone."""
    items: list[dict[str, Any]] = []
    for each in events:
        match each["type"]:
            case "response.output_item.added":
                assert each["output_index"] == len(items)
                items.append({**each["item"], "text": ""})
            case "response.output_item.done":
                assert items[-1]["id"] == each["item"]["id"]
                items[-1]["item"] = each["item"]
            case kind if kind.endswith(".delta"):
                assert each["item_id"] == items[each["output_index"]]["id"]
                items[-1]["text"] += each["delta"]
    return items


def text_in(item: dict[str, Any]) -> str:
    if item["type"] == "function_call":
        return str(item["arguments"])
    return "".join(part["text"] for part in item["content"])


def test_each_kind_is_an_item_of_its_own() -> None:
    """Guards agents: what was thought, said and called comes apart, in its order."""
    items, _ = written(DELTAS)
    kinds = ["reasoning", "message", "function_call", "function_call", "message"]
    assert [each["type"] for each in items] == kinds
    assert [text_in(each) for each in items] == [
        *("Let me think.", "Hello there", '{"at": 1}', "{}", "Done."),
    ]
    assert {each["status"] for each in items} == {"completed"}
    # Kimi's, which it wants back.
    assert [each["call_id"] for each in items[2:4]] == ["functions.look:0", "functions.go:1"]


def test_events_are_numbered_from_0_without_a_gap() -> None:
    """Guards whoever goes on by number."""
    _, events = written(DELTAS)
    assert [each["sequence_number"] for each in events] == list(range(len(events)))


def test_deltas_of_an_item_join_to_what_it_is_in_the_end() -> None:
    """Guards clients that read deltas, and those that read the end: they see one text."""
    items, events = written(DELTAS)
    found = rebuilt(events)
    assert [each["item"] for each in found] == items
    assert [each["text"] for each in found] == [text_in(each) for each in items]


pieces = st.lists(
    st.one_of(
        st.builds(lambda text: [{"content": text}], st.text(min_size=1, max_size=3)),
        st.builds(lambda text: [{"reasoning_content": text}], st.text(min_size=1, max_size=3)),
        st.just(call_parts(0, "look", "{", "}")),
    ),
    max_size=8,
).map(lambda lists: number_calls([each for part in lists for each in part]))


def number_calls(deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each call has the next index, as a chat gives them."""
    index, found = -1, []
    for each in deltas:
        if "tool_calls" in each:
            part = each["tool_calls"][0]
            index += "id" in part
            each = {"tool_calls": [{**part, "index": index}]}
        found.append(each)
    return found


@given(pieces)
def test_any_order_of_deltas_gives_whole_items(deltas: list[dict[str, Any]]) -> None:
    """Guards odd models: whatever comes after whatever, nothing is lost and nothing stays open."""
    items, events = written(deltas)
    assert [each["item"] for each in rebuilt(events)] == items
    said = "".join(each.get("content", "") for each in deltas)
    messages = [each for each in items if each["type"] == "message"]
    assert "".join(map(text_in, messages)) == said


@given(pieces)
def test_events_that_are_made_again_are_the_same(deltas: list[dict[str, Any]]) -> None:
    """Guards resumed streams: ids and numbers follow from the deltas alone."""
    assert written(deltas)[1] == written(deltas)[1]
    stored = [{"delta": each} for each in deltas]
    assert output_of(ID, stored, "completed") == written(deltas)[0]


@given(pieces, st.integers(0, 60), st.sets(st.integers(0, 60)))
def test_a_writer_that_forgets_is_given_what_it_misses(
    deltas: list[dict[str, Any]], after: int, forgets: set[int]
) -> None:
    """Guards readers of stored answers, who hold nothing in between: the events are the same."""
    writer, whole, sent = ItemWriter(ID, after, keeps=False), written(deltas)[1], b""
    atoms = [atom for each in deltas for atom in atoms_of({"delta": each})]
    begun = 0
    for place, atom in enumerate(atoms):
        if place in forgets:
            writer.forget()
        if writer.begins(atom):
            if writer.misses_content:
                content = Content()
                for each in atoms[begun:place]:
                    content.add(each)
                sent += b"".join(writer.end_item(content=content))
            begun = place
        sent += b"".join(writer.take(atom))
    ended_before = [each for each in whole if each["sequence_number"] < writer.event_count]
    assert events_of(sent) == ended_before[after + 1 :]


def test_what_was_cut_is_incomplete_and_an_empty_answer_is_a_message() -> None:
    """Guards readers of the output: there is an item, and it says whether it is whole."""
    items, _ = written([{"content": "Hel"}], "incomplete")
    assert [each["status"] for each in items] == ["incomplete"]
    assert written([])[0][0]["content"][0]["text"] == ""


def test_logprobs_go_with_the_text() -> None:
    """Guards scores: each delta has its own, and the part has all, also those without text."""
    row = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}
    choice = {"delta": {"content": "a"}, "logprobs": {"content": [row], "refusal": None}}
    stored = kept_delta(choice)
    assert stored is not None
    writer = ItemWriter(ID)
    (_, _, delta) = events_of(writer.push(stored))
    assert delta["logprobs"] == [row]
    assert writer.push({"delta": {}, "logprobs": [row]}) == b""
    done, part, item = events_of(b"".join(writer.close()))
    assert done["logprobs"] == part["part"]["logprobs"] == [row] * 2
    assert item["item"]["content"] == [part["part"]]
    assert kept_delta({"delta": {"role": "assistant", "content": ""}}) is None


def test_logprobs_become_json_once() -> None:
    """Guards the event loop: what has all of them, four times, is made of what was written."""
    row = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}
    writer = ItemWriter(ID)
    for _ in range(100):
        writer.push({"delta": {"content": "a"}, "logprobs": [row]})
    ends = [*writer.close(), *writer.end({"status": "completed"})]
    assert len({id(each) for each in ends if len(each) > 1000}) == 1
