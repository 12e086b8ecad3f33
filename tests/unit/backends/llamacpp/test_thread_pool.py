"""Tests of `jitney.backends.llamacpp.thread_pool`: the library's threads stay, and end."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any  # Any: functions and structures of ctypes

import pytest

from tests.backends_for_tests import skip_reason

if reason := skip_reason("llamacpp"):
    pytest.skip(reason, allow_module_level=True)

from jitney.backends.llamacpp import bindings, library
from jitney.backends.llamacpp.thread_pool import attach_pool
from tests.unit.backends.llamacpp import test_bindings

WAIT_S = 120.0
TASKS = Path("/proc/self/task")
SHAPE = replace(test_bindings.SHAPE, threads=4)


def _tasks() -> set[int]:
    """The threads of this process that are not Python's: of those, one may start at any time."""
    found = {int(each.name) for each in TASKS.iterdir()}
    return found - {each.native_id for each in threading.enumerate()}


def _decode(context: bindings.Context, at: int) -> int:
    context.tokens[0], context.positions[0], context.slots[0] = 1, at, 0
    context.needs_logits[0] = 1
    return context.decode(1)


@pytest.mark.skipif(not TASKS.exists(), reason="the system does not list threads")
def test_the_threads_of_a_context_are_the_same_in_every_pass(tiny_model: Path) -> None:
    """Guards fifteen new threads for each token on sixteen cores."""
    model = bindings.Model(tiny_model, gpu_layers=0, extra_kernels=True)
    before = _tasks()
    context = bindings.Context(model, SHAPE)
    started = _tasks() - before
    found = library.find()
    if not started and found is not None and found.module == "llama_cpp":
        pytest.skip("this build of llama.cpp has the threads of OpenMP")
    assert len(started) == SHAPE.threads - 1
    assert [_decode(context, at) for at in range(3)] == [0, 0, 0]
    context.set_threads(2)
    assert _decode(context, 3) == 0
    assert _tasks() - before == started
    context.close()
    # The system lists a thread for a moment after its end.
    ends_at = time.monotonic() + WAIT_S
    while left := _tasks() & started:
        assert time.monotonic() < ends_at, f"{len(left)} of {len(started)} threads did not end"
        threading.Event().wait(0.01)


def test_one_thread_needs_no_pool() -> None:
    bindings.native_log()
    assert attach_pool(library.handle(), None, 1) is None


def test_a_library_without_pools_makes_its_own_threads() -> None:
    assert attach_pool(SimpleNamespace(), None, 4) is None


def test_a_library_with_other_structures_makes_its_own_threads() -> None:
    """Guards numbers that are written where the library does not expect them."""

    def fill(params: Any, threads: int) -> None:
        params._obj.poll = threads

    def address(*_: object) -> int:
        return 1

    other = SimpleNamespace(
        ggml_threadpool_params_init=fill,
        llama_attach_threadpool=address,
        ggml_backend_dev_by_type=address,
        ggml_backend_dev_backend_reg=address,
        ggml_backend_reg_get_proc_address=address,
    )
    assert attach_pool(other, None, 4) is None


FORK = """
import os, sys
from pathlib import Path
from jitney.backends.llamacpp import bindings
from tests.unit.backends.llamacpp.test_thread_pool import SHAPE
model = bindings.Model(Path(sys.argv[1]), gpu_layers=0, extra_kernels=True)
context = bindings.Context(model, SHAPE)
child = os.fork()
if child == 0:
    context.close()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_does_not_wait_for_threads_that_it_has_not(tiny_model: Path) -> None:
    """Guards programs that fork: the end of the child hung or crashed."""
    root = Path(__file__).parents[4]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    done = subprocess.run(
        [sys.executable, "-P", "-c", FORK, str(tiny_model)],
        capture_output=True,
        text=True,
        env=environ,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr
