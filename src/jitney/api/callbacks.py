"""Calls functions of the caller with the deltas and the end of a request.

This module has its own threads; the engine's thread never runs a callback. One thread at a time
calls for a request, so its calls come in order. Text that is made during a call is merged into the
next delta, so a slow callback delays only its own request.

While each call returns within `PATIENCE_S`, one thread makes all calls. If a call takes longer,
another thread goes on with the other requests. When `THREADS_MAX` callbacks block at once, the
others wait. The threads end when no request with callbacks is left. They are daemons: a program
that ends does not wait for them.
"""

import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jitney.api.outputs import RequestOutput
from jitney.engine.answer import Delta, Ending
from jitney.engine.clock import SystemClock
from jitney.engine.handle import Handle
from jitney.errors import InvalidRequest, JitneyError

_log = logging.getLogger("jitney.api.callbacks")

THREADS_MAX = 32
"""How many callbacks may block at once before the others have to wait."""

PATIENCE_S = 0.02
"""When a call takes longer, another thread makes the calls that wait."""

BLOCKED_S = 10.0
"""A call that takes longer is reported."""

CLOSE_S = 10.0
"""How long `close` waits for callbacks after the engine has ended."""

OnDelta = Callable[[Delta, Any], object]
"""Called with new text and the caller's `user_data` (Any: what the caller gave)."""

OnDone = Callable[[RequestOutput | None, JitneyError | None, Any], object]
"""Called once, with the output, the error and `user_data` (Any: as above).

Without an error there is an output. With an error, the output is what was made before, or None."""


