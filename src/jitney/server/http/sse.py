"""Server-sent events: framing only. Pure; any thread.

Tests: tests/unit/server/openai/test_check_body.py.
"""

import json
from typing import Any

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
"""The last one asks nginx to pass events on as they come."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def frame(value: dict[str, Any]) -> bytes:  # Any: a JSON value
    """One event with a JSON object in it."""
    return b"data: " + _encode(value).encode("utf-8") + b"\n\n"
