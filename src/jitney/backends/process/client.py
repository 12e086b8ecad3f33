"""A backend in a process of its own: `ProcessBackend` speaks to `jitney.backends.process.worker`.

Batches are sent and received on the engine thread, which also calls `reset` and `check`; `encode`
and `prepare` are called on any, one at a time inside; `close` on any. A crash of native code ends
the other process: whoever notices gets BackendCrashed, and only `reset` starts a new one. No wait
is unbounded, and no process is left behind.
"""

import contextlib
import logging
import signal
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jitney.backends.process.messages import (
    Channel,
    Done,
    Encode,
    Encoded,
    Execute,
    Executed,
    Failure,
    Hello,
    Message,
    Plain,
    Prepare,
    Ready,
    Reset,
)
from jitney.backends.process.patience import Patience
from jitney.backends.process.worker_process import Child
from jitney.backends.shared.fifo_lock import FifoLock
from jitney.core import limits
from jitney.core.backend import Text, Traits, Vocabulary
from jitney.core.batch import Batch, Outcome
from jitney.core.params import Constraint
from jitney.errors import BackendCrashed, BackendFailed, EngineError, SetupError
from jitney.sandbox.frames import ChannelClosed, MalformedFrame

BESIDE_S_MAX = 60.0
"""Longest wait for a text to be tokenised or a constraint compiled, and as long for its turn."""

CHECK_S_MAX = 10.0
"""A process with nothing to do that gives no sign of life for so long is stuck."""