def check_plain(name: str, given: object) -> None:
    """Refuse a callback that a thread cannot call. None means no callback."""
    if given is not None and not _is_plain(given):
        raise InvalidRequest(
            f"{name} takes a plain function, which is called from a thread, and got "
            f"{given!r:.80}; in an event loop, use `async for` over the handle.",
            name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """The functions to call for one request."""

    on_delta: OnDelta | None = None
    on_done: OnDone | None = None
    user_data: object = None

    def __post_init__(self) -> None:
        for name in ("on_delta", "on_done"):
            check_plain(name, getattr(self, name))
        if self.user_data is not None and not self.are_given:
            raise InvalidRequest(
                "user_data goes to on_delta and on_done; give one of them.", "user_data"
            )

    @property
    def are_given(self) -> bool:
        """Whether there is a function to call."""
        return self.on_delta is not None or self.on_done is not None

    @property
    def want_deltas(self) -> bool:
        """Whether deltas are wanted: not if there is only an `on_done`."""
        return self.on_delta is not None or self.on_done is None


@dataclass(slots=True, eq=False)
class _Served:
    """A request with callbacks whose last call is still to come."""

    handle: Handle[RequestOutput]
    callbacks: Callbacks
    called_at: float = 0.0
    is_reported: bool = False


class CallbackThreads:
    """Makes the callbacks of one `LLM`. Any thread may call.

    Never log or start a thread under the lock: the engine thread needs it.
    """

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._changed = threading.Condition()
        self._ready: deque[_Served] = deque()
        self._busy: dict[int, _Served] = {}
        """The requests in a call now, by thread; the oldest call first."""
        self._thread_count = 0
        self._live_count = 0
        self._was_full = False
        self._closing: set[int] = set()
        """Threads whose callback waits in `close`."""
        self.failed_count = 0
        """How many callbacks raised, or returned a coroutine."""
        self.blocked_count = 0
        """How many calls took longer than `BLOCKED_S`."""

    def serve(self, handle: Handle[RequestOutput], callbacks: Callbacks) -> None:
        """Make the callbacks of this request from now until its `on_done`."""
        with self._changed:
            self._live_count += 1
        self._start_spare()
        self._listen(_Served(handle, callbacks))

    def close(self) -> None:
        """Wait until all calls are made, for at most `CLOSE_S`. Log it if some are not."""
        with self._changed:
            # A callback that calls `close` cannot wait for itself, nor for another one that does.
            self._closing |= {threading.get_ident()} & self._busy.keys()
            self._changed.notify_all()
            has_ended = self._changed.wait_for(
                lambda: self._live_count <= len(self._closing), CLOSE_S
            )
            left_count = self._live_count - len(self._closing)
            self._closing.discard(threading.get_ident())
            blocking = ", ".join(each.handle.id for each in self._busy.values())
        if has_ended:
            return
        _log.warning(
            "Callbacks: %d requests had not had their last call %g s after the close; nobody waits "
            "for them any more; these callbacks did not return: %s",
            left_count,
            CLOSE_S,
            blocking,
        )

    def _listen(self, served: _Served) -> None:
        served.handle.listen(lambda: self._put(served))

    def _put(self, served: _Served) -> None:
        """Note that the request has something to fetch. The engine thread calls this: be quick."""
        with self._changed:
            self._ready.append(served)
            self._changed.notify()

    def _start_spare(self) -> None:
        """Start a thread if all are in a call and `THREADS_MAX` allows one more."""
        with self._changed:
            if self._thread_count > len(self._busy):
                return
            has_room = self._thread_count < THREADS_MAX
            is_news = not has_room and not self._was_full
            self._was_full |= not has_room
            self._thread_count += has_room
        if is_news:
            message = "%d callbacks block at once, which is the limit; all others wait for them"
            _log.warning(message, THREADS_MAX)
        if has_room:
            self._start()

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name="jitney-callbacks", daemon=True).start()
        except RuntimeError as error:
            # The running threads go on, and the next request tries again.
            with self._changed:
                self._thread_count -= 1
            _log.warning("The system has no further thread for callbacks: %s", error)

    def _run(self) -> None:
        while self._is_needed():
            self._report_blocked()
            served = self._take()
            if served is None:
                continue
            self._start_spare()
            is_over = self._call(served)
            with self._changed:
                del self._busy[threading.get_ident()]
                # A thread is free again: log it the next time that none is.
                self._was_full &= bool(self._ready)
                if is_over:
                    self._live_count -= 1
                    self._changed.notify_all()
            if not is_over:
                self._listen(served)

    def _is_needed(self) -> bool:
        with self._changed:
            if self._live_count == 0:
                self._thread_count -= 1
            return self._live_count > 0

    def _take(self) -> _Served | None:
        """The next request with something to fetch; None after a wait without one."""
        with self._changed:
            now = self._clock.now()
            # The thread with the newest call will soon take the next one, unless it blocks.
            last = next(reversed(self._busy.values()), None)
            patience_s = 0.0 if last is None else last.called_at + PATIENCE_S - now
            if self._ready and patience_s <= 0:
                served = self._ready.popleft()
                served.called_at, served.is_reported = now, False
                self._busy[threading.get_ident()] = served
                return served
            if self._live_count:
                self._changed.wait(patience_s if self._ready else self._report_in_s(now))
            return None

    def _call(self, served: _Served) -> bool:
        """Call with the delta or the end. True after the end."""
        callbacks, item = served.callbacks, served.handle.fetch()
        try:
            if isinstance(item, Ending):
                if callbacks.on_done is not None:
                    _check_ran(
                        callbacks.on_done(served.handle.output, item.error, callbacks.user_data)
                    )
            elif item is not None and callbacks.on_delta is not None:
                _check_ran(callbacks.on_delta(item, callbacks.user_data))
        except BaseException:
            # Catch even an exit: it is the callback's mistake, and other requests need this thread.
            self._report_failed(served)
        return isinstance(item, Ending)

    def _report_failed(self, served: _Served) -> None:
        """Call this in the `except` block."""
        with self._changed:
            self.failed_count += 1
            failed_count = self.failed_count
        # Log the first, the second, the fourth and so on, so that the log does not fill up.
        if failed_count & (failed_count - 1) == 0:
            message = "A callback of request %s failed (%d so far); the request goes on"
            _log.warning(message, served.handle.id, failed_count, exc_info=True)

    def _report_blocked(self) -> None:
        with self._changed:
            until = self._clock.now() - BLOCKED_S
            blocked = [
                each
                for each in self._busy.values()
                if each.called_at <= until and not each.is_reported
            ]
            for served in blocked:
                served.is_reported = True
            self.blocked_count += len(blocked)
        for served in blocked:
            message = "A callback of request %s has not returned for %g s; others go on"
            _log.warning(message, served.handle.id, BLOCKED_S)

    def _report_in_s(self, now: float) -> float | None:
        """Seconds until the oldest unreported call counts as blocked."""
        began = [each.called_at for each in self._busy.values() if not each.is_reported]
        return max(min(began) + BLOCKED_S - now, 0.0) if began else None


def _is_plain(given: object) -> bool:
    """Whether it can be called and is not a coroutine function."""
    asked = (given, getattr(given, "__call__", None))  # noqa: B004 - an object's may be async
    return callable(given) and not any(map(inspect.iscoroutinefunction, asked))


def _check_ran(returned: object) -> None:
    """Refuse a coroutine: the callback has not run, and nobody here can await it."""
    if inspect.iscoroutine(returned):
        returned.close()
        raise TypeError("The callback returned a coroutine, which is not awaited here")
