"""The most memory that a process ever took. Any thread.

Tests: tests/unit/sandbox/test_owner.py.
"""

import resource
import sys

_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
"""What `ru_maxrss` counts in."""


def most_bytes(usage: resource.struct_rusage | None = None) -> int:
    """Of this process, or of one that has ended with this usage."""
    usage = usage or resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_maxrss * _UNIT_BYTES
