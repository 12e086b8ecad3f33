"""What tests of batches share: inputs, OpenAI's client, waiting, and a recount of results."""

import contextlib
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Batch, FileObject

from jitney.backends.fake.backend import FakeSettings
from jitney.config import Key
from tests.e2e.server.harness import MODEL, WAIT_S, Running, World, running, wait_until

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")
BATCH_S = 200.0
FIRST, OTHER = "first-secret-of-tests", "other-secret-of-tests"
KEYS = (Key(name="first", secret=FIRST), Key(name="other", secret=OTHER))
SLOW = FakeSettings(slots=8, eos_period=0, kv_tokens=65_536, tick_s=0.01, sleeps=True)


def line(custom_id: str, url: str = COMPLETIONS, **fields: Any) -> dict[str, Any]:
    """A line as a caller writes it."""
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "temperature": 0}
    if url == CHAT:
        asked["messages"] = [{"role": "user", "content": f"say {custom_id}"}]
    else:
        asked["prompt"] = f"complete {custom_id}"
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": asked | fields}


def jsonl(lines: Sequence[Any]) -> bytes:
    """An input; bytes among the lines stay as they are."""
    written = (each if isinstance(each, bytes) else json.dumps(each).encode() for each in lines)
    return b"".join(each + b"\n" for each in written)


@contextlib.contextmanager
def client_of(server: Running, key: str = "none") -> Iterator[OpenAI]:
    """OpenAI's own client."""
    with OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=WAIT_S) as made:
        yield made


@contextlib.contextmanager
def two_keys(folder: Path, **options: Any) -> Iterator[tuple[Running, OpenAI, OpenAI]]:
    """A server with its jobs in this folder, and clients of two keys."""
    with (
        running(World(jobs_dir=folder, keys=KEYS, **options)) as server,
        client_of(server, FIRST) as first,
        client_of(server, OTHER) as other,
    ):
        yield server, first, other


def upload(client: OpenAI, content: bytes, name: str = "in.jsonl") -> FileObject:
    """An input as a file of the server."""
    return client.files.create(file=(name, io.BytesIO(content)), purpose="batch")


def submit(client: OpenAI, lines: Sequence[Any], url: Any = COMPLETIONS) -> Batch:
    """A batch of these lines."""
    return create(client, upload(client, jsonl(lines)).id, url)


def create(client: OpenAI, file_id: str, url: Any = COMPLETIONS, **headers: str) -> Batch:
    """A batch of the lines in a file."""
    return client.batches.create(
        input_file_id=file_id, endpoint=url, completion_window="24h", extra_headers=headers
    )


@contextlib.contextmanager
def refusal(status: int, code: str) -> Iterator[pytest.ExceptionInfo[openai.APIStatusError]]:
    """Within this context a call is refused so."""
    with pytest.raises(openai.APIStatusError) as caught:
        yield caught
    assert (caught.value.status_code, caught.value.code) == (status, code)


def ended(client: OpenAI, batch: Batch) -> Batch:
    """The batch, once it has ended."""
    seen: list[Batch] = []

    def is_over() -> bool:
        seen[:] = [client.batches.retrieve(batch.id)]
        return seen[0].status in ENDED

    wait_until(is_over, "the batch did not end", BATCH_S)
    return seen[0]


def counts_of(batch: Batch) -> tuple[int, int, int]:
    """Its lines: all, completed and failed."""
    counts = batch.request_counts
    assert counts is not None
    return counts.total, counts.completed, counts.failed


def results(client: OpenAI, file_id: str | None) -> list[Any]:
    """The lines of a file of results."""
    if file_id is None:
        return []
    return [json.loads(each) for each in client.files.content(file_id).text.splitlines()]


def custom_ids(rows: list[Any]) -> list[str]:
    return [each["custom_id"] for each in rows]
