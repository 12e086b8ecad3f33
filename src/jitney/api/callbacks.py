"""Calls functions of the caller with the deltas and the end of a request.

The threads for this are never the engine's. A request has one of them at a time, so its calls
come in order, and what is made during a call is merged into the next delta: a slow callback costs
nothing but its own text.

One thread does all of it while each call returns within `PATIENCE_S`. Where one does not, another
thread goes on, so a callback that blocks holds up its own request and nobody else's, until
`THREADS_MAX` of them block at once: then the others wait. The threads end when no request with
callbacks is left. They are daemons: a program does not wait for them at its end.
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
"""Callbacks that may block at once before others have to wait for them."""

PATIENCE_S = 0.02
"""Whoever waits for a call that takes longer is served by another thread."""

BLOCKED_S = 10.0
"""A call that takes longer is reported."""

CLOSE_S = 10.0
"""How long a close waits for callbacks, once the engine has ended."""

OnDelta = Callable[[Delta, Any], object]
"""Called with new text and the caller's `user_data` (Any: whatever the caller gave)."""

OnDone = Callable[[RequestOutput | None, JitneyError | None, Any], object]
"""Called once, with what was made, what went wrong, and `user_data` (Any: as above).

Without an error the output is there. With one, it holds what was made until then, or is None."""


def check_plain(name: str, given: object) -> None:
    """Refuse what a thread cannot call; None is nothing to call."""
    if given is not None and not _is_plain(given):
        raise InvalidRequest(
            f"{name} takes a plain function, which is called from a thread, and got "
            f"{given!r:.80}; in an event loop, use `async for` over the handle.",
            name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """What a caller wants to be called for one request."""

    on_delta: OnDelta | None = None
    on_done: OnDone | None = None
    user_data: object = None

    def __post_init__(self) -> None:
        for name in ("on_delta", "on_done"):
            check_plain(name, getattr(self, name))
        if self.user_data is not None and not self.are_given:
            raise InvalidRequest(
                "user_data is handed to on_delta and on_done; give one of them.", "user_data"
            )

    @property
    def are_given(self) -> bool:
        """Whether there is anything to call."""
        return self.on_delta is not None or self.on_done is not None

    @property
    def want_deltas(self) -> bool:
        """Whether deltas are wanted: not if there is only an `on_done`."""
        return self.on_delta is not None or self.on_done is None


@dataclass(slots=True, eq=False)
class _Served:
    """A request with callbacks that has not had its last call."""

    handle: Handle[RequestOutput]
    callbacks: Callbacks
    called_at: float = 0.0
    is_reported: bool = False


class CallbackThreads:
    """Serves the callbacks of one `LLM`. Any thread may call.

    Nothing is logged and no thread is started under the lock: the engine thread needs it.
    """

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._changed = threading.Condition()
        self._ready: deque[_Served] = deque()
        self._busy: dict[int, _Served] = {}
        """Being called now, by thread; whose call began first stands first."""
        self._thread_count = 0
        self._live_count = 0
        self._was_full = False
        self._closing: set[int] = set()
        """Threads whose callback waits in a close."""
        self.failed_count = 0
        """How often a callback raised, or returned a coroutine."""
        self.blocked_count = 0
        """How often a call took longer than `BLOCKED_S`."""

    def serve(self, handle: Handle[RequestOutput], callbacks: Callbacks) -> None:
        """Call for this request from here on, until `on_done` was called."""
        with self._changed:
            self._live_count += 1
        self._start_spare()
        self._listen(_Served(handle, callbacks))

    def close(self) -> None:
        """Wait until all calls were made, for at most `CLOSE_S`; log it if some were not."""
        with self._changed:
            # A callback that closes cannot wait for itself, nor for another one that does.
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
            "%d requests had not had their last call %g s after the close, and are left to "
            "themselves; these callbacks did not return: %s",
            left_count,
            CLOSE_S,
            blocking,
        )

    def _listen(self, served: _Served) -> None:
        served.handle.listen(lambda: self._put(served))

    def _put(self, served: _Served) -> None:
        """Note that there is something to fetch. Called mostly by the engine thread: quick."""
        with self._changed:
            self._ready.append(served)
            self._changed.notify()

    def _start_spare(self) -> None:
        """Start a thread if all are in a call and there may be one more."""
        with self._changed:
            if self._thread_count > len(self._busy):
                return
            has_room = self._thread_count < THREADS_MAX
            is_news = not has_room and not self._was_full
            self._was_full |= not has_room
            self._thread_count += has_room
        if is_news:
            said = "%d callbacks block at once, as many as may; all others wait for them"
            _log.warning(said, THREADS_MAX)
        if has_room:
            self._start()

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name="jitney-callbacks", daemon=True).start()
        except RuntimeError as error:
            # Those that run go on, and the next request tries again.
            with self._changed:
                self._thread_count -= 1
            _log.warning("the system has no further thread for callbacks: %s", error)

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
                # A thread is free again: the next time that none is will be said.
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
        """The next request with something to fetch; None after a while without one."""
        with self._changed:
            now = self._clock.now()
            # The one that began last will soon be back for more, unless it blocks.
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
        """Call with what there is; whether that was the end."""
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
            # Whatever it is, even an exit, it is the caller's: other requests need this thread.
            self._report_failed(served)
        return isinstance(item, Ending)

    def _report_failed(self, served: _Served) -> None:
        """Called where the exception is being handled."""
        with self._changed:
            self.failed_count += 1
            failed_count = self.failed_count
        # The first, the second, the fourth and so on, so that no log fills up.
        if failed_count & (failed_count - 1) == 0:
            said = "a callback of request %s failed (%d so far); the request goes on"
            _log.warning(said, served.handle.id, failed_count, exc_info=True)

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
            said = "a callback of request %s has not returned for %g s; others go on"
            _log.warning(said, served.handle.id, BLOCKED_S)

    def _report_in_s(self, now: float) -> float | None:
        """How long until a call that does not return is to be reported."""
        began = [each.called_at for each in self._busy.values() if not each.is_reported]
        return max(min(began) + BLOCKED_S - now, 0.0) if began else None


def _is_plain(given: object) -> bool:
    """Whether it can be called and is not known beforehand to return a coroutine."""
    asked = (given, getattr(given, "__call__", None))  # noqa: B004 - an object's may be async
    return callable(given) and not any(map(inspect.iscoroutinefunction, asked))


def _check_ran(returned: object) -> None:
    """A coroutine is a callback that has not run, and that nobody here can await."""
    if inspect.iscoroutine(returned):
        returned.close()
        raise TypeError("the callback returned a coroutine, which is not awaited here")
