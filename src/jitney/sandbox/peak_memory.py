"""The peak memory of a process. Any thread.

Tests: tests/unit/sandbox/test_sandbox.py.
"""

import resource
import sys

_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
"""The unit of `ru_maxrss`."""


def peak_bytes(usage: resource.struct_rusage | None = None) -> int:
    """The peak memory of this process, or of an ended process with this usage."""
    usage = usage or resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_maxrss * _UNIT_BYTES
