"""Files, batches and lines: as values, as rows of the store, and as OpenAI's JSON. Any thread.

A line that was asked and refused has the refusal as its `response`, as a caller would have got it.
A line that was never asked (it cannot be read, or its batch ended first) has an `error` with the
number of the line.

Tests: tests/unit/server/batches/test_rows.py and test_store.py.
"""

import json
import re
import sqlite3
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from jitney.engine.answer import Usage
from jitney.server.anthropic.message_errors import PATH
from jitney.server.openai.replies import Json, dump_json

WINDOW = "24h"

NO_TOKENS = Usage(prompt_count=0, completion_count=0, cached_count=0)

ERRORED = "errored"
"""Noted in the column of the metadata of a batch of messages, which has none of its caller's.
Beside it stands whether unknown fields are ignored, as the header of the call says it."""

LIVE = ("validating", "in_progress", "finalizing", "cancelling")
LIVE_STATES = f"IN {LIVE}"
"""For a question in SQL."""


class BatchStatus(StrEnum):
    """OpenAI's states of a batch.

        validating -> in_progress -> finalizing -> completed
            |              |             `-------> expired
            |              `----------> finalizing, when its time is over
            |-> failed                  (its input cannot be read as lines)
            `-> cancelling -> cancelled (also from in_progress)

    A restart continues each of them: input is checked from where that was, lines that have no
    result are run, and an output that was not complete is written again.
    """

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_live(self) -> bool:
        """Whether something remains to be done."""
        return self.value in LIVE


