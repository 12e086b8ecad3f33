"""The engine as its callers see it: submit requests, observe, drain, close. Any thread may call.

One daemon thread runs the ticks (`jitney.engine.loop`). This object talks to it only through the
inbox. If the engine is never closed, the thread is stopped and the backend closed when the object
is collected or the program ends.
"""

import logging
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from enum import StrEnum
from functools import partial
from typing import TypeVar

from jitney.core.backend import Backend, Fetched, StoringBackend
from jitney.core.request import Priority, Request, RequestId
from jitney.core.rules.pauses import PauseOutcome
from jitney.core.scheduler import Scheduler
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import Detail, Snapshot
from jitney.engine.answer import Answer
from jitney.engine.clock import Clock, SystemClock
from jitney.engine.fetcher import Fetcher
from jitney.engine.handle import Handle
from jitney.engine.loop import Inbox, Loop, Stop, Submit
from jitney.engine.mailbox import Mailbox
from jitney.engine.observe import Observers
from jitney.engine.request_factory import check_tokens
from jitney.engine.stats import Statistics, Stats
from jitney.engine.tick import Tick
from jitney.errors import EngineError, EngineStopped, QueueFull
from jitney.records import Observer

_log = logging.getLogger("jitney.engine")

ReplyT = TypeVar("ReplyT")

ACCEPT_S_MAX = 60.0
"""A submission waits for the end of the current tick. A restart of the backend makes that long."""

DRAIN_S = 30.0
STOP_S = 10.0
"""How long a close waits for the current tick. Native code cannot be interrupted."""


class EngineState(StrEnum):
    """RUNNING -> DRAINING -> STOPPED, or directly to STOPPED after a fault."""

    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"


