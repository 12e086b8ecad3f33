"""The engine as its callers see it: hand in requests, watch, drain, close. Any thread may call.

One daemon thread runs the ticks (`jitney.engine.loop`); this object only talks to it through the
inbox. When it is forgotten without a close, or the program ends, the thread is stopped and the
backend closed.
"""

import logging
import os
import threading
import weakref
from concurrent.futures import Future
from enum import StrEnum

from jitney.core.backend import Backend
from jitney.core.request import Priority, Request, RequestId
from jitney.core.scheduler import Scheduler
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import Detail, Snapshot
from jitney.engine.answer import Answer
from jitney.engine.clock import Clock, SystemClock
from jitney.engine.handle import Handle
from jitney.engine.inbox import Inbox, Stop, Submit, TickCall
from jitney.engine.loop import Loop
from jitney.engine.mailbox import Mailbox
from jitney.engine.observe import Observers
from jitney.engine.stats import Stats, Totals
from jitney.engine.tick import Tick
from jitney.errors import EngineError, EngineStopped, QueueFull
from jitney.records import Observer

_log = logging.getLogger("jitney.engine")

ACCEPT_S_MAX = 60.0
"""A submission waits for the end of the tick that is running; a backend that is being started
again may make that long."""

DRAIN_S = 30.0
STOP_S = 10.0
"""How long a close waits for a tick that is under way; native code cannot be interrupted."""


class EngineState(StrEnum):
    """RUNNING -> DRAINING -> STOPPED, or straight to STOPPED when something broke."""

    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"


