"""Rows of the store as values: files, batches, lines. Frozen; any thread.

Tests: tests/unit/server/batches/test_store.py.
"""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from jitney.engine.answer import Usage

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
    purpose: str
    bytes: int
    sha256: str
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """A request for a batch. Without an endpoint, a line may have any. None as `expires_at` is no
    limit of time."""

    owner: str
    endpoint: str | None = None
    model: str
    input_file_id: str
    metadata: Mapping[str, str] | None = None
    idempotency_key: str | None = None
    created_at: int
    expires_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """One batch. Times are seconds since 1970, None before they come."""

    serial: int
    id: str
    owner: str
    endpoint: str | None
    model: str
    input_file_id: str
    input_sha256: str
    metadata: Mapping[str, str] | None
    idempotency_key: str | None
    status: BatchStatus
    outcome: BatchStatus | None
    """How it will end, once that is decided."""
    errors: tuple[Mapping[str, Any], ...]  # Any: a JSON value
    """Why it failed as a whole, as OpenAI writes it."""
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
    created_at: int
    expires_at: int | None
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
    usage: Usage


_FILE_NAMES = tuple(each.name for each in fields(StoredFile))
_BATCH_NAMES = tuple(each.name for each in fields(StoredBatch))


def file_of(row: sqlite3.Row) -> StoredFile:
    """The file in a row."""
    return StoredFile(**{name: row[name] for name in _FILE_NAMES})


def batch_of(row: sqlite3.Row) -> StoredBatch:
    """The batch in a row."""
    values = {name: row[name] for name in _BATCH_NAMES}
    values["status"] = BatchStatus(row["status"])
    values["outcome"] = None if row["outcome"] is None else BatchStatus(row["outcome"])
    values["metadata"] = None if row["metadata"] is None else json.loads(row["metadata"])
    values["errors"] = () if row["errors"] is None else tuple(json.loads(row["errors"]))
    return StoredBatch(**values)
