"""`ProcessBackend`: a backend in another process, which runs `jitney.backends.process.worker`.

One thread sends and receives batches, and calls `reset` and `check`. Any thread may call `encode`,
`prepare` and `close`; calls of `encode` wait for each other, and so do calls of `prepare`. A crash
of native code ends the other process. Then calls for batches raise BackendCrashed, `encode` and
`prepare` wait for the next process, and only `reset` starts it. Every wait is bounded, and every
process is ended.
"""

import signal
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal

from jitney.backends.process import messages
from jitney.backends.process.batch_time import BatchTimeLimits
from jitney.backends.process.worker_process import MessageT, WorkerProcess
from jitney.backends.shared.fifo_lock import FifoLock
from jitney.backends.shared.prefix_place import PrefixPlace
from jitney.core import limits
from jitney.core.backend import Fetch, Fetched, Segment
from jitney.core.batch import Batch, Outcome
from jitney.core.params import Constraint
from jitney.errors import BackendCrashed, BackendFailed, EngineError, InputCrashed, SetupError

START_S_MAX = 300.0
QUESTION_S_MAX = 60.0
"""The longest wait to tokenise a text or to compile a constraint, and again to get a turn."""

QuestionKind = Literal["texts", "constraints"]
QUESTION_KINDS: tuple[QuestionKind, ...] = ("texts", "constraints")
"""Where questions are asked, beside batches."""

CHECK_S_MAX = 10.0
"""An idle process that does not answer for this long is stuck."""


