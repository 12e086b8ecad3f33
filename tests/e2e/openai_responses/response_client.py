"""What tests of Responses share: events of raw streams, and what must hold of them."""

import json
from typing import Any

import httpx

from tests.e2e.server.harness import MODEL, Running

PATH = "/v1/responses"
TOOL = {
    "type": "function",
    "name": "look",
    "description": "Looks at a place.",
    "parameters": {
        "type": "object",
        "properties": {"at": {"type": "integer"}},
        "required": ["at"],
        "additionalProperties": False,
    },
}


def ask(server: Running, content: Any = "hi", **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "input": content, "max_output_tokens": 8, "seed": 5, **fields}
    return server.post(PATH, body)


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream that ended well, in their order."""
    *blocks, last, rest = text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return read_events(blocks)


def read_events(blocks: list[str]) -> list[dict[str, Any]]:
    """Events of these blocks, without comments; each has its name twice."""
    found = []
    for block in blocks:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def check_numbers(events: list[dict[str, Any]], first: int = 0) -> None:
    """Each number once, without a gap."""
    numbers = [each["sequence_number"] for each in events]
    assert numbers == list(range(first, first + len(events)))


def text_of(response: dict[str, Any]) -> str:
    """All text of the output."""
    messages = [each for each in response["output"] if each["type"] == "message"]
    return "".join(part["text"] for each in messages for part in each["content"])


def timeless(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs between two that are equal."""
    differs = ("id", "created_at", "completed_at", "output", "usage", "store", "background")
    return {name: each for name, each in response.items() if name not in differs}


def deltas_of(events: list[dict[str, Any]]) -> str:
    """All text of a stream."""
    return "".join(each["delta"] for each in events if each["type"].endswith("text.delta"))


def replayed(server: Running, response_id: str, after: int = -1) -> list[dict[str, Any]]:
    """The events of a stored response behind a number."""
    reply = server.get(f"{PATH}/{response_id}?stream=true&starting_after={after}")
    assert reply.status_code == 200, reply.text
    return events_of(reply.text)
