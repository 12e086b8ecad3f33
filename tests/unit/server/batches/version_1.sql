-- A store as version 1 made it: a file, and a batch of two lines, one of them done.
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

INSERT INTO files VALUES (1, 'file-0123456789abcdef0123456789abcdef', 'a', 'in.jsonl', 'batch', 4, 'digest', 1700000000);
INSERT INTO batches (
    serial, id, owner, endpoint, model, input_file_id, input_sha256, status, read_bytes, read_lines,
    total, completed, prompt_tokens, completion_tokens, created_at, expires_at, in_progress_at
) VALUES (
    1, 'batch_1', 'a', '/v1/completions', 'fake', 'file-0123456789abcdef0123456789abcdef', 'digest', 'in_progress', 4, 2,
    2, 1, 3, 2, 1700000000, 1700086400, 1700000000
);
INSERT INTO lines VALUES (1, 1, 0, 2, 'c1', 1, '{}'), (1, 2, 2, 2, 'c2', 0, NULL);
PRAGMA user_version = 1;
