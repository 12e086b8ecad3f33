"""Stores for tests: inputs, batches and results without a server."""

import json
import uuid
from hashlib import sha256
from pathlib import Path

from jitney.engine.answer import Usage
from jitney.server.batches.content_files import OutputFiles
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


def input_of(*custom_ids: str) -> bytes:
    """An input with a line for each id."""
    usual = {"method": "POST", "url": ENDPOINT, "body": {}}
    rows = (json.dumps({"custom_id": each, **usual}) for each in custom_ids)
    return "".join(f"{row}\n" for row in rows).encode()


def new_batch(file: StoredFile, **fields: object) -> NewBatch:
    """What a caller asks for."""
    usual: dict[str, object] = {
        "owner": file.owner,
        "endpoint": ENDPOINT,
        "model": "fake",
        "input_file_id": file.id,
        "created_at": NOW,
        "expires_at": NOW + 86_400,
    }
    return NewBatch(**(usual | fields))  # type: ignore[arg-type]


def begun(store: BatchStore, count: int, owner: str = "") -> StoredBatch:
    """A batch whose lines are all pending; each has a text of its own: a1, a2 and so on."""
    texts = [f"{owner}{number}\n".encode() for number in range(1, count + 1)]
    batch = store.batches.create(new_batch(add_file(store, b"".join(texts), owner)))
    lines, start = [], 0
    for number, text in enumerate(texts, 1):
        lines.append(
            StoredLine(number=number, start=start, length=len(text), custom_id=f"c{number}")
        )
        start += len(text)
    store.batches.add_lines(batch, lines, start, count)
    assert store.batches.begin(batch.serial, NOW)
    return store.batches.get(batch.serial)


def end(store: BatchStore, batch: StoredBatch) -> StoredBatch:
    """Write the output of a batch, as the stages do; what it is then."""
    files = OutputFiles(store.content, batch)
    after = 0
    while lines := store.batches.written_lines(batch.serial, after):
        files.add(lines)
        after = lines[-1].number
    files.sync()
    store.batches.end(batch, NOW, *files.records(NOW))
    files.name()
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
