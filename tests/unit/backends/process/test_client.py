"""The fake backend in a process of its own: its life, its death, and what is said of it."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jitney.backends.process.client import ProcessBackend
from jitney.backends.process.messages import Encode, Message
from jitney.backends.process.worker_process import WorkerProcess
from jitney.core import limits
from jitney.core.batch import Batch, Entry, Open, Sampling
from jitney.core.params import Constraint, ConstraintKind
from jitney.errors import BackendCrashed, BackendFailed
from tests.e2e.server.harness import wait_until
from tests.e2e.server.processes import children, is_alive
from tests.unit.backends.process.asks_for_tests import before_each_ask

WAIT_S = 100.0
BATCH_S = 30.0
FIRST = Entry(0, 0, (1,), wants_token=True)
CONTINUED = Entry(0, 3, (), wants_token=True, continues=True)


def small(*, batch_s_max: float = BATCH_S, **settings: float | bool) -> ProcessBackend:
    """A small fake backend in a process."""
    return ProcessBackend("fake", {"slots": 4, "kv_tokens": 256, **settings}, batch_s_max)


def first_token(backend: ProcessBackend, number: int = 1) -> int | None:
    """The answer to three tokens in an empty slot."""
    sampling = Sampling(seed=0, prompt_count=3)
    batch = Batch(number, (Open(0, sampling),), (Entry(0, 0, (1, 2, 3), True),))
    return backend.execute(batch).samples[0].token


@pytest.fixture
def fresh() -> Iterator[ProcessBackend]:
    """A process of the test's own, which nothing was asked of yet."""
    with contextlib.closing(small()) as built:
        yield built


@pytest.fixture(scope="module")
def lasting() -> Iterator[ProcessBackend]:
    """The backend of `backend`."""
    with contextlib.closing(small()) as built:
        yield built


@pytest.fixture
def backend(lasting: ProcessBackend) -> ProcessBackend:
    """A running process, with every slot empty, that tests share as long as it lives."""
    lasting.reset()
    return lasting


def test_what_tries_constraints_ends_with_the_backend(fresh: ProcessBackend) -> None:
    """Guards the machine: it is a process of the backend's process, which may be killed."""
    before = set(children(os.getpid()))
    fresh.prepare(Constraint(ConstraintKind.REGEX, "[0-9]+"))
    (parent,) = children(fresh.pid)
    wait_until(lambda: len(children(parent)) == 1, "it has no child")
    pids = [parent, *children(parent)]
    os.kill(fresh.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, pids)), "they live on")
    assert set(children(os.getpid())) <= before, "nobody else took it over"


def test_a_closed_backend_says_so(fresh: ProcessBackend) -> None:
    """Guards against orphans, and against a backend that comes back to life."""
    pid = fresh.pid
    fresh.close()
    fresh.close()
    for call in (first_token, lambda each: each.encode([("text", False)]), ProcessBackend.reset):
        with pytest.raises(BackendCrashed, match="closed"):
            call(fresh)
    assert not is_alive(fresh.pid)
    assert not is_alive(pid)