class Engine:
    """Runs requests on one backend. It owns the backend and closes it."""

    def __init__(
        self, backend: Backend, settings: SchedulerSettings, *, clock: Clock | None = None
    ) -> None:
        self.backend = backend
        self.settings = settings
        self._clock = clock or SystemClock()
        self._observers = Observers()
        # Only the engine thread uses it.
        self._scheduler = Scheduler(settings, backend.traits, backend.vocabulary.eos_tokens)
        self._tick = Tick(self._scheduler, backend, self._clock, self._observers)
        # More requests could not be accepted at once.
        self._inbox = Inbox(settings.max_num_queued_reqs + settings.max_num_seqs)
        if isinstance(backend, StoringBackend) and backend.traits.can_store:
            _connect_disk(self._scheduler, backend, self._inbox)
        self._loop = Loop(self._tick, self._inbox, backend, self._clock)
        self._thread = threading.Thread(target=self._loop.run, name="jitney-engine", daemon=True)
        self._closing = threading.Lock()
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _stop_thread, self._inbox, self._thread)

    @property
    def state(self) -> EngineState:
        """Whether the engine takes requests, only finishes them, or has stopped."""
        if self._tick.stopped is not None:
            return EngineState.STOPPED
        return EngineState.DRAINING if self._tick.drains else EngineState.RUNNING

    @property
    def failure(self) -> EngineError | None:
        """Why the engine stopped; None while it runs."""
        return self._tick.stopped

    @property
    def is_backend_ready(self) -> bool:
        """Whether the backend takes batches; false while it is lost and restarted."""
        return self._tick.is_backend_ready

    def start(self) -> None:
        """Begin to run ticks. To be called once."""
        self._thread.start()

    def check_process(self) -> None:
        """Raise in a fork of our process: threads and locks do not exist there."""
        if os.getpid() != self._pid:
            raise EngineStopped(
                "This engine was made in another process and does not run in a fork of it; "
                "make an LLM in this process."
            )

    def send(
        self,
        request: Request,
        *,
        streams: bool = True,
        is_bounded: bool = False,
        arrived_at: float | None = None,
    ) -> Handle[Answer]:
        """Submit a request without waiting. A refusal comes through the handle.

        Without `streams` only the ending is kept for the caller, which is cheaper. A bounded stream
        is cancelled when too much of it is unread. Latencies count from `arrived_at` on the
        engine's clock, waits from now, and time limits from the acceptance. Raises QueueFull if the
        inbox is full, EngineStopped, and InvalidRequest where resumed tokens are none: they come
        from a disk or over a wire, and the engine's thread does not look.
        """
        self.check_process()
        for tokens in request.resumed:
            check_tokens(self.backend.vocabulary, "resumed", tokens or ())
        mailbox = Mailbox(streams=streams, is_bounded=is_bounded)
        self._inbox.submit(Submit(request, mailbox, self._clock.now(), arrived_at))
        return Handle(request, mailbox, self, lambda answer: answer)

    def submit(self, request: Request, *, streams: bool = True) -> Handle[Answer]:
        """Submit a request and wait until it is accepted. Raises its refusal."""
        handle = self.send(request, streams=streams)
        try:
            handle.wait_accepted(ACCEPT_S_MAX)
        except TimeoutError:
            handle.cancel()
            raise QueueFull(
                f"The engine did not look at the request within {ACCEPT_S_MAX:g} s; "
                "try again later.",
                ACCEPT_S_MAX,
            ) from None
        return handle

    async def submit_async(self, request: Request, *, streams: bool = True) -> Handle[Answer]:
        """`submit` for a task of an event loop; cancelling the task cancels the request."""
        handle = self.send(request, streams=streams)
        try:
            await handle.wait_accepted_async()
        except BaseException:
            handle.cancel()
            raise
        return handle

    def cancel(self, request_id: RequestId, mailbox: Mailbox | None = None) -> None:
        """Cancel a request. Idempotent; unknown ids are ignored.

        A handle passes its mailbox, because another request may have the same id by now.
        """
        self._inbox.cancel(request_id, mailbox, partial(self._tick.cancel, request_id, mailbox))

    def pause(self, request_id: RequestId, mailbox: Mailbox | None = None) -> Future[PauseOutcome]:
        """Pause a request until it is resumed. The outcome comes between ticks: as for `look`,
        bound the wait."""
        answer: Future[PauseOutcome] = Future()
        self._inbox.send_last(
            (request_id, mailbox, "pause"),
            partial(_fulfil, answer, partial(self._tick.pause, request_id, mailbox)),
            dropped=partial(_fulfil, answer, lambda: PauseOutcome.REPLACED),
        )
        return answer

    def resume(self, request_id: RequestId, mailbox: Mailbox | None = None) -> None:
        """Let a paused request go on. Unknown ids are ignored."""
        key = (request_id, mailbox, "pause")
        self._inbox.send_last(key, partial(self._tick.resume, request_id, mailbox))

    def reprioritise(
        self, request_id: RequestId, priority: Priority, mailbox: Mailbox | None = None
    ) -> None:
        """Change the class of a request. Unknown ids are ignored."""
        key = (request_id, mailbox, "priority")
        self._inbox.send_last(key, partial(self._tick.reprioritise, request_id, priority, mailbox))

    @property
    def stalled_s(self) -> float:
        """How long no forward pass has ended though one is due; 0 while none is due."""
        return self._tick.statistics.stalled_s(self._clock.now())

    def observe(self, observer: Observer) -> None:
        """Give this observer every record. It is called on the engine thread."""
        self._observers.add(observer)

    def unobserve(self, observer: Observer) -> None:
        """Give this observer no more records."""
        self._observers.remove(observer)

    @property
    def observer_failed_count(self) -> int:
        """How often an observer raised."""
        return self._observers.failed_count

    def stats(self) -> Stats:
        """Counters and averages since the start. Never waits for a tick."""
        return self._tick.statistics.stats(self._clock.now())

    def totals(self) -> Statistics:
        """The sums behind the statistics, since the start. Never waits for a tick."""
        return self._tick.statistics.copied()

    def snapshot(self) -> Snapshot:
        """Slots, memory and queue at the last measurement, before or after a batch."""
        return self._tick.statistics.snapshot

    def look(self, characters_max: int = 0) -> Future[Detail]:
        """Ask for the detail, with this many last characters of each text.

        The answer comes between ticks. A stuck or stopped engine never answers: bound the wait.
        """
        return self._ask(partial(self._tick.look, characters_max))

    def replica_views(self) -> None:
        """This is one engine."""
        return

    def heads(self, strides: int) -> Future[frozenset[int]]:
        """Ask for the keys of the prefixes in memory (`Memory.heads`). As for `look`, bound the
        wait."""
        return self._ask(partial(self._scheduler.heads, strides))

    def drain(self) -> None:
        """Take no new requests from now on. Returns at once."""
        self._inbox.send(self._tick.drain)

    def end_waits(self) -> None:
        """From now on groups start without waiting to be full, and all pauses end."""
        self._inbox.send(self._tick.end_waits)

    def stop_gathering(self) -> None:
        """Let waiting requests start without waiting for others: no more will come."""
        self._inbox.send(self._scheduler.stop_gathering)

    def close(self, drain_s: float = DRAIN_S) -> None:
        """Finish requests for at most `drain_s` seconds, cancel the rest, stop. Idempotent."""
        drain_s = min(drain_s, threading.TIMEOUT_MAX)
        with self._closing:
            if not self._finalizer.alive:
                return
            if self._thread is threading.current_thread():
                # An observer may close the engine, but cannot wait for its own thread.
                self._inbox.send(Stop(drains=drain_s > 0))
                return
            if self._thread.ident is None:
                # Never started: this thread ends the submitted requests.
                self._inbox.send(Stop(drains=False))
                self._loop.run()
            else:
                self._stop(drain_s)
            self._finalizer.detach()

    def _ask(self, question: Callable[[], ReplyT]) -> Future[ReplyT]:
        """Let the engine thread call `question` between ticks."""
        answer: Future[ReplyT] = Future()
        self._inbox.send(partial(_fulfil, answer, question))
        return answer

    def _stop(self, drain_s: float) -> None:
        if drain_s > 0:
            self._inbox.send(Stop(drains=True))
            self._thread.join(drain_s)
        self._inbox.send(Stop(drains=False))
        self._thread.join(STOP_S)
        if not self._thread.is_alive():
            return
        _log.warning("A forward pass did not return within %g s; the engine is left behind", STOP_S)
        error = EngineStopped("The engine was closed while the backend was stuck in a batch.")
        self._tick.abandon(error)
        for command in self._inbox.close(error):
            if isinstance(command, Submit):
                command.mailbox.abandon(error)


def _fulfil(answer: Future[ReplyT], question: Callable[[], ReplyT]) -> None:
    """Ask, and answer, if anybody still waits."""
    if answer.set_running_or_notify_cancel():
        answer.set_result(question())


def _connect_disk(scheduler: Scheduler, backend: StoringBackend, inbox: Inbox) -> None:
    """The scheduler's fetches go to the disk, and answers to the engine thread. They do not hold
    the engine, which would never be collected then."""

    def answer(found: Fetched) -> None:
        inbox.send(partial(scheduler.stored.take, found))

    scheduler.stored.ask = Fetcher(backend, answer).ask


def _stop_thread(inbox: Inbox, thread: threading.Thread) -> None:
    """Stop an engine that nobody closed. Runs at the latest when the program ends."""
    inbox.send(Stop(drains=False))
    if thread.ident is not None and thread is not threading.current_thread():
        thread.join(STOP_S)
