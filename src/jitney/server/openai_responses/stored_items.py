"""Items of an input as they are stored and listed: each has an id. Pure; any thread.

Tests: tests/e2e/openai_responses/test_stored.py.
"""

import uuid
from collections.abc import Mapping, Sequence

from jitney.server.error_object import Refusal
from jitney.server.openai.replies import Json

_PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}


def with_ids(items: Sequence[Json]) -> list[Json]:
    """The same, as OpenAI lists them: each with an id and a state, texts as parts."""
    return [_listed(each) for each in items]


def _listed(item: Json) -> Json:
    new_id = f"{_PREFIXES[item['type']]}_{uuid.uuid4().hex}"
    listed: Json = {"id": new_id, "status": "completed", **item}
    if item["type"] == "message" and isinstance(item["content"], str):
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        listed["content"] = [{"type": kind, "text": item["content"]}]
    return listed


def listed_items(items: Sequence[Json], after: str | None, limit: int, order: str) -> Json:
    """A page of items. Raises Refusal if the one before it is not there."""
    rows = list(items if order == "asc" else reversed(items))
    if after is not None:
        places = [at for at, each in enumerate(rows, 1) if each["id"] == after]
        if not places:
            raise Refusal("invalid_value", "There is no item with this id.", param="after")
        rows = rows[places[0] :]
    page = rows[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(rows) > limit,
    }
