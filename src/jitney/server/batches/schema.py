"""The tables of the store, and the version of their form. Values only.

A line is one row. Its state and its reply change in one statement: `reply` is there exactly when
the line is no longer pending. The row of a line is unique, so a line has at most one result,
whatever was killed when.

Tests: tests/unit/server/batches/test_database.py and test_store.py.
"""

VERSION = 2
"""Stored as `user_version`. A store of a newer version is refused; an older one is brought up."""

PENDING, DONE, FAILED = 0, 1, 2
"""States of a line."""

_META = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO meta VALUES ('mark', lower(hex(randomblob(16))));
"""

_ALLOWANCES = """
CREATE TABLE allowances (owner TEXT PRIMARY KEY, used REAL NOT NULL);
"""

UPGRADES = {
    1: f"""{_META}{_ALLOWANCES}
ALTER TABLE batches ADD COLUMN passed_s REAL NOT NULL DEFAULT 0;
"""
}
"""From each older version to this one."""

TABLES = f"""{_META}{_ALLOWANCES}
CREATE TABLE files (
    serial INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    created_at INTEGER NOT NULL
);
CREATE INDEX files_of_owner ON files (owner, serial);

CREATE TABLE batches (
    serial INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    endpoint TEXT,
    model TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    input_sha256 TEXT NOT NULL,
    metadata TEXT,
    idempotency_key TEXT,
    status TEXT NOT NULL,
    outcome TEXT,
    errors TEXT,
    read_bytes INTEGER NOT NULL DEFAULT 0,
    read_lines INTEGER NOT NULL DEFAULT 0,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    prompt_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    completion_tokens INTEGER NOT NULL DEFAULT 0,
    output_file_id TEXT,
    error_file_id TEXT,
    is_swept INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    passed_s REAL NOT NULL DEFAULT 0,
    in_progress_at INTEGER,
    finalizing_at INTEGER,
    completed_at INTEGER,
    failed_at INTEGER,
    expired_at INTEGER,
    cancelling_at INTEGER,
    cancelled_at INTEGER,
    UNIQUE (owner, idempotency_key)
);
CREATE INDEX batches_of_owner ON batches (owner, serial);
CREATE INDEX batches_live ON batches (status)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');
CREATE INDEX batches_unswept ON batches (serial) WHERE is_swept = 0;

CREATE TABLE lines (
    batch INTEGER NOT NULL,
    number INTEGER NOT NULL,
    start INTEGER NOT NULL,
    length INTEGER NOT NULL,
    custom_id TEXT,
    state INTEGER NOT NULL CHECK (state IN (0, 1, 2)),
    reply BLOB,
    PRIMARY KEY (batch, number),
    CHECK ((state = 0) = (reply IS NULL))
);
CREATE INDEX lines_pending ON lines (batch, number) WHERE state = 0;
CREATE INDEX lines_by_custom_id ON lines (batch, custom_id);
"""
