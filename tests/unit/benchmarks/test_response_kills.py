"""Tests of `benchmarks.response_kills`: a reader ends, however its response does."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from benchmarks.response_kills import Counted, Place, read


def seen_of(status: int, text: str = "") -> list[dict[str, Any]]:
    """What is read of a response where the server says this, as often as it is asked."""
    transport = httpx.MockTransport(
        lambda _: httpx.Response(status, stream=httpx.ByteStream(text.encode()))
    )

    async def read_all() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(transport=transport) as client:
            return await read(client, Place("http://there"), "resp_1", Counted(1))

    return asyncio.run(asyncio.wait_for(read_all(), 100))


@pytest.mark.parametrize(
    "kind", ["response.incomplete", "response.completed", "response.failed", "error"]
)
def test_a_reader_ends_with_any_last_event(kind: str) -> None:
    """Guards the count: what ended wrongly is told, and not waited for."""
    data = json.dumps({"type": kind, "sequence_number": 0})
    text = f"event: {kind}\ndata: {data}\n\ndata: [DONE]\n\n"
    assert [each["type"] for each in seen_of(200, text)] == [kind]


def test_a_reader_ends_where_its_response_is_lost() -> None:
    """Guards the count in the same way."""
    assert seen_of(404) == []
