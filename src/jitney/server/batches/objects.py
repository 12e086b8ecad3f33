"""OpenAI's JSON objects of files, batches and lines of results. Pure; any thread.

A line that was asked and refused has the refusal as its `response`, as a caller would have got it.
A line that was never asked (it cannot be read, or its batch ended first) has an `error` with the
number of the line.
"""

import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jitney.server.batches.rows import BatchStatus, StoredBatch, StoredFile

Json = dict[str, Any]  # Any: a JSON value
Row = TypeVar("Row", StoredFile, StoredBatch)

WINDOW = "24h"

_OF_FILE = ("id", "bytes", "created_at", "filename", "purpose")
_OF_BATCH = (
    *("id", "endpoint", "model", "input_file_id", "status", "output_file_id", "error_file_id"),
    *("created_at", "in_progress_at", "expires_at", "finalizing_at", "completed_at"),
    *("failed_at", "expired_at", "cancelling_at", "cancelled_at"),
)
_COUNTS = ("total", "completed", "failed")
"""Fields that are as the store has them."""

_UNRUN = {
    BatchStatus.EXPIRED: ("batch_expired", "The batch's time was over before this line was run."),
    BatchStatus.CANCELLED: ("batch_cancelled", "The batch was cancelled before this line was run."),
}
_LINE_ENDS = {
    "\u0085".encode(): rb"\u0085",
    "\u2028".encode(): rb"\u2028",
    "\u2029".encode(): rb"\u2029",
}
"""What JSON may hold as it is, and what many programs take for the end of a line."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


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
        "metadata": None if batch.metadata is None else dict(batch.metadata),
    }


def listed(rows: Sequence[Row], form: Callable[[Row], Json], *, has_more: bool) -> Json:
    """A list of objects."""
    return {
        "object": "list",
        "data": [form(row) for row in rows],
        "first_id": rows[0].id if rows else None,
        "last_id": rows[-1].id if rows else None,
        "has_more": has_more,
    }


def answered_line(custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """The line of a request that was asked; `body` is JSON already."""
    head = _encode({"id": _line_id(), "custom_id": custom_id}).encode()
    response = _encode({"status_code": status, "request_id": request_id}).encode()
    line = b'%b,"response":%b,"body":%b},"error":null}' % (head[:-1], response[:-1], body)
    for character, escaped in _LINE_ENDS.items():
        line = line.replace(character, escaped)
    return line


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
