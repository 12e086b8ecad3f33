"""The machine for one worker alone, while it starts what ends a slow start by itself, as Ray does.

The other workers begin no test meanwhile, so the verdict does not hang on what they do. The lock is
the system's, and ends with its process.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def machine(*, alone: bool) -> Iterator[None]:
    """With `alone`, no other worker begins a test within this context. Without, this waits until
    no worker has the machine for itself."""
    with Path(os.environ["PYTEST_JITNEY_CACHE"], "machine").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
