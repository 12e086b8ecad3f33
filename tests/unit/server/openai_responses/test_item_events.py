"""Tests of `ItemWriter`: events are numbered, and say what the items are in the end."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jitney.server.openai_responses.item_events import ItemWriter, kept_delta, output_of, push

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


def written(deltas: list[dict[str, Any]]) -> tuple[ItemWriter, list[dict[str, Any]]]:
    writer = ItemWriter(ID)
    sent = b"".join(writer.push(each) for each in deltas) + writer.close()
    return writer, events_of(sent)


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
    writer, _ = written(DELTAS)
    kinds = ["reasoning", "message", "function_call", "function_call", "message"]
    assert [each["type"] for each in writer.items] == kinds
    assert [text_in(each) for each in writer.items] == [
        *("Let me think.", "Hello there", '{"at": 1}', "{}", "Done."),
    ]
    assert {each["status"] for each in writer.items} == {"completed"}
    # Kimi's, which it wants back.
    assert [each["call_id"] for each in writer.items[2:4]] == ["functions.look:0", "functions.go:1"]


def test_events_are_numbered_from_0_without_a_gap() -> None:
    """Guards whoever goes on by number."""
    writer, events = written(DELTAS)
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    assert writer.event_count == len(events)


def test_deltas_of_an_item_join_to_what_it_is_in_the_end() -> None:
    """Guards clients that read deltas, and those that read the end: they see one text."""
    writer, events = written(DELTAS)
    found = rebuilt(events)
    assert [each["item"] for each in found] == writer.items
    assert [each["text"] for each in found] == [text_in(each) for each in writer.items]


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
    writer, events = written(deltas)
    assert [each["item"] for each in rebuilt(events)] == writer.items
    said = "".join(each.get("content", "") for each in deltas)
    messages = [each for each in writer.items if each["type"] == "message"]
    assert "".join(map(text_in, messages)) == said


@given(pieces)
def test_events_that_are_made_again_are_the_same(deltas: list[dict[str, Any]]) -> None:
    """Guards resumed streams: ids and numbers follow from the deltas alone."""
    assert written(deltas)[1] == written(deltas)[1]
    stored = [{"delta": each} for each in deltas]
    assert output_of(ID, stored, "completed") == written(deltas)[0].items


def test_what_was_cut_is_incomplete_and_an_empty_answer_is_a_message() -> None:
    """Guards readers of the output: there is an item, and it says whether it is whole."""
    writer = ItemWriter(ID)
    writer.push({"content": "Hel"})
    writer.close("incomplete")
    assert [each["status"] for each in writer.items] == ["incomplete"]
    assert written([])[0].items[0]["content"][0]["text"] == ""


def test_logprobs_go_with_the_text() -> None:
    """Guards scores: each delta has its own, and the part has all."""
    row = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}
    choice = {"delta": {"content": "a"}, "logprobs": {"content": [row], "refusal": None}}
    stored = kept_delta(choice)
    assert stored is not None
    writer = ItemWriter(ID)
    (_, _, delta) = events_of(push(writer, stored))
    assert delta["logprobs"] == [row]
    writer.close()
    assert writer.items[0]["content"][0]["logprobs"] == [row]
    assert kept_delta({"delta": {"role": "assistant", "content": ""}}) is None
