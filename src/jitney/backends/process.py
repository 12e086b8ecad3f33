"""A backend in a process of its own: `ProcessBackend` speaks to `jitney.backends.worker`.

`execute` and `reset` are called on the engine thread; `encode` and `prepare` on any, one at a
time inside; `close` on any. A crash of native code ends the other process: whoever notices gets
BackendCrashed, and `reset` starts a new one. No wait is unbounded, and no process is left behind.
"""

import logging
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic, sleep

from jitney.backends.channel import Channel, ChannelClosed
from jitney.backends.child import Child
from jitney.backends.wire import (
    Done,
    Encode,
    Encoded,
    Execute,
    Executed,
    Failure,
    Hello,
    MalformedFrame,
    Message,
    Plain,
    Prepare,
    Ready,
    Reset,
    error_of,
)
from jitney.core import limits
from jitney.core.backend import Traits, Vocabulary
from jitney.core.batch import Batch, Outcome
from jitney.core.params import Constraint
from jitney.errors import BackendCrashed, BackendFailed, EngineError, SetupError

CONTROL_S_MAX = 60.0
"""Longest wait for a text to be tokenised or a constraint compiled, its turn not counted."""

CONTROL_PAUSE_S = 0.5
"""Before a new process is asked, where the last one was ended from outside."""

_FALLBACK_SETTING = "extra_kernels"
_log = logging.getLogger("jitney.backends")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """Which backend to build in the process, and how long to wait for it."""

    name: str
    settings: Mapping[str, Plain]
    start_s_max: float = 300.0
    batch_s_max: float = limits.BATCH_S_MAX


class ProcessBackend:
    """Implements `jitney.core.backend.Backend` across a process boundary."""

    def __init__(self, spec: BackendSpec) -> None:
        self._spec = spec
        self._is_closed = False
        self._fallback_reason: str | None = None
        # What the engine has not been told yet: its slots went with a process that ended.
        self._lost: BackendCrashed | None = None
        # Says which process is the present one, and is held while a new one starts.
        self._lifecycle = threading.Lock()
        # One question at a time on the control channel.
        self._control = threading.Lock()
        self._child: Child | None = None
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
        with self._lifecycle:
            child, lost = self._living(), self._lost
        if lost is not None:
            raise BackendCrashed(
                f"what the slots held is gone: {lost}", lost.signal, was_reached=False
            )
        limit_s = self._spec.batch_s_max + limits.BATCH_TOKEN_S_MAX * batch.token_count
        try:
            answer = self._ask(child, child.batches, Execute(batch), limit_s)
        except ChannelClosed as error:
            raise self._crash(child) from error
        if not isinstance(answer, Executed):
            raise self._out_of_turn(child)
        return answer.outcome

    def reset(self) -> None:
        """Empty every slot and ticket, in a new process if this one is gone or refuses."""
        with self._lifecycle:
            child = self._living()
            try:
                answer = self._ask(child, child.batches, Reset(), self._spec.batch_s_max)
                is_empty = isinstance(answer, Done)
            except (ChannelClosed, EngineError):
                is_empty = False
            if not is_empty:
                self._replace(child)
            self._lost = None

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Tokens of a text; if the process is gone, a new one is started first."""
        answer = self._ask_control(Encode(text, special))
        if not isinstance(answer, Encoded):
            raise self._out_of_turn(self._living())
        return list(answer.tokens)

    def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint over there, where it will be used. Raises InvalidRequest."""
        answer = self._ask_control(Prepare(constraint))
        if not isinstance(answer, Done):
            raise self._out_of_turn(self._living())

    def close(self) -> None:
        """End the process; idempotent."""
        self._is_closed = True
        # Before the lock is waited for: this cuts short whoever holds it.
        self._living().end()
        with self._lifecycle:
            self._living().end()

    def _ask_control(self, question: Message) -> Message:
        """Ask on the control channel; if the process was ended from outside, ask a new one.

        Another end is not tried again: a question that is itself what ends processes must not be
        asked of the next one.
        """
        if not self._control.acquire(timeout=self._spec.start_s_max + CONTROL_S_MAX):
            raise BackendFailed("the backend is too busy to tokenise; try again later.")
        until = monotonic() + limits.GIVE_UP_S
        try:
            while True:
                try:
                    return self._ask_present(question)
                except BackendCrashed as crash:
                    if crash.signal != signal.SIGKILL or monotonic() > until:
                        raise
                sleep(CONTROL_PAUSE_S)
        finally:
            self._control.release()

    def _ask_present(self, question: Message) -> Message:
        """Ask on the control channel, of a new process if there is none.

        A backend may die while nothing runs. Then no batch would ever find it dead, since every
        request is tokenised first; so the new process is started here, and the next batch is
        told that the slots were lost.
        """
        with self._lifecycle:
            child = self._living()
            if child.has_ended:
                self._lost = self._crash(child)
                self._replace(child)
                child = self._living()
        try:
            return self._ask(child, child.control, question, CONTROL_S_MAX)
        except ChannelClosed as error:
            raise self._crash(child) from error

    def _ask(self, child: Child, channel: Channel, question: Message, limit_s: float) -> Message:
        """One question and its answer, or the error that was the answer.

        Raises ChannelClosed when the process is gone; one that is stuck is ended here.
        """
        try:
            channel.send(question, limit_s)
            answer = channel.receive(limit_s)
        except TimeoutError as error:
            child.kill()
            raise BackendCrashed(
                f"the backend did not answer within {limit_s:g} seconds, and was ended."
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
        if isinstance(answer, Failure):
            raise error_of(answer)
        return answer

    def _living(self) -> Child:
        """The present process; there is one from the end of the first start on."""
        assert self._child is not None, "a backend without a process is never handed out"
        return self._child

    def _crash(self, child: Child) -> BackendCrashed:
        if self._is_closed:
            return BackendCrashed("the backend is closed.")
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
        # Looked at after the line above: `close` ends the child that it finds.
        if self._is_closed:
            child.end()
            raise BackendCrashed("the backend is closed.")
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
