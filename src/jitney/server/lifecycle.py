"""Serves an app on a socket until a signal asks it to stop: drain, then the end. Main thread.

    signal -> /ready answers 503, new work is refused, running work goes on
    nothing runs, or its time is over -> the engine ends, running requests get an error
    all callers have their responses, or a few seconds passed -> the socket is closed

A second signal ends the waiting, unless it is SIGHUP: a closing terminal sends two. Under nohup
SIGHUP is ignored. If the engine stops by itself, the server ends too, once its callers have their
errors: a server without an engine should be started again.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable

import uvloop
from fastapi import FastAPI

from jitney.errors import EngineStopped
from jitney.server.http.connections import allow_files, listen
from jitney.server.http.http_server import HttpServer
from jitney.server.limits import UNSENT_BYTES_MAX
from jitney.server.service import Service

_log = logging.getLogger("jitney.server")

LAST_RESPONSES_S_MAX = 5.0
"""Time for callers whose requests were cut short to get their errors."""
LAST_RESPONSES_HURRIED_S = 0.5
"""The same after a second signal."""

_POLL_S = 0.02
_ENGINE_POLL_S = 0.25

_GARBAGE_COUNT = 5000
"""New objects until the garbage collector looks for cycles. A tick makes thousands of objects
without cycles; with Python's 700, the search took a third of the time under load."""

_NICER = 5
"""Niceness of the HTTP thread: with 10, 16 streams were 4 % faster in one short run on two cores
(docs/project/log/http_cost.md). Later runs saw no difference between 5, 10 and 19."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Lifecycle:
    """One server from its start to its end. `stop` may be called from signal handlers."""

    def __init__(
        self, service: Service, app: FastAPI, unsent_bytes_max: int = UNSENT_BYTES_MAX
    ) -> None:
        self._unsent_bytes_max = unsent_bytes_max
        self._service = service
        self._app = app
        self._stop_requested = asyncio.Event()
        self._hurry_requested = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: HttpServer | None = None

    def run(self, listener: socket.socket, started: Callable[[], None]) -> None:
        """Serve until asked to stop. In the main thread it handles the signals of the process.

        `started` is called once clients can connect. Raises EngineStopped when the engine gave up.
        """
        if threading.current_thread() is threading.main_thread():
            _tune_collector()
            _lower_priority()
            allow_files()
        # A fifth cheaper than asyncio's own loop for each event of a stream.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve(listener, started))

    def stop(self) -> None:
        """Ask for the end; a second time, for the end at once. Any thread."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already, and its loop with it
                loop.call_soon_threadsafe(self._request_stop)

    async def _serve(self, listener: socket.socket, started: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            self._handle_signals(self._loop)
        listen(listener, self._unsent_bytes_max)
        server = self._server = HttpServer(
            self._app,
            listener,
            int(LAST_RESPONSES_S_MAX),
            self._service.response_listeners,
            started,
        )
        serving = asyncio.create_task(server.serve())
        stop_requested = asyncio.create_task(self._stop_requested.wait())
        failing = asyncio.create_task(self._wait_failure())
        ends = {serving, stop_requested, failing}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        failing.cancel()
        if self._stop_requested.is_set() and not serving.done():
            await self._wait_idle(self._service.settings.shutdown_timeout, hurried_s=0.0)
            if count := self._service.admission.call_count:
                _log.warning("%d requests were cut short by the shutdown", count)
        # Read before we end the engine ourselves.
        failure = self._service.engine.failure
        await self._end()
        await self._wait_idle(LAST_RESPONSES_S_MAX, LAST_RESPONSES_HURRIED_S)
        server.should_exit = True
        stop_requested.cancel()
        await serving
        if failure is not None:
            raise EngineStopped(str(failure))

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises if the system has no signals, or outside of the main thread."""
        for number in SIGNALS:
            loop.add_signal_handler(number, self._request_stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    def _hang_up(self) -> None:
        """The terminal is gone. Its shell and the system each send a signal; one counts."""
        if not self._stop_requested.is_set():
            self._request_stop()

    def _request_stop(self) -> None:
        if self._stop_requested.is_set():
            _log.warning("Asked to stop again: ending at once")
            self._hurry_requested.set()
            if self._server is not None:
                self._server.force_exit = True
            return
        _log.info(
            "Asked to stop: finishing what runs, for %g s at most; Ctrl-C or SIGTERM again ends it "
            "at once",
            self._service.settings.shutdown_timeout,
        )
        self._service.drain()
        self._stop_requested.set()

    async def _wait_failure(self) -> None:
        while self._service.engine.failure is None:  # noqa: ASYNC110, it stops on its own thread
            await asyncio.sleep(_ENGINE_POLL_S)
        _log.error("The engine has stopped, so the server ends")

    async def _end(self) -> None:
        """End the engine, which waits for the batch in flight unless a second signal comes."""
        ending = asyncio.create_task(self._service.stop())
        hurried = asyncio.create_task(self._hurry_requested.wait())
        await asyncio.wait({ending, hurried}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            await asyncio.to_thread(self._service.kill_backend)
        hurried.cancel()
        await ending

    async def _wait_idle(self, seconds: float, hurried_s: float) -> None:
        """Wait until no call is served, for so long at most; after a second signal, less."""
        clock = self._service.clock
        started_at = clock.now()
        while self._service.admission.call_count:
            limit_s = hurried_s if self._hurry_requested.is_set() else seconds
            if clock.now() - started_at >= limit_s:
                return
            await asyncio.sleep(_POLL_S)


def _tune_collector() -> None:
    """Look for cycles less often, and never among objects from before the first request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE_COUNT, *gc.get_threshold()[1:])


def _lower_priority() -> None:
    """Let the threads of the forward pass run first: all of them wait for the slowest one.

    On Linux each thread has its own niceness; this thread and those that it starts get it.
    """
    if sys.platform == "linux":
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(usual + _NICER, 19))
