"""Stores for tests: inputs, batches and results without a server."""

import json
import uuid
from hashlib import sha256
from pathlib import Path

from jitney.engine.answer import Usage
from jitney.server.batches.rows import (
    LineResult,
    NewBatch,
    Purpose,
    StoredBatch,
    StoredFile,
    StoredLine,
    answered_line,
)
from jitney.server.batches.store import BatchStore

NOW = 1_700_000_000
ENDPOINT = "/v1/completions"


def add_file(store: BatchStore, content: bytes, owner: str = "") -> StoredFile:
    """A file with its content."""
    file = StoredFile(
        id=f"file-{uuid.uuid4().hex}",
        owner=owner,
        filename="in.jsonl",
        purpose=Purpose.BATCH,
        bytes=len(content),
        sha256=sha256(content).hexdigest(),
        created_at=NOW,
    )
    store.content.path_of(file.id).write_bytes(content)
    store.add_file(file)
    return file


def new_batch(file: StoredFile, **fields: object) -> NewBatch:
    """What a caller asks for."""
    given: dict[str, object] = {
        "owner": file.owner,
        "endpoint": ENDPOINT,
        "model": "fake",
        "input_file_id": file.id,
        "created_at": NOW,
        "expires_at": NOW + 86_400,
    }
    return NewBatch(**(given | fields))  # type: ignore[arg-type]


def begun(store: BatchStore, count: int, owner: str = "") -> StoredBatch:
    """A batch whose lines are all pending."""
    batch = store.batches.create(new_batch(add_file(store, b"x", owner)))
    lines = [
        StoredLine(number=number, start=number, length=1, custom_id=f"c{number}")
        for number in range(1, count + 1)
    ]
    store.batches.add_lines(batch, lines, count, count)
    assert store.batches.begin(batch.serial, NOW)
    return store.batches.get(batch.serial)


def result(batch: StoredBatch, number: int, *, is_done: bool = True) -> LineResult:
    """The result of a line."""
    return LineResult(
        batch=batch.serial,
        number=number,
        is_done=is_done,
        reply=answered_line(f"c{number}", 200 if is_done else 400, "req-x", b"{}"),
        usage=Usage(prompt_count=3, cached_count=1, completion_count=2),
    )


def ids_in(path: Path) -> list[str]:
    """The custom ids of a file of results."""
    return [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]
