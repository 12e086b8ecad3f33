"""For all tests: no example of a property is timed, since a busy machine is no defect; no thread of
a test goes on working after its file; certificates are read once; and workers share a folder.
"""

import functools
import os
import shutil
import signal
import ssl
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator

import pytest
from hypothesis import settings

from jitney.sandbox.interrupts import signal_stack_kept
from tests.machine_for_tests import machine

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Each HTTP client reads all certificates of the machine, which takes 50 ms; no test speaks TLS.
ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]


def pytest_configure(config: pytest.Config) -> None:
    """Make the cache folder for `tests/backends_for_tests.py`, which all workers of a run share.

    And let interrupts come: a shell has what it starts in the background ignore them, and so would
    the commands that some tests interrupt.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_JITNEY_CACHE" not in os.environ:
        folder = os.environ["PYTEST_JITNEY_CACHE"] = tempfile.mkdtemp(prefix="jitney-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_runtest_setup() -> None:
    """A worker that starts a Ray has the machine for itself."""
    with machine(alone=False):
        pass


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names of tests that have an address in memory: each worker would have other tests."""
    for each in items:
        if " at 0x" in each.nodeid:
            raise pytest.UsageError(f"{each.nodeid} is a name for this process only; give it an id")


GLANCE_S = 0.02
LOOK_S = 1.0
LOOKS = 10
"""A thread that spins does so at every look; one that only comes to its end late does not."""


@pytest.fixture(scope="module", autouse=True)
def environment_is_put_back() -> Iterator[None]:
    """Guards the files that follow: a command called in this process sets variables for its
    children, which must not reach the children of other tests. And a library may leave this thread
    a stack for signals that it frees: the next signal would end this process."""
    before = dict(os.environ)
    with signal_stack_kept():
        yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module", autouse=True)
def no_thread_works_on() -> Iterator[None]:
    """Guards the tests that follow in this process: a thread that spins makes each of them ten
    times slower, and the wrong ones fail."""
    yield
    if is_working(GLANCE_S) and all(is_working(LOOK_S) for _ in range(LOOKS)):
        raise AssertionError(f"a thread of these tests works on:\n{stacks_of_others()}")


def is_working(seconds: float) -> bool:
    """Whether threads of this process use half a core or more while this one sleeps."""
    used_before = time.process_time()
    time.sleep(seconds)
    return time.process_time() - used_before > seconds / 2


def stacks_of_others() -> str:
    ours = threading.get_ident()
    return "\n".join(
        "".join(traceback.format_stack(frame)[-6:])
        for ident, frame in sys._current_frames().items()
        if ident != ours
    )
