"""Tasks in a process with limits, through real processes."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any  # Any: JSON

import pytest

from jitney.sandbox import Bounds, Busy, Crashed, Failed, Guarded, TooLong, TooMuchMemory
from tests.e2e.server.processes import children, is_alive, wait_until_gone
from tests.guarded_for_tests import ROOT, set_up, set_up_threads

LONG = Bounds(seconds=60.0, memory_bytes=2**28, wait_s=60.0)
SHORT = Bounds(seconds=0.1, memory_bytes=2**28, wait_s=60.0, set_up_s=60.0)
Make = Callable[..., Guarded]


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes guarded processes, and ends them."""
    made: list[Guarded] = []

    def one(given: Any = "given", bounds: Bounds = LONG, set_up: Any = set_up) -> Guarded:
        made.append(Guarded(set_up, lambda: given, bounds))
        return made[-1]

    yield one
    for each in made:
        each.close()


def test_tasks_are_answered_in_another_process_that_is_set_up_once(make: Make) -> None:
    """Guards the point of it: nothing of a task happens here, and nothing is done twice."""
    guarded = make({"a": [1, None, "täxt", 0.5]})
    assert guarded.start_count == 0
    assert guarded.pid is None
    assert guarded.run(["given"]) == {"a": [1, None, "täxt", 0.5]}
    parent, server = guarded.run(["pids"])
    assert parent == guarded.pid
    assert os.getpid() not in (parent, server)
    assert guarded.run(["pids"]) == [parent, server]
    assert guarded.start_count == 1


def test_a_process_may_be_started_before_it_is_known_what_for() -> None:
    """Guards a start that is spread over time: what is given is asked for when it is needed."""
    asked: list[int] = []
    guarded = Guarded(set_up, lambda: asked.append(1), LONG)
    try:
        guarded.spawn()
        guarded.spawn()
        pid = guarded.pid
        assert (asked, guarded.start_count) == ([], 1)
        assert guarded.run(["pids"])[0] == pid
        assert (asked, guarded.start_count) == ([1], 1)
    finally:
        guarded.close()
    with pytest.raises(Crashed, match="closed"):
        guarded.spawn()


@pytest.mark.parametrize("stack_bytes", [0, 2**29])
def test_a_task_that_takes_too_long_is_ended_and_costs_no_set_up(
    make: Make, stack_bytes: int
) -> None:
    """Guards everybody behind it; the set-up of a real one takes a second."""
    bounds = replace(SHORT, stack_bytes=stack_bytes)
    guarded = make(bounds=bounds)
    parent, server = guarded.run(["pids"])
    for _ in range(3):
        with pytest.raises(TooLong, match=r"0\.1 s"):
            guarded.run(["pause"])
    again, another = guarded.run(["pids"])
    assert (again, guarded.start_count) == (parent, 1)
    assert another != server
    assert not is_alive(server)
    assert children(parent) == [another]


def test_a_task_that_takes_too_much_memory_is_refused_it(make: Make) -> None:
    """Guards the machine's memory: the bound is the kernel's, not the task's."""
    if sys.platform != "linux":
        pytest.skip("the system does not limit address space")
    guarded = make()
    assert guarded.run(["swell", 2**27]) == 2**27
    with pytest.raises(TooMuchMemory, match="268 MB"):
        guarded.run(["swell", 2**29])
    assert guarded.run(["same", 1]) == 1
    assert guarded.start_count == 1


def test_a_task_may_have_a_deep_stack_beside_its_memory(make: Make) -> None:
    """Guards native code that goes down a level for each level of a text."""
    guarded = make(bounds=replace(LONG, stack_bytes=2**29))
    assert guarded.run(["swell", 2**27]) == 2**27
    assert [guarded.run(["same", at]) for at in range(3)] == [0, 1, 2]
    assert guarded.start_count == 1


def test_a_server_that_has_grown_is_followed_by_a_fresh_one(make: Make) -> None:
    """Guards against memory that adds up, or is never given back."""
    guarded = make()
    parent, server = guarded.run(["pids"])
    guarded.run(["swell", 2**27])
    again, another = guarded.run(["pids"])
    assert again == parent
    assert another != server


def test_a_server_leaves_after_so_many_tasks(make: Make) -> None:
    """Guards against whatever adds up in a library."""
    guarded = make(bounds=Bounds(seconds=60.0, memory_bytes=2**28, wait_s=60.0, tasks_max=3))
    servers = [guarded.run(["pids"])[1] for _ in range(6)]
    assert len(set(servers)) == 2
    assert guarded.start_count == 1


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_task_that_crashes_is_told_by_its_signal(make: Make, number: int) -> None:
    """Guards the owner against crashes of native code."""
    guarded = make()
    with pytest.raises(Crashed) as caught:
        guarded.run(["end", number])
    assert caught.value.signal == number
    assert guarded.run(["same", "next"]) == "next"
    assert guarded.start_count == 1


