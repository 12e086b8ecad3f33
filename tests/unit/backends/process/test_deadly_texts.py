"""A text that ends the backend's process: who is told, who is asked again, and who is blamed."""

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jitney.backends.process.client import BackendSpec, ProcessBackend
from jitney.backends.process.messages import Channel, Encode, Encoded, Message, Prepare
from jitney.backends.process.worker_process import WorkerProcess
from jitney.core.batch import Batch, Entry, Open, Sampling
from jitney.core.params import Constraint, ConstraintKind
from jitney.errors import BackendCrashed, InputCrashed
from tests.deadly_text import DEADLY, ENDLESS, Deaths, deadly_text
from tests.e2e.server.harness import WAIT_S, wait_until

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
        backend = ProcessBackend(BackendSpec(name="fake", settings=values, batch_s_max=600.0))
        with contextlib.closing(backend):
            yield backend, pool


def test_those_who_wait_behind_a_deadly_text_are_answered(
    notes: Deaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards every caller in the line: they had asked a process that was dead when their turn came,
    and were told that their texts had ended it."""

    def behind(
        worker: WorkerProcess,
        channel: Channel,
        question: Message,
        expected: type[Encoded],
        limit_s: float,
    ) -> Message:
        if question == Encode(((DEADLY, False),)):
            wait_until(lambda: len(backend._turns["texts"]._queue) == 4, "nobody waits")
        return ask(worker, channel, question, expected, limit_s)

    ask = WorkerProcess.ask
    monkeypatch.setattr(WorkerProcess, "ask", behind)
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


def test_a_text_is_not_blamed_for_what_ends_the_thread_of_batches(notes: Deaths) -> None:
    """Guards texts that are tokenised at that moment: they are asked of the next process."""
    with opened() as (backend, pool):
        answer = pool.submit(backend.encode, [(ENDLESS, False)])
        wait_until(lambda: notes.count == 1, "it is not tokenised")
        # The kernel gives it to the main thread, which runs batches.
        os.kill(backend.pid, signal.SIGABRT)
        backend.reset()
        assert len(answer.result(WAIT_S)) == len(ENDLESS)


def test_a_text_is_not_blamed_for_a_process_that_we_ended(notes: Deaths) -> None:
    """Guards texts that are tokenised while a backend that fails to reset is replaced."""
    with opened() as (backend, pool):
        answer = pool.submit(backend.encode, [(ENDLESS, False)])
        wait_until(lambda: notes.count == 1, "it is not tokenised")
        assert backend._worker is not None
        backend._worker.end()
        backend.reset()
        assert len(answer.result(WAIT_S)) == len(ENDLESS)


def test_a_constraint_is_not_blamed_for_a_deadly_text_beside_it(
    notes: Deaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards whoever has a constraint compiled meanwhile: both were in the process that ended, so
    each is asked once more, alone."""
    begun: list[Message] = []

    def beside(
        worker: WorkerProcess,
        channel: Channel,
        question: Message,
        expected: type[Encoded],
        limit_s: float,
    ) -> Message:
        begun.append(question)
        if len(begun) <= 2:
            wait_until(lambda: len(begun) >= 2, "the other is not asked")
        if isinstance(question, Prepare) and begun.count(question) == 1:
            # As if it were compiled for so long.
            wait_until(lambda: worker.process.has_ended, "the process does not end")
            raise BackendCrashed("It ended.", signal.SIGABRT, was_reached=True)
        return ask(worker, channel, question, expected, limit_s)

    ask = WorkerProcess.ask
    constraint = Constraint(ConstraintKind.REGEX, "a+")
    with opened() as (backend, pool):
        monkeypatch.setattr(WorkerProcess, "ask", beside)
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
