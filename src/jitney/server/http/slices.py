"""JSON written out in slices: `written`. Any thread; meant for one that is not the event loop.

Python's encoder writes a value in one go, and no other thread runs meanwhile: a second for a
million logprobs. Long lists are written a few dozen items at a time.
"""

import json
from collections.abc import Iterator
from typing import Any  # Any: JSON

ITEMS = 32


def written(value: Any) -> bytes:
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
