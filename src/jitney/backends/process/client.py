"""A backend in a process of its own: `ProcessBackend` speaks to `jitney.backends.process.worker`.

Batches are sent and received on the engine thread, which also calls `reset` and `check`; `encode`
and `prepare` are called on any thread, and wait for each other; `close` on any. A crash of native
code ends the other process: whoever uses it then gets BackendCrashed, and only `reset` starts a new
one. Every wait is bounded, and no process is left behind.
"""

import logging
import signal
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jitney.backends.process import messages
from jitney.backends.process.batch_time import BatchTimeLimits
from jitney.backends.process.worker_process import Fallback, MessageT, WorkerProcess
from jitney.backends.shared.fifo_lock import FifoLock
from jitney.core import limits
from jitney.core.backend import Text, Traits, Vocabulary
from jitney.core.batch import Batch, Outcome
from jitney.core.params import Constraint
from jitney.errors import BackendCrashed, BackendFailed, EngineError, SetupError

QUESTION_S_MAX = 60.0
"""Longest wait for a text to be tokenised or a constraint compiled, and as long for its turn."""

CHECK_S_MAX = 10.0
"""A process with nothing to do that gives no sign of life for so long is stuck."""

_log = logging.getLogger("jitney.backends")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """Which backend to build in the process, and how long to wait for it."""

    name: str
    settings: Mapping[str, messages.Plain]
    start_s_max: float = 300.0
    batch_s_max: float = limits.BATCH_S_MAX
    """For any batch, unless batches of its size were measured to take nearly as long."""
    fallback: Fallback | None = None