def test_a_task_that_ends_its_process_or_raises_is_answered(make: Make) -> None:
    """Guards the rule of one answer for each task, however it ends."""
    guarded = make()
    for status in (0, 5):
        with pytest.raises(Crashed):
            guarded.run(["exit", status])
    with pytest.raises(Failed, match="KeyError: 'words'"):
        guarded.run(["fail", "words"])
    assert guarded.run(["same", 2]) == 2
    assert guarded.start_count == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_of_the_terminal_are_for_the_owner(make: Make, number: int) -> None:
    """Guards the drain: a terminal sends them to all."""
    guarded = make()
    pids = guarded.run(["pids"])
    for pid in pids:
        os.kill(pid, number)
    assert guarded.run(["pids"]) == pids


@pytest.mark.parametrize("at", [0, 1])
def test_a_process_that_was_killed_is_started_anew(make: Make, at: int) -> None:
    """Guards against a bystander's fault that would be everybody's for ever."""
    guarded = make()
    pids = guarded.run(["pids"])
    os.kill(pids[at], signal.SIGKILL)
    assert wait_until_gone(pids[at])
    assert guarded.run(["same", 3]) == 3
    assert guarded.start_count <= 2
    assert wait_until_gone(*set(pids) - {guarded.pid})


def test_a_process_that_is_stuck_is_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the caller's wait: the process may not be there to keep its limits."""
    monkeypatch.setattr("jitney.sandbox.owner._GRACE_S", 0.1)
    guarded = make(bounds=SHORT)
    pids = guarded.run(["pids"])
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(TooLong, match="stuck"):
        guarded.run(["same", 4])
    assert wait_until_gone(*pids)
    monkeypatch.setattr("jitney.sandbox.owner._GRACE_S", 60.0)
    assert guarded.run(["same", 4]) == 4


@pytest.mark.parametrize(
    ("given", "kind"), [("raise", Failed), ("hang", TooLong), ("die", Crashed)]
)
def test_a_set_up_that_fails_is_told(make: Make, given: str, kind: type[Exception]) -> None:
    """Guards the first task, and every later one, against waiting for it."""
    bounds = Bounds(seconds=1.0, memory_bytes=2**28, wait_s=60.0, set_up_s=1.0)
    guarded = make(given, bounds)
    for _ in range(2):
        with pytest.raises(kind):
            guarded.start()
        with pytest.raises(kind):
            guarded.run(["given"])
    assert guarded.pid is None


def test_a_set_up_is_limited_in_memory(make: Make) -> None:
    """Guards the machine against what is set up: that may be a stranger's text as well."""
    if sys.platform != "linux":
        pytest.skip("the system does not limit address space")
    with pytest.raises(TooMuchMemory):
        make("swell").start()


def test_nothing_is_forked_beside_another_thread(make: Make) -> None:
    """Guards against a lock that some other thread held at the fork."""
    with pytest.raises(Crashed):
        make(set_up=set_up_threads).run(["given"])


def test_tasks_of_many_threads_take_turns(make: Make) -> None:
    """Guards against answers that reach somebody else."""
    guarded, wrong = make(), list[int]()

    def ask(offset: int) -> None:
        for number in range(offset, offset + 50):
            if guarded.run(["same", number]) != number:
                wrong.append(number)

    threads = [threading.Thread(target=ask, args=(at * 1000,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert guarded.start_count == 1


def test_a_wait_for_others_is_bounded_and_closing_ends_what_runs(make: Make) -> None:
    """Guards both who waits and who closes against a task without end."""
    guarded = make(bounds=Bounds(seconds=60.0, memory_bytes=2**28, wait_s=0.1))
    pids = guarded.run(["pids"])
    ended: list[str] = []

    def ask() -> None:
        try:
            guarded.run(["pause"])
        except Crashed as error:
            ended.append(str(error))

    busy = threading.Thread(target=ask)
    busy.start()
    while not guarded._turn.locked():
        pass
    with pytest.raises(Busy):
        guarded.run(["same", 1])
    guarded.close()
    guarded.close()
    busy.join(30.0)
    assert ended == ["the process is closed"]
    assert wait_until_gone(*pids)
    with pytest.raises(Crashed, match="closed"):
        guarded.run(["same", 1])


def test_it_ends_with_its_owner(tmp_path: Path) -> None:
    """Guards the machine: an owner that is killed leaves no process behind."""
    program = (
        "import signal\n"
        "from jitney.sandbox import Bounds, Guarded\n"
        "from tests.guarded_for_tests import set_up\n"
        "guarded = Guarded(set_up, lambda: 0, Bounds(seconds=9, memory_bytes=2**28, wait_s=9))\n"
        "print(*guarded.run(['pids']), flush=True)\n"
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