def test_no_orphan_when_the_parent_is_killed() -> None:
    """Guards against a backend that holds its memory after the server was killed.

    The batch keeps the main thread of the worker busy for longer than the test may take.
    """
    script = (
        "import threading\n"
        "from jitney.backends.process.client import ProcessBackend\n"
        "from jitney.core.batch import Batch, Entry\n"
        "backend = ProcessBackend('fake', {'token_s': 600.0, 'sleeps': True})\n"
        "batch = Batch(1, (), (Entry(0, 0, (1,), False),))\n"
        "threading.Thread(target=backend.execute, args=(batch,), daemon=True).start()\n"
        "print(backend.pid, flush=True)\n"
        "threading.Event().wait(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
        parent.wait(WAIT_S)
    wait_until(lambda: not is_alive(pid), "it lives on")


def test_it_outlives_the_thread_that_built_it() -> None:
    """Guards against the kernel's rule that a child ends with the thread that started it."""
    with ThreadPoolExecutor(1) as builder:
        backend = builder.submit(small).result(WAIT_S)
    pid = backend.pid
    with contextlib.closing(backend):
        assert backend.encode([("ab", False)]) == [97, 98]
        assert first_token(backend) is not None
        assert backend.pid == pid


def test_files_in_the_current_folder_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a file of the user's that happens to have a module's name."""
    (tmp_path / "json.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(small()) as backend:
        assert first_token(backend) is not None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGILL])
def test_a_crash_names_the_signal(backend: ProcessBackend, number: signal.Signals) -> None:
    """Guards against a dead process that is reported as anything else, or without advice."""
    os.kill(backend.pid, number)
    with pytest.raises(BackendCrashed, match=f"was killed \\(signal {number.value}\\)") as caught:
        first_token(backend)
    assert caught.value.signal == number
    assert ("jitney backends --add llamacpp" in str(caught.value)) == (number == signal.SIGILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_leaves_the_end_to_its_parent(backend: ProcessBackend, number: signal.Signals) -> None:
    """Guards against Ctrl-C, or a service that is stopped, that cuts off answers being drained."""
    pid = backend.pid
    os.kill(pid, number)
    assert first_token(backend) is not None
    assert backend.pid == pid


def test_a_text_that_ends_every_process_is_given_up(
    backend: ProcessBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against one question that is asked of every next process, and ends them all."""
    asked: list[int] = []

    def kill(worker: WorkerProcess, question: Message) -> None:
        if isinstance(question, Encode):
            asked.append(worker.process.pid)
            os.kill(worker.process.pid, signal.SIGKILL)

    before_each_ask(monkeypatch, kill)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(backend.encode, [("deadly", False)])
        while not answer.done():
            backend.reset()
        with pytest.raises(BackendCrashed, match="signal 9"):
            answer.result()
    assert len(set(asked)) == limits.FAILURES_MAX


def test_a_process_that_died_while_nothing_ran_is_found_dead(backend: ProcessBackend) -> None:
    """Guards a backend that nobody misses before somebody needs it."""
    backend.check()
    os.kill(backend.pid, signal.SIGKILL)
    with pytest.raises(BackendCrashed, match="signal 9"):
        backend.check()
    backend.reset()
    backend.check()


def test_a_process_that_is_stuck_while_nothing_runs_is_ended(
    backend: ProcessBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a backend that is there and does nothing, such as one that was stopped."""
    monkeypatch.setattr("jitney.backends.process.client.CHECK_S_MAX", 0.2)
    pid = backend.pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(BackendCrashed, match="did not answer"):
        backend.check()
    assert not is_alive(pid)
    backend.reset()
    assert first_token(backend) is not None


def test_reset_of_a_living_process_keeps_it(backend: ProcessBackend) -> None:
    """Guards against a model that is loaded again for every failed batch."""
    pid = backend.pid
    with pytest.raises(BackendFailed, match="does not exist"):
        backend.execute(Batch(1, (), (Entry(9, 0, (1,), False),)))
    backend.reset()
    assert backend.pid == pid
    assert first_token(backend, 2) is not None


def is_answered(backend: ProcessBackend, batch: Batch) -> bool:
    """Whether a new process answers; another is asked where a busy machine was too slow."""
    for _ in range(10):
        backend.reset()
        with contextlib.suppress(BackendCrashed):
            return backend.execute(batch).number == batch.number
    return False


def test_a_stuck_batch_ends_in_a_crash_and_a_restart() -> None:
    """Guards against native code that never returns."""
    with contextlib.closing(small(batch_s_max=0.5, token_s=600.0, sleeps=True)) as backend:
        with pytest.raises(BackendCrashed, match="did not answer within"):
            first_token(backend)
        assert is_answered(backend, Batch(2, (), ()))


def test_a_batch_that_hangs_is_found_by_what_others_took(
    fresh: ProcessBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against minutes of silence: the limit follows from what was measured."""
    for number in range(4):
        first_token(fresh, number)
        fresh.reset()
    monkeypatch.setattr(limits, "BATCH_S_MIN", 0.3)
    os.kill(fresh.pid, signal.SIGSTOP)
    # Less than the 30 s that it has without measurements; more than 0.3 s on a busy machine.
    with pytest.raises(BackendCrashed, match=r"did not answer within [12]?\d(\.\d+)? seconds"):
        first_token(fresh, 4)
    fresh.reset()
    assert first_token(fresh, 5) is not None


def test_close_cuts_a_running_batch_short() -> None:
    """Guards against a close that waits for a batch that may take for ever."""
    backend = small(batch_s_max=600.0, token_s=600.0, sleeps=True)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(first_token, backend)
        backend.close()
        with pytest.raises(BackendCrashed, match="closed"):
            answer.result(WAIT_S)


def test_encode_works_beside_a_running_batch() -> None:
    """Guards against tokenisers that wait for the forward pass."""
    backend = small(token_s=600.0, sleeps=True, batch_s_max=600.0)
    with ThreadPoolExecutor(1) as pool, contextlib.closing(backend):
        answer = pool.submit(first_token, backend)
        assert backend.encode([(" the<|end|>", True)]) != []
        assert not answer.done()


def test_many_threads_encode_at_once(backend: ProcessBackend) -> None:
    """Guards against an answer that goes to another question."""

    def are_right(letter: str) -> bool:
        return all(
            backend.encode([(letter * length, False)]) == [ord(letter)] * length
            for length in range(1, 40)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(are_right, "abcdefgh", timeout=WAIT_S))


def test_an_interrupted_question_does_not_leave_its_answer_behind(
    backend: ProcessBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against Ctrl-C after which every text gets the tokens of the one before."""
    assert backend._worker is not None
    monkeypatch.setattr(backend._worker.texts, "receive", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        backend.encode([("one", False)])
    backend.reset()
    assert backend.encode([("ab", False)]) == [97, 98]


def _interrupt(limit_s: float | None = None) -> None:
    raise KeyboardInterrupt


def test_what_the_process_writes_stays_off_the_terminal(
    fresh: ProcessBackend, capfd: pytest.CaptureFixture[str]
) -> None:
    """Guards against native noise in the middle of an answer."""
    os.kill(fresh.pid, signal.SIGABRT)
    with pytest.raises(BackendCrashed):
        first_token(fresh)
    assert capfd.readouterr() == ("", "")


def test_two_batches_are_answered_in_order(backend: ProcessBackend) -> None:
    """Guards against an outcome that is taken for that of another batch."""
    alone = [first_token(backend)]
    alone.append(backend.execute(Batch(2, (), (CONTINUED,))).samples[0].token)
    backend.reset()
    opened = Open(0, Sampling(seed=0, prompt_count=3))
    backend.send(Batch(1, (opened,), (Entry(0, 0, (1, 2, 3), True),)))
    backend.send(Batch(2, (), (CONTINUED,)))
    outcomes = [backend.receive(), backend.receive()]
    assert [each.number for each in outcomes if each is not None] == [1, 2]
    assert [each.samples[0].token for each in outcomes if each is not None] == alone


def test_the_time_of_a_second_batch_counts_from_the_end_of_the_first(
    fresh: ProcessBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a batch that lies in line behind a long one: it has all of its own time left."""
    assert fresh._worker is not None
    channel, waited = fresh._worker.batches, list[float | None]()
    receive = channel.receive

    def watched(limit_s: float | None = None) -> Message:
        waited.append(limit_s)
        return receive(limit_s)

    monkeypatch.setattr(channel, "receive", watched)
    fresh.send(Batch(1, (Open(0, Sampling(seed=0, prompt_count=1)),), (FIRST,)))
    fresh.send(Batch(2, (), (Entry(0, 1, (), wants_token=True, continues=True),)))
    assert waited == []
    assert fresh.receive() is not None
    assert fresh.receive() is not None
    assert waited == [BATCH_S] * 2


def test_an_outcome_that_is_late_comes_later() -> None:
    """Guards against a limit that costs the outcome, or the process."""
    with contextlib.closing(small(sleeps=True, tick_s=0.3)) as backend:
        pid = backend.pid
        backend.send(Batch(1, (Open(0, Sampling(seed=0, prompt_count=1)),), (FIRST,)))
        assert backend.receive(0.01) is None
        outcome = backend.receive()
        assert outcome is not None
        assert (outcome.number, backend.pid) == (1, pid)


def test_a_reset_forgets_outcomes_that_nobody_took(backend: ProcessBackend) -> None:
    """Guards the first batch after a failure: it must not get an answer of those before."""
    pid, expected = backend.pid, first_token(backend)
    backend.reset()
    backend.send(Batch(1, (), (CONTINUED,)))
    backend.send(Batch(2, (), (CONTINUED,)))
    with pytest.raises(BackendFailed):
        backend.receive()
    backend.reset()
    assert first_token(backend, 3) == expected
    assert backend.pid == pid


def test_a_batch_to_a_process_that_died_is_a_crash(backend: ProcessBackend) -> None:
    """Guards what lies in the other process when it is killed: one crash, and a new start."""
    expected, pid = first_token(backend), backend.pid
    backend.send(Batch(2, (), (CONTINUED,)))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), "it lives on")
    with pytest.raises(BackendCrashed, match="signal 9"):
        backend.send(Batch(3, (), (CONTINUED,)))
    backend.reset()
    assert first_token(backend) == expected