class ProcessBackend:
    """Implements `Backend` and `QueueingBackend` of `jitney.core.backend`: the other process
    computes while this one does something else."""

    def __init__(
        self,
        name: str,
        settings: Mapping[str, messages.Plain],
        batch_s_max: float = limits.BATCH_S_MAX,
        prefixes: PrefixPlace | None = None,
    ) -> None:
        """`batch_s_max` is the limit for any batch, unless batches of its size were measured to
        take nearly as long."""
        self._hello = messages.Hello(name, settings, prefixes)
        self._batch_s_max = batch_s_max
        self._is_closed = False
        # Guards `_worker`, and is held while a new process starts.
        self._lifecycle = threading.Lock()
        # One question at a time on each channel, in the order of calls.
        self._turns: Mapping[QuestionKind, FifoLock] = {each: FifoLock() for each in QUESTION_KINDS}
        self._worker: WorkerProcess | None = None
        self._time_limits = BatchTimeLimits(batch_s_max)
        # The token counts of batches that were sent and not answered.
        self._unanswered: deque[int] = deque()
        # The process that can answer questions; the condition is for threads that wait for one.
        self._ready_worker: WorkerProcess | None = None
        self._readiness = threading.Condition()
        with self._lifecycle:
            ready = self._start()
        # Later processes have the same.
        self.traits = ready.traits
        self.vocabulary = ready.vocabulary

    @property
    def pid(self) -> int:
        """The id of the present process."""
        return self._present().process.pid

    def execute(self, batch: Batch) -> Outcome:
        """Carry out a batch in the process. Raises BackendFailed or BackendCrashed."""
        self.send(batch)
        outcome = self.receive()
        assert outcome is not None, "Without a limit, receive waits for it"
        return outcome

    def send(self, batch: Batch) -> None:
        """Send a batch, which waits in the process for earlier ones. Raises BackendCrashed."""
        worker, token_count = self._present(), batch.token_count
        limit_s = self._time_limits.limit_s(token_count)
        # If the process ended before, this batch is not the cause.
        with worker.talking(limit_s, was_reached=False):
            worker.batches.send(messages.Execute.of(batch), limit_s)
        self._unanswered.append(token_count)

    def receive(self, limit_s: float | None = None) -> Outcome | None:
        """The outcome of the oldest batch that was sent; None when it takes longer than `limit_s`.

        The time limit of the batch starts here: all earlier batches have been received.
        """
        worker, token_count = self._present(), self._unanswered[0]
        batch_s_max = self._time_limits.limit_s(token_count)
        wait_s = batch_s_max if limit_s is None else min(limit_s, batch_s_max)
        with worker.talking(batch_s_max):
            try:
                answer = worker.batches.receive(wait_s)
            except TimeoutError:
                if wait_s < batch_s_max:
                    return None
                raise
        self._unanswered.popleft()
        outcome = worker.checked(answer, messages.Executed).outcome
        self._time_limits.observe(token_count, outcome.seconds)
        return outcome

    def reset(self) -> None:
        """Empty every slot and ticket; start a new process if this one has ended or fails."""
        with self._lifecycle:
            worker = self._present()
            try:
                while self._unanswered:
                    # Their outcomes are dropped: the answer to the reset comes after them.
                    limit_s = self._time_limits.limit_s(self._unanswered.popleft())
                    with worker.talking(limit_s):
                        worker.batches.receive(limit_s)
                limit_s = min(limits.RESET_S_MAX, self._batch_s_max)
                worker.ask(worker.batches, messages.Reset(), messages.Done, limit_s)
            except EngineError:
                self._replace(worker)

    def check(self) -> None:
        """Test that the process answers. Raises BackendCrashed; ends a process that is stuck."""
        worker = self._present()
        nothing = messages.Execute.of(Batch(0, (), ()))
        worker.ask(worker.batches, nothing, messages.Executed, CHECK_S_MAX)

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of texts, in one message. While there is no process, waits for the next one."""
        return [token for tokens in self.encode_each(texts) for token in tokens]

    def encode_each(self, texts: Sequence[Segment]) -> Sequence[Sequence[int]]:
        """The same, for each text."""
        question = messages.Encode(tuple(texts))
        return self._ask_in_turn("texts", question, messages.Encoded).tokens

    def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint in the process, for later use. Raises InvalidRequest."""
        question = messages.Prepare(constraint)
        self._ask_in_turn("constraints", question, messages.Done)

    def fetch(self, asked: Fetch) -> Fetched:
        """Look for a stored prefix, for as long as the disk takes. Raises an EngineError."""
        worker = self._present()
        return worker.ask(worker.prefixes, messages.Look(asked), messages.Looked, None).found

    def close(self) -> None:
        """End the process; idempotent."""
        with self._readiness:
            self._is_closed = True
            self._readiness.notify_all()
        # Before the lock is taken: this interrupts a thread that holds it.
        self._present().close()
        with self._lifecycle:
            self._present().close()

    def _ask_in_turn(
        self, channel: QuestionKind, question: messages.Message, expected: type[MessageT]
    ) -> MessageT:
        """Ask while batches run; if the process is killed from outside, ask the next one.

        After any other end, or after several kills, this raises: the question itself may be what
        ends processes, and must not end every next one. If a question of the other channel may
        have been in the process, this one is asked once more, alone. Only the engine starts new
        processes. Raises InputCrashed if a process has ended while it had the question.
        """
        deaths, is_alone = 0, False
        for attempt in range(limits.FAILURES_MAX):
            worker = self._await_ready()
            with self._turn(channel, is_alone=is_alone):
                company = self._company(channel)
                try:
                    where = worker.texts if channel == "texts" else worker.constraints
                    return worker.ask(where, question, expected, QUESTION_S_MAX)
                except BackendCrashed as crash:
                    deaths += crash.was_reached
                    is_last = attempt == limits.FAILURES_MAX - 1
                    if crash.is_wanted or (is_last and not deaths):
                        raise
                    was_alone = is_alone or (company % 2 == 0 and company == self._company(channel))
                    is_blamed = crash.was_reached and crash.signal != signal.SIGKILL
                    if is_last or (is_blamed and was_alone):
                        raise InputCrashed(str(crash), crash.signal, deaths=deaths) from crash
            is_alone = True
        raise AssertionError("The last attempt raises")

    @contextmanager
    def _turn(self, channel: QuestionKind, *, is_alone: bool) -> Iterator[None]:
        """Hold the turn of a channel, or of both. Raises BackendFailed."""
        with ExitStack() as held:
            # Always in the same order, so that no two threads wait for each other.
            for each in QUESTION_KINDS if is_alone else (channel,):
                if not self._turns[each].acquire(QUESTION_S_MAX):
                    raise BackendFailed(f"The backend is too busy for {each}; try again later.")
                held.callback(self._turns[each].release)
            yield

    def _company(self, channel: QuestionKind) -> int:
        """How often questions of the other channel began or ended; odd while there is one."""
        (other,) = set(QUESTION_KINDS) - {channel}
        return self._turns[other].change_count

    def _await_ready(self) -> WorkerProcess:
        """The process that can answer questions. Waits until there is one."""
        with self._readiness:
            self._readiness.wait_for(self._is_ready_or_closed, START_S_MAX)
            worker = self._ready_worker
        if self._is_closed:
            raise BackendCrashed("The backend is closed.", is_wanted=True)
        if worker is None or worker.process.has_ended:
            raise BackendCrashed("The backend has ended and is being started again.")
        return worker

    def _is_ready_or_closed(self) -> bool:
        worker = self._ready_worker
        return self._is_closed or (worker is not None and not worker.process.has_ended)

    def _present(self) -> WorkerProcess:
        """The present process. There is one after the first start."""
        assert self._worker is not None, "The constructor starts a process"
        return self._worker

    def _replace(self, worker: WorkerProcess) -> None:
        """Start a new process in place of one that ended. Called with the lifecycle lock held."""
        worker.end()
        try:
            self._start()
        except SetupError as error:
            raise BackendCrashed(f"The backend could not be started again: {error}") from error

    def _start(self) -> messages.Ready:
        """Start a process and wait until it is ready. Called with the lifecycle lock held."""
        worker = self._worker = WorkerProcess()
        self._unanswered.clear()
        self._time_limits.restart()
        # Checked after the lines above: `close` ends the process in `_worker`.
        if self._is_closed:
            worker.close()
            raise worker.crash()
        try:
            ready = worker.ask(worker.batches, self._hello, messages.Ready, START_S_MAX)
        except BaseException:
            worker.end()
            raise
        with self._readiness:
            self._ready_worker = worker
            self._readiness.notify_all()
        return ready