class ProcessBackend:
    """Implements `Backend` of `jitney.core.backend` across a process boundary, and
    `QueueingBackend`: the other process computes while this one does something else."""

    def __init__(self, spec: BackendSpec) -> None:
        self._spec = spec
        self._is_closed = False
        self._fallback_reason: str | None = None
        # Says which process is the present one, and is held while a new one starts.
        self._lifecycle = threading.Lock()
        # One question at a time on each channel, in the order in which they come.
        self._texts_turn = FifoLock()
        self._constraints_turn = FifoLock()
        self._worker: WorkerProcess | None = None
        self._time_limits = BatchTimeLimits(spec.batch_s_max)
        # How many tokens each batch has that was sent and not answered.
        self._unanswered: deque[int] = deque()
        # The process that may be asked things, and who waits for one.
        self._ready_worker: WorkerProcess | None = None
        self._readiness = threading.Condition()
        with self._lifecycle:
            ready = self._start()
        self._traits = ready.traits
        self._vocabulary = ready.vocabulary

    @property
    def traits(self) -> Traits:
        """As the first process gave them; they hold for those after it."""
        return self._traits

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens of the model."""
        return self._vocabulary

    @property
    def pid(self) -> int:
        """The number of the present process."""
        return self._present().process.pid

    @property
    def fallback_reason(self) -> str | None:
        """Why it runs with its fallback, if it had to."""
        return self._fallback_reason

    def execute(self, batch: Batch) -> Outcome:
        """Carry out a batch over there. Raises BackendFailed or BackendCrashed."""
        self.send(batch)
        outcome = self.receive()
        assert outcome is not None, "without a limit it is waited for"
        return outcome

    def send(self, batch: Batch) -> None:
        """Hand a batch over, which waits there for those before it. Raises BackendCrashed."""
        worker = self._present()
        limit_s = self._time_limits.limit_s(batch.token_count)
        # If the process was gone before, nothing in this batch is to blame.
        with worker.talking(limit_s, was_reached=False):
            worker.batches.send(messages.Execute.of(batch), limit_s)
        self._unanswered.append(batch.token_count)

    def receive(self, limit_s: float | None = None) -> Outcome | None:
        """The outcome of the oldest batch that was sent; None when it takes longer than this.

        The time that a batch may take counts from here: those before it have come back by then.
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
        """Empty every slot and ticket, in a new process if this one is gone or refuses."""
        with self._lifecycle:
            worker = self._present()
            try:
                while self._unanswered:
                    # Not wanted any more; what stands behind them is.
                    limit_s = self._time_limits.limit_s(self._unanswered.popleft())
                    with worker.talking(limit_s):
                        worker.batches.receive(limit_s)
                limit_s = min(limits.RESET_S_MAX, self._spec.batch_s_max)
                worker.ask(worker.batches, messages.Reset(), messages.Done, limit_s)
            except EngineError:
                self._replace(worker)

    def check(self) -> None:
        """Ask for a sign of life. Raises BackendCrashed; a process that is stuck is ended."""
        worker = self._present()
        nothing = messages.Execute.of(Batch(0, (), ()))
        worker.ask(worker.batches, nothing, messages.Executed, CHECK_S_MAX)

    def encode(self, texts: Sequence[Text]) -> list[int]:
        """Tokens of texts, in one message; while there is no process, waits for the next one."""
        question = messages.Encode(tuple(texts))
        answer = self._ask_in_turn("texts", self._texts_turn, question, messages.Encoded)
        return list(answer.tokens)

    def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint over there, where it will be used. Raises InvalidRequest."""
        question = messages.Prepare(constraint)
        self._ask_in_turn("constraints", self._constraints_turn, question, messages.Done)

    def close(self) -> None:
        """End the process; idempotent."""
        with self._readiness:
            self._is_closed = True
            self._readiness.notify_all()
        # Before the lock is waited for: this cuts short whoever holds it.
        self._present().close()
        with self._lifecycle:
            self._present().close()

    def _ask_in_turn(
        self,
        channel: Literal["texts", "constraints"],
        turn: FifoLock,
        question: messages.Message,
        expected: type[MessageT],
    ) -> MessageT:
        """Ask while batches run; if the process is ended from outside, ask the next one.

        Another end is not tried again, nor one that comes over and over: a question that is itself
        what ends processes must not be asked of every next one. New processes are started by the
        engine alone, which sees that one is missing.
        """
        for attempt in range(limits.STRIKES_MAX):
            worker = self._await_ready()
            if not turn.acquire(QUESTION_S_MAX):
                raise BackendFailed(f"the backend is too busy for {channel}; try again later.")
            try:
                where = worker.texts if channel == "texts" else worker.constraints
                return worker.ask(where, question, expected, QUESTION_S_MAX)
            except BackendCrashed as crash:
                if crash.signal != signal.SIGKILL or attempt == limits.STRIKES_MAX - 1:
                    raise
            finally:
                turn.release()
        raise AssertionError("the last attempt raises")

    def _await_ready(self) -> WorkerProcess:
        """The process that may be asked things, once there is one."""
        with self._readiness:
            self._readiness.wait_for(self._is_ready_or_closed, self._spec.start_s_max)
            worker = self._ready_worker
        if self._is_closed:
            raise BackendCrashed("the backend is closed.", is_wanted=True)
        if worker is None or worker.process.has_ended:
            raise BackendCrashed("the backend is gone and is being started again.")
        return worker

    def _is_ready_or_closed(self) -> bool:
        worker = self._ready_worker
        return self._is_closed or (worker is not None and not worker.process.has_ended)

    def _present(self) -> WorkerProcess:
        """The present process; there is one from the end of the first start on."""
        assert self._worker is not None, "a backend without a process is never handed out"
        return self._worker

    def _replace(self, worker: WorkerProcess) -> None:
        """A new process in place of one that is gone. Called with the lifecycle lock held."""
        worker.end()
        self._fall_back(worker)
        try:
            self._start()
        except SetupError as error:
            raise BackendCrashed(f"the backend could not be started again: {error}") from error

    def _start(self) -> messages.Ready:
        """Start a process and wait until it is ready. Called with the lifecycle lock held."""
        try:
            return self._start_once()
        except BackendCrashed:
            if self._worker is None or not self._fall_back(self._worker):
                raise
            return self._start_once()

    def _start_once(self) -> messages.Ready:
        fallback, settings = self._spec.fallback, self._spec.settings
        can_fall_back = fallback is not None and bool(settings.get(fallback.setting, False))
        worker = WorkerProcess(fallback, can_fall_back=can_fall_back)
        self._worker = worker
        self._unanswered.clear()
        self._time_limits.restart()
        # Looked at after the lines above: `close` ends the process that it finds.
        if self._is_closed:
            worker.close()
            raise worker.crash()
        hello = messages.Hello(self._spec.name, settings)
        try:
            limit_s = self._spec.start_s_max
            ready = worker.ask(worker.batches, hello, messages.Ready, limit_s)
        except BaseException:
            worker.end()
            raise
        with self._readiness:
            self._ready_worker = worker
            self._readiness.notify_all()
        return ready

    def _fall_back(self, worker: WorkerProcess) -> bool:
        """After an illegal instruction, do without what may hold it."""
        fallback = self._spec.fallback
        if fallback is None or not worker.can_fall_back or worker.process.signal != signal.SIGILL:
            return False
        self._fallback_reason = str(worker.crash())
        _log.warning("%s", self._fallback_reason)
        settings = {**self._spec.settings, fallback.setting: False}
        self._spec = replace(self._spec, settings=settings)
        return True