class Purpose(StrEnum):
    """What a file is for."""

    BATCH = "batch"
    OUTPUT = "batch_output"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file. Its content is in the folder of the store, under its id."""

    id: str
    owner: str
    """The name of the key that it belongs to; empty without keys."""
    filename: str
    purpose: Purpose
    bytes: int
    sha256: str
    created_at: int


_DIGEST = re.compile(r" [0-9a-f]{16}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """A request for a batch. Without an endpoint, a line may have any. None as `expires_at` is no
    limit of time. The model is one of `Service.own_models`, or a name."""

    owner: str
    endpoint: str | None = None
    model: str
    input_file_id: str
    metadata: Mapping[str, str] | None = None
    idempotency_key: str | None = None
    created_at: int
    expires_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch(NewBatch):
    """One batch. Times are seconds since 1970, None before they come."""

    serial: int
    id: str
    input_sha256: str
    status: BatchStatus
    outcome: BatchStatus | None
    """How it will end, once that is decided."""
    errors: tuple[Mapping[str, Any], ...]  # Any: a JSON value
    """Why it failed as a whole, as OpenAI writes it."""
    errored: int | None = None
    """Of a batch of messages that has ended: the lines that had an error."""
    read_bytes: int
    """How much of its input was checked."""
    read_lines: int
    total: int
    completed: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    output_file_id: str | None
    error_file_id: str | None
    passed_s: float
    """Seconds that have passed for it while a server ran, by a clock that only grows."""
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None

    @property
    def model_name(self) -> str:
        """The model as callers know it, without a digest behind its name."""
        return _DIGEST.sub("", self.model)

    @property
    def result_ids(self) -> tuple[str, ...]:
        """The files with its results."""
        ids = (self.output_file_id, self.error_file_id)
        return tuple(each for each in ids if each is not None)

    @property
    def is_over_time(self) -> bool:
        """Whether as much time has passed as it has."""
        return self.expires_at is not None and self.passed_s >= self.expires_at - self.created_at

    @property
    def is_settled(self) -> bool:
        """Whether every line has its result."""
        return self.completed + self.failed == self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLine:
    """A line of an input: where its text stands, and its line of the results, if it has one."""

    number: int
    start: int
    length: int
    custom_id: str | None
    is_done: bool = False
    """Whether the result is an answer, and no error."""
    reply: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineResult:
    """How a line ended: one line of the output, or of the errors."""

    batch: int
    number: int
    is_done: bool
    reply: bytes
    usage: Usage = NO_TOKENS


Row = TypeVar("Row", StoredFile, StoredBatch)

_OF_FILE = ("id", "bytes", "created_at", "filename", "purpose")
_OF_BATCH = (
    *("id", "endpoint", "input_file_id", "status", "output_file_id", "error_file_id"),
    *("created_at", "in_progress_at", "expires_at", "finalizing_at", "completed_at"),
    *("failed_at", "expired_at", "cancelling_at", "cancelled_at"),
)
_COUNTS = ("total", "completed", "failed")
"""Fields that are as the store has them."""

_UNRUN = {
    BatchStatus.EXPIRED: ("batch_expired", "The batch's time was over before this line was run."),
    BatchStatus.CANCELLED: ("batch_cancelled", "The batch was cancelled before this line was run."),
}


def file_of(row: sqlite3.Row) -> StoredFile:
    """The file in a row."""
    return msgspec.convert(dict(row), StoredFile)


def batch_of(row: sqlite3.Row) -> StoredBatch:
    """The batch in a row."""
    metadata, errors = json.loads(row["metadata"] or "null"), json.loads(row["errors"] or "[]")
    values = {**dict(row), "metadata": metadata, "errors": errors}
    if metadata and row["endpoint"] == PATH and ERRORED in metadata:
        values["errored"] = int(metadata.pop(ERRORED))
    return msgspec.convert(values, StoredBatch)


def file_object(file: StoredFile) -> Json:
    """A file."""
    others = {"object": "file", "expires_at": None, "status": "processed", "status_details": None}
    return {name: getattr(file, name) for name in _OF_FILE} | others


def batch_object(batch: StoredBatch) -> Json:
    """A batch. What it has not come to yet is null."""
    errors = {"object": "list", "data": list(batch.errors)} if batch.errors else None
    return {
        **{name: getattr(batch, name) for name in _OF_BATCH},
        "object": "batch",
        "model": batch.model_name,
        "errors": errors,
        "completion_window": WINDOW,
        "request_counts": {name: getattr(batch, name) for name in _COUNTS},
        "usage": {
            "input_tokens": batch.prompt_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens": batch.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": batch.prompt_tokens + batch.completion_tokens,
        },
        "metadata": batch.metadata if batch.endpoint != PATH else None,
    }


def listed(found: Sequence[Row], limit: int, form: Callable[[Row], Json]) -> Json:
    """A list of objects. One more than the limit says that there are more."""
    rows = found[:limit]
    return {
        "object": "list",
        "data": [form(row) for row in rows],
        "first_id": rows[0].id if rows else None,
        "last_id": rows[-1].id if rows else None,
        "has_more": len(found) > limit,
    }


def answered_line(
    custom_id: str, status: int, request_id: str, body: bytes, ignored: Sequence[str] = ()
) -> bytes:
    """The line of a request that was asked; `body` is of `dump_json`. Ignored fields stand
    beside the status, if there are any: a line has no headers."""
    head = dump_json({"id": _line_id(), "custom_id": custom_id}).encode()
    about: Json = {"status_code": status, "request_id": request_id}
    response = dump_json({**about, "ignored": list(ignored)} if ignored else about).encode()
    return b'%b,"response":%b,"body":%b},"error":null}' % (head[:-1], response[:-1], body)


def refused_line(number: int, custom_id: str | None, code: str, message: str) -> bytes:
    """The line of a request that was never asked."""
    error = {"code": code, "message": message, "line": number}
    line = {"id": _line_id(), "custom_id": custom_id, "response": None, "error": error}
    # A custom id may hold any character: escapes keep it on one line.
    return json.dumps(line, separators=(",", ":")).encode()


def unrun_line(number: int, custom_id: str | None, outcome: BatchStatus) -> bytes:
    """The line of a request whose batch ended before its turn."""
    return refused_line(number, custom_id, *_UNRUN[outcome])


def _line_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
