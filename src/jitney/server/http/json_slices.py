"""Encodes JSON in slices: `encode_json`. For any thread but the event loop's.

Python's encoder encodes a value in one step, and no other thread runs meanwhile: a second for a
million logprobs. Here long lists are encoded a few dozen items at a time.
"""

import json
from collections.abc import Iterator
from typing import Any  # Any: JSON

ITEMS = 32


def encode_json(value: Any) -> bytes:
    """The value as JSON."""
    return "".join(_pieces(value)).encode()


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for number, (key, part) in enumerate(value.items()):
            yield ("," if number else "{") + _dumped(key) + ":"
            yield from _pieces(part)
        yield "}"
    elif isinstance(value, list) and len(value) > ITEMS:
        # The items of long lists are small.
        for start in range(0, len(value), ITEMS):
            yield ("," if start else "[") + _dumped(value[start : start + ITEMS])[1:-1]
        yield "]"
    elif isinstance(value, list) and value:
        for number, part in enumerate(value):
            yield "," if number else "["
            yield from _pieces(part)
        yield "]"
    else:
        yield _dumped(value)


def _dumped(value: Any) -> str:
    # As starlette writes it.
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