_FALLBACK_SETTING = "extra_kernels"
_log = logging.getLogger("jitney.backends")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """Which backend to build in the process, and how long to wait for it."""

    name: str
    settings: Mapping[str, Plain]
    start_s_max: float = 300.0
    batch_s_max: float = limits.BATCH_S_MAX
    """For any batch, unless batches of its size were measured to take nearly as long."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """A batch that has no answer yet."""

    token_count: int
    limit_s: float


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
        self._texts = FifoLock()
        self._constraints = FifoLock()
        self._child: Child | None = None
        self._patience = Patience(spec.batch_s_max)
        self._unanswered: deque[_Sent] = deque()
        # The process that may be asked things, and who waits for one.
        self._ready_child: Child | None = None
        self._readiness = threading.Condition()
        with self._lifecycle:
            ready = self._start()
        self._traits = ready.traits
        self._vocabulary = ready.vocabulary

    @property
    def traits(self) -> Traits:
        """As the first process told them; they hold for those after it."""
        return self._traits

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens of the model."""
        return self._vocabulary

    @property
    def pid(self) -> int:
        """The number of the present process."""
        return self._living().pid

    @property
    def fallback_reason(self) -> str | None:
        """Why it runs with plain kernels, if it had to fall back to them."""
        return self._fallback_reason

    def execute(self, batch: Batch) -> Outcome:
        """Carry out a batch over there. Raises BackendFailed or BackendCrashed."""
        self.send(batch)
        outcome = self.receive()
        assert outcome is not None, "without a limit it is waited for"
        return outcome

    def send(self, batch: Batch) -> None:
        """Hand a batch over, which waits there for those before it. Raises BackendCrashed."""
        child = self._living()
        limit_s = self._patience.limit_s(batch.token_count)
        try:
            with self._talking(child, limit_s):
                child.batches.send(Execute.of(batch), limit_s)
        except ChannelClosed as error:
            crash = self._crash(child)
            # It was gone before: nothing in this batch is to blame.
            crash.was_reached = False
            raise crash from error
        self._unanswered.append(_Sent(batch.token_count, limit_s))

    def receive(self, limit_s: float | None = None) -> Outcome | None:
        """The outcome of the oldest batch that was sent; None when it takes longer than this.

        The time that a batch may take counts from here: those before it have come back by then.
        """
        child, sent = self._living(), self._unanswered[0]
        greatest_s = sent.limit_s
        wait_s = greatest_s if limit_s is None else min(limit_s, greatest_s)
        try:
            with self._talking(child, greatest_s):
                try:
                    answer = child.batches.receive(wait_s)
                except TimeoutError:
                    if wait_s < greatest_s:
                        return None
                    raise
        except ChannelClosed as error:
            raise self._crash(child) from error
        self._unanswered.popleft()
        if isinstance(answer, Failure):
            raise answer.error()
        if not isinstance(answer, Executed):
            raise self._out_of_turn(child)
        self._patience.observe(sent.token_count, answer.outcome.seconds)
        return answer.outcome

    def reset(self) -> None:
        """Empty every slot and ticket, in a new process if this one is gone or refuses."""
        with self._lifecycle:
            child = self._living()
            try:
                while self._unanswered:
                    # Not wanted any more; what stands behind them is.
                    child.batches.receive(self._unanswered.popleft().limit_s)
                limit_s = min(limits.RESET_S_MAX, self._spec.batch_s_max)
                answer = self._ask(child, child.batches, Reset(), limit_s)
                is_empty = isinstance(answer, Done)
            except (ChannelClosed, EngineError, TimeoutError, MalformedFrame):
                is_empty = False
            if not is_empty:
                self._replace(child)

    def check(self) -> None:
        """Ask for a sign of life. Raises BackendCrashed; a process that is stuck is ended."""
        child = self._living()
        try:
            self._ask(child, child.batches, Execute.of(Batch(0, (), ())), CHECK_S_MAX)
        except ChannelClosed as error:
            raise self._crash(child) from error

    def encode(self, texts: Sequence[Text]) -> list[int]:
        """Tokens of texts, in one message; while there is no process, waits for the next one."""
        answer = self._ask_beside("texts", Encode(tuple(texts)))
        if not isinstance(answer, Encoded):
            raise self._out_of_turn(self._living())
        return list(answer.tokens)

    def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint over there, where it will be used. Raises InvalidRequest."""
        answer = self._ask_beside("constraints", Prepare(constraint))
        if not isinstance(answer, Done):
            raise self._out_of_turn(self._living())

    def close(self) -> None:
        """End the process; idempotent."""
        with self._readiness:
            self._is_closed = True
            self._readiness.notify_all()
        # Before the lock is waited for: this cuts short whoever holds it.
        self._living().end()
        with self._lifecycle:
            self._living().end()

    def _ask_beside(self, kind: Literal["texts", "constraints"], question: Message) -> Message:
        """Ask beside the batches; if the process is ended from outside, ask the next one.

        Another end is not tried again, nor one that comes over and over: a question that is itself
        what ends processes must not be asked of every next one. New processes are started by the
        engine alone, which sees that one is missing.
        """
        turn = self._texts if kind == "texts" else self._constraints
        for attempt in range(limits.STRIKES_MAX):
            child = self._await_ready()
            if not turn.acquire(BESIDE_S_MAX):
                raise BackendFailed(f"the backend is too busy for {kind}; try again later.")
            try:
                channel = child.texts if kind == "texts" else child.constraints
                return self._ask(child, channel, question, BESIDE_S_MAX)
            except ChannelClosed as error:
                crash = self._crash(child)
                if crash.signal != signal.SIGKILL or attempt == limits.STRIKES_MAX - 1:
                    raise crash from error
            finally:
                turn.release()
        raise AssertionError("the last attempt raises")

    def _await_ready(self) -> Child:
        """The process that may be asked things, once there is one."""
        with self._readiness:
            self._readiness.wait_for(self._is_ready_or_closed, self._spec.start_s_max)
            child = self._ready_child
        if self._is_closed:
            raise BackendCrashed("the backend is closed.", is_wanted=True)
        if child is None or child.has_ended:
            raise BackendCrashed("the backend is gone and is being started again.")
        return child

    def _is_ready_or_closed(self) -> bool:
        child = self._ready_child
        return self._is_closed or (child is not None and not child.has_ended)

    def _ask(self, child: Child, channel: Channel, question: Message, limit_s: float) -> Message:
        """One question and its answer, or the error that was the answer.

        Raises ChannelClosed when the process is gone; one that is stuck is ended here.
        """
        with self._talking(child, limit_s):
            channel.send(question, limit_s)
            answer = channel.receive(limit_s)
        if isinstance(answer, Failure):
            raise answer.error()
        return answer

    @contextlib.contextmanager
    def _talking(self, child: Child, limit_s: float) -> Iterator[None]:
        """Ends a process that does not answer in time, or that talks nonsense."""
        try:
            yield
        except TimeoutError as error:
            child.kill()
            raise BackendCrashed(
                f"the backend did not answer within {limit_s:.3g} seconds, and was ended."
            ) from error
        except MalformedFrame as error:
            child.kill()
            raise BackendCrashed(f"the backend process sent a bad frame: {error}") from error
        except ChannelClosed:
            raise
        except BaseException:
            # Interrupted in between: the answer would be taken for that of the next question.
            child.kill()
            raise

    def _living(self) -> Child:
        """The present process; there is one from the end of the first start on."""
        assert self._child is not None, "a backend without a process is never handed out"
        return self._child

    def _crash(self, child: Child) -> BackendCrashed:
        if self._is_closed:
            return BackendCrashed("the backend is closed.", is_wanted=True)
        return child.crash(can_fall_back=self._can_fall_back)

    def _out_of_turn(self, child: Child) -> BackendCrashed:
        child.kill()
        return BackendCrashed("the backend process gave an answer to another question.")

    @property
    def _can_fall_back(self) -> bool:
        return bool(self._spec.settings.get(_FALLBACK_SETTING, False))

    def _replace(self, child: Child) -> None:
        """A new process in place of one that is gone. Called with the lifecycle lock held."""
        child.end()
        self._fall_back(child)
        try:
            self._start()
        except SetupError as error:
            raise BackendCrashed(f"the backend could not be started again: {error}") from error

    def _start(self) -> Ready:
        """Start a process and wait until it is ready. Called with the lifecycle lock held."""
        try:
            return self._start_once()
        except BackendCrashed:
            if self._child is None or not self._fall_back(self._child):
                raise
            return self._start_once()

    def _start_once(self) -> Ready:
        child = Child()
        self._child = child
        self._unanswered.clear()
        self._patience.restart()
        # Looked at after the line above: `close` ends the child that it finds.
        if self._is_closed:
            child.end()
            raise BackendCrashed("the backend is closed.", is_wanted=True)
        hello = Hello(self._spec.name, self._spec.settings)
        try:
            answer = self._ask(child, child.batches, hello, self._spec.start_s_max)
        except ChannelClosed as error:
            raise self._crash(child) from error
        except BaseException:
            child.end()
            raise
        if not isinstance(answer, Ready):
            raise self._out_of_turn(child)
        with self._readiness:
            self._ready_child = child
            self._readiness.notify_all()
        return answer

    def _fall_back(self, child: Child) -> bool:
        """After an illegal instruction, do without the kernels that may hold it."""
        if child.signal != signal.SIGILL or not self._can_fall_back:
            return False
        self._fallback_reason = str(child.crash(can_fall_back=True))
        _log.warning("%s", self._fallback_reason)
        settings = {**self._spec.settings, _FALLBACK_SETTING: False}
        self._spec = replace(self._spec, settings=settings)
        return True
