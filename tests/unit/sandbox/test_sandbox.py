"""Tasks in a process with limits, through real processes."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any  # Any: JSON

import pytest

from jitney.sandbox.sandbox import Bounds, Busy, Gone, Sandbox, SandboxError, TooLong, TooMuchMemory
from tests.e2e.server.harness import wait_until
from tests.e2e.server.processes import children, is_alive, wait_until_gone
from tests.sandbox_for_tests import ROOT, set_up, set_up_threads

LONG = Bounds(seconds=60.0, memory_bytes=2**28, wait_s=60.0)
SHORT = Bounds(seconds=0.1, memory_bytes=2**28, wait_s=60.0, set_up_s=60.0)
Make = Callable[..., Sandbox]


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes sandbox processes, and ends them."""
    made: list[Sandbox] = []

    def one(given: Any = "given", bounds: Bounds = LONG, set_up: Any = set_up) -> Sandbox:
        made.append(Sandbox(set_up, lambda: given, bounds))
        return made[-1]

    yield one
    for each in made:
        each.close()


def test_tasks_are_answered_in_another_process_that_is_set_up_once(make: Make) -> None:
    """Guards the point of it: nothing of a task happens here, and nothing is done twice."""
    sandbox = make({"a": [1, None, "täxt", 0.5]})
    assert sandbox.start_count == 0
    assert sandbox.pid is None
    assert sandbox.run(["given"]) == {"a": [1, None, "täxt", 0.5]}
    parent, server = sandbox.run(["pids"])
    assert parent == sandbox.pid
    assert os.getpid() not in (parent, server)
    assert sandbox.run(["pids"]) == [parent, server]
    assert sandbox.start_count == 1


def test_a_process_may_be_started_before_it_is_known_what_for() -> None:
    """Guards a start that is spread over time: what is given is asked for when it is needed."""
    asked: list[int] = []
    sandbox = Sandbox(set_up, lambda: asked.append(1), LONG)
    try:
        sandbox.spawn()
        sandbox.spawn()
        pid = sandbox.pid
        assert (asked, sandbox.start_count) == ([], 1)
        assert sandbox.run(["pids"])[0] == pid
        assert (asked, sandbox.start_count) == ([1], 1)
    finally:
        sandbox.close()
    with pytest.raises(Gone, match="closed"):
        sandbox.spawn()


def pids_in_time(sandbox: Sandbox) -> list[int]:
    """Its processes; asked again where a busy machine was too slow for a short limit."""
    for _ in range(20):
        with contextlib.suppress(TooLong):
            found: list[int] = sandbox.run(["pids"])
            return found
    pytest.fail("it never answers in time")


@pytest.mark.parametrize("stack_bytes", [0, 2**29])
def test_a_task_that_takes_too_long_is_ended_and_costs_no_set_up(
    make: Make, stack_bytes: int
) -> None:
    """Guards everybody behind it; the set-up of a real one takes a second."""
    sandbox = make(bounds=replace(SHORT, stack_bytes=stack_bytes))
    parent, server = pids_in_time(sandbox)
    for _ in range(3):
        with pytest.raises(TooLong, match=r"0\.1 s"):
            sandbox.run(["pause"])
    again, another = pids_in_time(sandbox)
    assert (again, sandbox.start_count) == (parent, 1)
    assert another != server
    assert not is_alive(server)
    assert children(parent) == [another]


def test_a_task_ends_with_the_process_that_forked_it(make: Make) -> None:
    """Guards the processor: a task that nobody waits for any more would use it until its limit."""
    if sys.platform != "linux":
        pytest.skip("needs what Linux has")
    sandbox = make()
    parent, server = sandbox.run(["pids"])
    with ThreadPoolExecutor(1) as pool:
        # It is asked once more, of a new process, and ends with the test.
        busy = pool.submit(sandbox.run, ["pause"])
        os.kill(parent, signal.SIGKILL)
        assert wait_until_gone(server)
        sandbox.close()
        with pytest.raises(Gone):
            busy.result(60.0)


def test_a_task_that_takes_too_much_memory_is_refused_it(make: Make) -> None:
    """Guards the machine's memory: the bound is the kernel's, not the task's."""
    if sys.platform != "linux":
        pytest.skip("the system does not limit address space")
    sandbox = make()
    assert sandbox.run(["swell", 2**27]) == 2**27
    with pytest.raises(TooMuchMemory, match="268 MB"):
        sandbox.run(["swell", 2**29])
    assert sandbox.run(["same", 1]) == 1
    assert sandbox.start_count == 1


def test_a_task_may_have_a_deep_stack_beside_its_memory(make: Make) -> None:
    """Guards native code that goes down a level for each level of a text."""
    sandbox = make(bounds=replace(LONG, stack_bytes=2**29))
    assert sandbox.run(["swell", 2**27]) == 2**27
    assert [sandbox.run(["same", at]) for at in range(3)] == [0, 1, 2]
    assert sandbox.start_count == 1


def test_a_server_that_has_grown_is_followed_by_a_fresh_one(make: Make) -> None:
    """Guards against memory that adds up, or is never given back."""
    sandbox = make()
    parent, server = sandbox.run(["pids"])
    sandbox.run(["swell", 2**27])
    again, another = sandbox.run(["pids"])
    assert again == parent
    assert another != server