class Engine:
    """Runs requests on one backend, which it owns from here on."""

    def __init__(
        self,
        backend: Backend,
        settings: SchedulerSettings,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.backend = backend
        self.settings = settings
        self._clock = clock or SystemClock()
        self._observers = Observers()
        scheduler = Scheduler(settings, backend.traits, backend.vocabulary.eos_tokens)
        self._tick = Tick(scheduler, backend, self._clock, self._observers)
        # As many as may wait in the queue: more could not be accepted in one go anyway.
        self._inbox = Inbox(settings.max_num_queued_reqs + settings.max_num_seqs)
        self._loop = Loop(self._tick, self._inbox, backend, self._clock)
        self._thread = threading.Thread(target=self._loop.run, name="jitney-engine", daemon=True)
        self._closing = threading.Lock()
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _stop_thread, self._inbox, self._thread)

    @property
    def state(self) -> EngineState:
        """Whether requests are taken, only finished, or neither."""
        if self._tick.stopped is not None:
            return EngineState.STOPPED
        return EngineState.DRAINING if self._tick.drains else EngineState.RUNNING

    @property
    def failure(self) -> EngineError | None:
        """Why the engine stopped, once it has."""
        return self._tick.stopped

    @property
    def is_backend_ready(self) -> bool:
        """Whether the backend takes batches; false while it is lost and being started again."""
        return self._tick.is_backend_ready

    def start(self) -> None:
        """Begin to run ticks. Once."""
        self._thread.start()

    def check_process(self) -> None:
        """Raise in a process that was forked from ours: threads and locks did not come along."""
        if os.getpid() != self._pid:
            raise EngineStopped(
                "This engine was made in another process, and does not run in a fork of it; "
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
        """Hand a request in without waiting; a refusal comes through the handle.

        Without `streams` only its end is kept for the caller, which is cheaper. A stream that is
        bounded is cancelled when too much of it lies unread. Latencies count
        from `arrived_at` on the engine's clock, waits and time limits from now. Raises QueueFull
        when even the inbox is full, and EngineStopped.
        """
        self.check_process()
        mailbox = Mailbox(streams=streams, is_bounded=is_bounded)
        self._inbox.submit(Submit(request, mailbox, self._clock.now(), arrived_at))
        return Handle(request, mailbox, self, _as_it_is)

    def submit(self, request: Request, *, streams: bool = True) -> Handle[Answer]:
        """Hand a request in and wait until it is accepted. Raises its refusal."""
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
        """Ask that a request end; idempotent, and unknown ids are ignored.

        A handle gives its mailbox: an id that was refused because it lives is another's.
        """
        self._inbox.cancel(request_id, mailbox, TickCall(Tick.cancel, (request_id, mailbox)))

    def pause(self, request_id: RequestId, mailbox: Mailbox | None = None) -> None:
        """Ask that a request do nothing until it is resumed; unknown ids are ignored."""
        key = (request_id, mailbox, "pause")
        self._inbox.send_last(key, TickCall(Tick.pause, (request_id, mailbox)))

    def resume(self, request_id: RequestId, mailbox: Mailbox | None = None) -> None:
        """Ask that a paused request go on; unknown ids are ignored."""
        key = (request_id, mailbox, "pause")
        self._inbox.send_last(key, TickCall(Tick.resume, (request_id, mailbox)))

    def reprioritise(
        self, request_id: RequestId, priority: Priority, mailbox: Mailbox | None = None
    ) -> None:
        """Ask that a request be of another class; unknown ids are ignored."""
        key = (request_id, mailbox, "priority")
        self._inbox.send_last(key, TickCall(Tick.reprioritise, (request_id, priority, mailbox)))

    @property
    def still_s(self) -> float:
        """How long a forward pass has been due and none has ended; 0 while none is due."""
        return self._tick.statistics.still_s(self._clock.now())

    def observe(self, observer: Observer) -> None:
        """Tell this one of every tick and request; called on the engine thread."""
        self._observers.add(observer)

    def unobserve(self, observer: Observer) -> None:
        """Tell this one no more."""
        self._observers.remove(observer)

    @property
    def observer_failed_count(self) -> int:
        """How often an observer raised."""
        return self._observers.failed_count

    def stats(self) -> Stats:
        """Counters and averages since the start; never waits for a tick."""
        return self._tick.statistics.stats(self._clock.now())

    def totals(self) -> Totals:
        """What the statistics are made of, added up since the start; never waits for a tick."""
        return self._tick.statistics.totals()

    def snapshot(self) -> Snapshot:
        """Slots, memory and queue when they were last measured: before and after every batch."""
        return self._tick.statistics.snapshot

    def look(self, characters_max: int = 0) -> Future[Detail]:
        """Ask how everything stands, with so many of the last characters of each text.

        Answered between ticks, never by an engine that is stuck or has stopped: bound the wait.
        """
        answer: Future[Detail] = Future()
        self._inbox.send(TickCall(Tick.look, (answer, characters_max)))
        return answer

    def drain(self) -> None:
        """Take no new requests from here on; returns at once."""
        self._inbox.send(TickCall(Tick.drain))

    def release(self) -> None:
        """Wait for nobody any more: groups depart as they are, and no pause lasts."""
        self._inbox.send(TickCall(Tick.release))

    def depart(self) -> None:
        """Let those who wait now depart without waiting for others: nobody else will come."""
        self._inbox.send(TickCall(Tick.depart))

    def close(self, drain_s: float = DRAIN_S) -> None:
        """Finish what lives for at most `drain_s` seconds, cancel the rest, end. Idempotent."""
        drain_s = min(drain_s, threading.TIMEOUT_MAX)
        with self._closing:
            if not self._finalizer.alive:
                return
            if self._thread is threading.current_thread():
                # An observer may ask for the end, but cannot wait for itself.
                self._inbox.send(Stop(drains=drain_s > 0))
                return
            if self._thread.ident is None:
                # Never started: whoever handed something in is told from here.
                self._inbox.send(Stop(drains=False))
                self._loop.run()
            else:
                self._stop(drain_s)
            self._finalizer.detach()

    def _stop(self, drain_s: float) -> None:
        if drain_s > 0:
            self._inbox.send(Stop(drains=True))
            self._thread.join(drain_s)
        self._inbox.send(Stop(drains=False))
        self._thread.join(STOP_S)
        if not self._thread.is_alive():
            return
        _log.warning("a forward pass did not return within %g s; the engine is left behind", STOP_S)
        error = EngineStopped("The engine was closed while the backend was stuck in a batch.")
        self._tick.abandon(error)
        for command in self._inbox.close(error):
            if isinstance(command, Submit):
                command.mailbox.abandon(error)


def _as_it_is(answer: Answer) -> Answer:
    return answer


def _stop_thread(inbox: Inbox, thread: threading.Thread) -> None:
    """The last resort for an engine that nobody closed; runs at exit at the latest."""
    inbox.send(Stop(drains=False))
    if thread.ident is not None and thread is not threading.current_thread():
        thread.join(STOP_S)
