"""Paths that other servers have, and what to use here instead. Pure.

Most wrong paths come from a base address without `/v1`, or with `/v1` twice.

Tests: tests/e2e/server/test_other_clients.py.
"""

SERVED = ("/v1/chat/completions", "/v1/completions", "/v1/models")

_NO_EMBEDDINGS = "this server makes text, and no embeddings"
_TEXT = "use /v1/completions"
_CHAT = "use /v1/chat/completions"
_MODELS = "use /v1/models"
_INSTEAD = {
    **{path: f"use {path}" for path in (*SERVED, "/tokenize", "/detokenize")},
    **{path.removeprefix("/v1"): f"use {path}" for path in SERVED},
    **{f"/v1{path}": f"use {path}" for path in SERVED},
    **{
        f"/v1{path}": f"use {path}"
        for path in ("/tokenize", "/detokenize", "/health", "/metrics", "/version")
    },
    "/v1": f"{_CHAT} or /v1/completions",
    "/completion": _TEXT,
    "/generate": _TEXT,
    "/generate_stream": _TEXT,
    "/api/generate": _TEXT,
    "/api/chat": _CHAT,
    "/responses": _CHAT,
    "/v1/responses": _CHAT,
    "/messages": _CHAT,
    "/v1/messages": _CHAT,
    "/api/tags": _MODELS,
    "/api/version": "use /version",
    "/ping": "use /health",
    "/files": "use /v1/files",
    "/batches": "use /v1/batches",
    **dict.fromkeys(("/embedding", "/embeddings", "/v1/embeddings"), _NO_EMBEDDINGS),
    **dict.fromkeys(("/api/embed", "/api/embeddings"), _NO_EMBEDDINGS),
}
"""The hint for each path, without slashes at its end."""


def instead_of(path: str) -> str | None:
    """What to use instead of this path, as part of a sentence. It never repeats the path."""
    if path.startswith("/models/"):
        return f"{_MODELS}/NAME"
    return _INSTEAD.get(path.rstrip("/"))