def test_a_server_leaves_after_so_many_tasks(make: Make) -> None:
    """Guards against whatever adds up in a library."""
    sandbox = make(bounds=Bounds(seconds=60.0, memory_bytes=2**28, wait_s=60.0, tasks_max=3))
    servers = [sandbox.run(["pids"])[1] for _ in range(6)]
    assert len(set(servers)) == 2
    assert sandbox.start_count == 1


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_task_that_crashes_is_told_by_its_signal(make: Make, number: int) -> None:
    """Guards the owner against crashes of native code."""
    sandbox = make()
    with pytest.raises(SandboxError, match=rf"signal {number:d}\)"):
        sandbox.run(["end", number])
    assert sandbox.run(["same", "next"]) == "next"
    assert sandbox.start_count == 1


def test_a_task_that_ends_its_process_or_raises_is_answered(make: Make) -> None:
    """Guards the rule of one answer for each task, however it ends."""
    sandbox = make()
    for status in (0, 5):
        with pytest.raises(SandboxError, match="ended its process"):
            sandbox.run(["exit", status])
    with pytest.raises(SandboxError, match="KeyError: 'words'"):
        sandbox.run(["fail", "words"])
    assert sandbox.run(["same", 2]) == 2
    assert sandbox.start_count == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_of_the_terminal_are_for_the_owner(make: Make, number: int) -> None:
    """Guards the drain: a terminal sends them to all."""
    sandbox = make()
    pids = sandbox.run(["pids"])
    for pid in pids:
        os.kill(pid, number)
    assert sandbox.run(["pids"]) == pids


@pytest.mark.parametrize("at", [0, 1])
def test_a_process_that_was_killed_is_started_anew(make: Make, at: int) -> None:
    """Guards against a bystander's fault that would be everybody's for ever."""
    sandbox = make()
    pids = sandbox.run(["pids"])
    os.kill(pids[at], signal.SIGKILL)
    assert wait_until_gone(pids[at])
    assert sandbox.run(["same", 3]) == 3
    assert sandbox.start_count <= 2
    assert wait_until_gone(*set(pids) - {sandbox.pid})


def test_a_process_that_is_stuck_is_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the caller's wait: the process may not be there to keep its limits."""
    sandbox = make()
    pids = sandbox.run(["pids"])
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    # Only now: what is well may be slow.
    with monkeypatch.context() as patch:
        patch.setattr("jitney.sandbox.sandbox._GRACE_S", 0.1)
        patch.setattr(sandbox, "_bounds", SHORT)
        with pytest.raises(TooLong, match="stuck"):
            sandbox.run(["same", 4])
    assert wait_until_gone(*pids)
    assert sandbox.run(["same", 4]) == 4


@pytest.mark.parametrize(
    ("given", "kind"), [("raise", SandboxError), ("hang", TooLong), ("die", Gone)]
)
def test_a_set_up_that_fails_is_told(make: Make, given: str, kind: type[Exception]) -> None:
    """Guards the first task, and every later one, against waiting for it."""
    limit_s = 1.0 if kind is TooLong else 60.0
    sandbox = make(given, replace(LONG, seconds=limit_s, set_up_s=limit_s))
    for _ in range(2):
        with pytest.raises(kind):
            sandbox.run(["given"])
    assert sandbox.pid is None


def test_a_set_up_is_limited_in_memory(make: Make) -> None:
    """Guards the machine against what is set up: that may be a stranger's text as well."""
    if sys.platform != "linux":
        pytest.skip("the system does not limit address space")
    with pytest.raises(TooMuchMemory):
        make("swell").run(["given"])


def test_nothing_is_forked_beside_another_thread(make: Make) -> None:
    """Guards against a lock that some other thread held at the fork."""
    with pytest.raises(Gone):
        make(set_up=set_up_threads).run(["given"])


def test_tasks_of_many_threads_take_turns(make: Make) -> None:
    """Guards against answers that reach somebody else."""
    sandbox, numbers = make(), range(200)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: sandbox.run(["same", number]), numbers))
    assert answers == [*numbers]
    assert sandbox.start_count == 1


def test_a_wait_for_others_is_bounded_and_closing_ends_what_runs(make: Make) -> None:
    """Guards both who waits and who closes against a task without end."""
    sandbox = make(bounds=Bounds(seconds=60.0, memory_bytes=2**28, wait_s=0.1))
    pids = sandbox.run(["pids"])
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(sandbox.run, ["pause"])
        wait_until(sandbox._turn.locked, "it does not begin")
        with pytest.raises(Busy):
            sandbox.run(["same", 1])
        sandbox.close()
        sandbox.close()
        with pytest.raises(Gone, match="the process is closed"):
            busy.result(30.0)
    assert wait_until_gone(*pids)
    with pytest.raises(Gone, match="closed"):
        sandbox.run(["same", 1])


def test_it_ends_with_its_owner(tmp_path: Path) -> None:
    """Guards the machine: an owner that is killed leaves no process behind."""
    program = (
        "import signal\n"
        "from jitney.sandbox.sandbox import Bounds, Sandbox\n"
        "from tests.sandbox_for_tests import set_up\n"
        "sandbox = Sandbox(set_up, lambda: 0, Bounds(seconds=9, memory_bytes=2**28, wait_s=9))\n"
        "print(*sandbox.run(['pids']), flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as owner:
        assert owner.stdout is not None
        pids = [int(each) for each in owner.stdout.readline().split()]
        assert len(pids) == 2
        assert all(is_alive(pid) for pid in pids)
        owner.kill()
    assert wait_until_gone(*pids)
