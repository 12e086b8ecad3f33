"""A text that ends the backend's process: who is told, who is asked again, and who is blamed."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jitney.backends.process.client import ProcessBackend
from jitney.backends.process.messages import Encode, Message, Prepare
from jitney.backends.process.worker_process import WorkerProcess
from jitney.core.batch import Batch, Entry, Open, Sampling
from jitney.core.params import Constraint, ConstraintKind
from jitney.errors import BackendCrashed, InputCrashed
from tests.deadly_text import DEADLY, ENDLESS, Deaths, deadly_text
from tests.e2e.server.harness import WAIT_S, wait_until
from tests.unit.backends.process.asks_for_tests import before_each_ask

SLOW = {"token_s": 600.0, "sleeps": True}


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Deaths]:
    with deadly_text(tmp_path) as made:
        yield made


@contextlib.contextmanager
def opened(**settings: float | bool) -> Iterator[tuple[ProcessBackend, ThreadPoolExecutor]]:
    """A fake backend in a process, and threads that can ask it."""
    values = {"slots": 4, "kv_tokens": 256, **settings}
    with ThreadPoolExecutor(4) as pool:
        backend = ProcessBackend("fake", values, batch_s_max=600.0)
        with contextlib.closing(backend):
            yield backend, pool


def test_those_who_wait_behind_a_deadly_text_are_answered(
    notes: Deaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards every caller in the line: they had asked a process that was dead when their turn came,
    and were told that their texts had ended it."""

    def wait_for_others(worker: WorkerProcess, question: Message) -> None:
        if question == Encode(((DEADLY, False),)):
            wait_until(lambda: len(backend._turns["texts"]._queue) == 4, "nobody waits")

    before_each_ask(monkeypatch, wait_for_others)
    with opened() as (backend, pool):
        deadly = pool.submit(backend.encode, [(DEADLY, False)])
        wait_until(lambda: backend._turns["texts"].change_count % 2 == 1, "it is not asked")
        others = [pool.submit(backend.encode, [("ab", False)]) for _ in range(3)]
        with pytest.raises(InputCrashed, match="signal 6") as caught:
            deadly.result(WAIT_S)
        backend.reset()
        assert [each.result(WAIT_S) for each in others] == [[97, 98]] * 3
    assert caught.value.deaths == notes.count == 1


def test_a_batch_is_not_blamed_for_a_deadly_text(notes: Deaths) -> None:
    """Guards whoever runs meanwhile: four such texts in a row would end an innocent request."""
    with opened(**SLOW) as (backend, _):
        entry = Entry(0, 0, (1,), wants_token=True)
        backend.send(Batch(1, (Open(0, Sampling(seed=0, prompt_count=1)),), (entry,)))
        with pytest.raises(InputCrashed):
            backend.encode([(DEADLY, False)])
        with pytest.raises(BackendCrashed, match="signal 6") as caught:
            backend.receive()
    assert notes.count == 1
    assert not caught.value.was_reached


def abort(backend: ProcessBackend) -> None:
    """The kernel gives the signal to the main thread, which runs batches."""
    os.kill(backend.pid, signal.SIGABRT)


def replace(backend: ProcessBackend) -> None:
    """As a backend that fails to reset is ended."""
    backend._present().end()


@pytest.mark.parametrize("end", [abort, replace])
def test_a_text_is_not_blamed_for_what_others_ended(
    notes: Deaths, end: Callable[[ProcessBackend], None]
) -> None:
    """Guards texts that are tokenised at that moment: they are asked of the next process."""
    with opened() as (backend, pool):
        answer = pool.submit(backend.encode, [(ENDLESS, False)])
        wait_until(lambda: notes.count == 1, "it is not tokenised")
        end(backend)
        backend.reset()
        assert len(answer.result(WAIT_S)) == len(ENDLESS)


def test_a_constraint_is_not_blamed_for_a_deadly_text_beside_it(
    notes: Deaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards whoever has a constraint compiled meanwhile: both were in the process that ended, so
    each is asked once more, alone."""
    begun: list[Message] = []

    def wait_for_each_other(worker: WorkerProcess, question: Message) -> None:
        begun.append(question)
        if len(begun) <= 2:
            wait_until(lambda: len(begun) >= 2, "the other is not asked")
        if isinstance(question, Prepare) and begun.count(question) == 1:
            # As if it were compiled for so long.
            wait_until(lambda: worker.process.has_ended, "the process does not end")
            raise BackendCrashed("It ended.", signal.SIGABRT, was_reached=True)

    ask = WorkerProcess.ask
    constraint = Constraint(ConstraintKind.REGEX, "a+")
    with opened() as (backend, pool):
        before_each_ask(monkeypatch, wait_for_each_other)
        compiled = pool.submit(backend.prepare, constraint)
        deadly = pool.submit(backend.encode, [(DEADLY, False)])
        for deaths in (1, 2):
            wait_until(lambda deaths=deaths: notes.count == deaths, "it does not die")  # type: ignore[misc]
            wait_until(lambda: backend._present().process.has_ended, "the process does not end")
            monkeypatch.setattr(WorkerProcess, "ask", ask)
            backend.reset()
        with pytest.raises(InputCrashed):
            deadly.result(WAIT_S)
        compiled.result(WAIT_S)
    assert notes.count == 2
