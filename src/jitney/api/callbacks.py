"""Calls functions of the caller with the deltas and the end of a request.

This module has its own threads; the engine's thread never runs a callback. One thread at a time
calls for a request, so its calls come in order. Text that is made during a call is merged into the
next delta, so a slow callback delays only its own request.

There are as many threads as requests with callbacks, at most `THREADS_MAX`. When so many callbacks
block at once, the others wait. One more thread reports calls that do not return. The threads end
when no request with callbacks is left. They are daemons: a program that ends does not wait for
them.
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

BLOCKED_S = 10.0
"""A call that takes longer is reported. Also the time between two looks for such calls."""

CLOSE_S = 10.0
"""How long `close` waits for callbacks after the engine has ended."""

OnDelta = Callable[[Delta, Any], object]
"""Called with new text and the caller's `user_data` (Any: what the caller gave)."""

OnDone = Callable[[RequestOutput | None, JitneyError | None, Any], object]
"""Called once, with the output, the error and `user_data` (Any: as above).

Without an error there is an output. With an error, the output is what was made before, or None."""


def check_plain(name: str, function: object, arguments: tuple[str, ...]) -> None:
    """Refuse a callback that a thread cannot call with these arguments. None means no callback."""
    if function is not None and not _is_plain(function):
        raise InvalidRequest(
            f"{name} takes a plain function, which is called from a thread, and got "
            f"{function!r:.80}; in an event loop, use `async for` over the handle.",
            name,
        )
    if function is not None and not _takes(function, len(arguments)):
        raise InvalidRequest(
            f"{name} is called with {', '.join(arguments)}, and {function!r:.80} does not take "
            f"{len(arguments)} arguments.",
            name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """The functions to call for one request."""

    on_delta: OnDelta | None = None
    on_done: OnDone | None = None
    user_data: object = None

    def __post_init__(self) -> None:
        check_plain("on_delta", self.on_delta, ("delta", "user_data"))
        check_plain("on_done", self.on_done, ("output", "error", "user_data"))
        if self.user_data is not None and not self.has_any:
            raise InvalidRequest(
                "user_data goes to on_delta and on_done; give one of them.", "user_data"
            )

    @property
    def has_any(self) -> bool:
        """Whether there is a function to call."""
        return self.on_delta is not None or self.on_done is not None

    @property
    def want_deltas(self) -> bool:
        """Whether deltas are wanted: not if there is only an `on_done`."""
        return self.on_delta is not None or self.on_done is None


@dataclass(slots=True)
class _Subscription:
    """The callbacks of a request, until its last call."""

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
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        """A request has something to fetch, or the last request is over."""
        self._ended = threading.Condition(self._lock)
        """A request is over."""
        self._ready: deque[_Subscription] = deque()
        self._live_count = 0
        """Requests whose last call is still to come."""
        self._busy: dict[int, _Subscription] = {}
        """The requests in a call now, by thread."""
        self._closing: set[int] = set()
        """Threads whose callback is in `close`."""
        self._thread_count = 0
        self._is_watched = False
        self.failed_count = 0
        """How many callbacks raised, or returned a coroutine."""
        self.blocked_count = 0
        """How many calls took so long that it was logged."""

    def serve(self, handle: Handle[RequestOutput], callbacks: Callbacks) -> None:
        """Make the callbacks of this request from now until its `on_done`."""
        subscription = _Subscription(handle, callbacks)
        with self._lock:
            self._live_count += 1
            has_room = self._thread_count < min(self._live_count, THREADS_MAX)
            self._thread_count += has_room
            needs_watch, self._is_watched = not self._is_watched, True
        if has_room and not _start(self._run, "jitney-callbacks"):
            with self._lock:
                self._thread_count -= 1
        if needs_watch and not _start(self._watch, "jitney-callback-watch"):
            self._is_watched = False
        self._listen(subscription)

    def close(self) -> None:
        """Wait until all calls are made, for at most `CLOSE_S`. Log it if some are not."""
        with self._lock:
            # A callback that closes cannot wait for itself, nor for another one that does.
            self._closing |= {threading.get_ident()} & self._busy.keys()
            self._ended.notify_all()
            self._ended.wait_for(lambda: self._live_count <= len(self._closing), CLOSE_S)
            left_count = self._live_count - len(self._closing)
            self._closing.discard(threading.get_ident())
            blocking = ", ".join(each.handle.id for each in self._busy.values())
        if left_count > 0:
            _log.warning(
                "Callbacks: %d requests had not had their last call %g s after the close; nobody "
                "waits for them any more; these callbacks did not return: %s",
                left_count,
                CLOSE_S,
                blocking,
            )

    def _listen(self, subscription: _Subscription) -> None:
        subscription.handle.listen(lambda: self._put(subscription))

    def _put(self, subscription: _Subscription) -> None:
        """Note that the request has something to fetch. The engine thread calls this: be quick."""
        with self._lock:
            self._ready.append(subscription)
            self._arrived.notify()

    def _run(self) -> None:
        while (subscription := self._take()) is not None:
            is_over = self._call(subscription)
            with self._lock:
                del self._busy[threading.get_ident()]
                if is_over:
                    self._live_count -= 1
                    self._ended.notify_all()
                    if not self._live_count:
                        self._arrived.notify_all()
            if not is_over:
                self._listen(subscription)

    def _take(self) -> _Subscription | None:
        """The next request with something to fetch; None if no request is left."""
        with self._lock:
            self._arrived.wait_for(lambda: self._ready or not self._live_count)
            if not self._ready:
                self._thread_count -= 1
                return None
            subscription = self._ready.popleft()
            subscription.called_at, subscription.is_reported = self._clock.now(), False
            self._busy[threading.get_ident()] = subscription
            return subscription

    def _call(self, subscription: _Subscription) -> bool:
        """Call with the delta or the end. True after the end."""
        callbacks, item = subscription.callbacks, subscription.handle.fetch()
        try:
            if isinstance(item, Ending):
                if callbacks.on_done is not None:
                    output = subscription.handle.output
                    _check_ran(callbacks.on_done(output, item.error, callbacks.user_data))
            elif item is not None and callbacks.on_delta is not None:
                _check_ran(callbacks.on_delta(item, callbacks.user_data))
        except BaseException:
            # Catch even an exit: it is the callback's mistake, and other requests need this thread.
            self._report_failed(subscription)
        return isinstance(item, Ending)

    def _report_failed(self, subscription: _Subscription) -> None:
        """Call this in the `except` block."""
        with self._lock:
            self.failed_count += 1
            failed_count = self.failed_count
        # Log the first, the second, the fourth and so on, so that the log does not fill up.
        if failed_count.bit_count() == 1:
            message = "A callback of request %s failed (%d so far); the request goes on"
            _log.warning(message, subscription.handle.id, failed_count, exc_info=True)

    def _watch(self) -> None:
        """Report calls that do not return, until no request is left."""
        while True:
            with self._lock:
                self._ended.wait_for(lambda: not self._live_count, BLOCKED_S)
                if not self._live_count:
                    self._is_watched = False
                    return
                until = self._clock.now() - BLOCKED_S
                is_full = len(self._busy) >= THREADS_MAX
                calls = [each for each in self._busy.values() if not each.is_reported]
                blocked = [each for each in calls if each.called_at <= until]
                for subscription in blocked:
                    subscription.is_reported = True
                self.blocked_count += len(blocked)
            others = "others go on"
            if is_full:
                others = f"{THREADS_MAX} callbacks run at once, which is the limit; others wait"
            for subscription in blocked:
                message = "A callback of request %s has not returned for %g s; %s"
                _log.warning(message, subscription.handle.id, BLOCKED_S, others)


def _start(body: Callable[[], None], name: str) -> bool:
    """Start a thread; false if the system has no further one."""
    try:
        threading.Thread(target=body, name=name, daemon=True).start()
    except RuntimeError as error:
        # The running threads go on, and the next request tries again.
        _log.warning("The system has no further thread for callbacks: %s", error)
        return False
    return True


def _is_plain(function: object) -> bool:
    """Whether it can be called and is not a coroutine function."""
    call = getattr(function, "__call__", None)  # noqa: B004 - an object's may be async
    return callable(function) and not any(map(inspect.iscoroutinefunction, (function, call)))


def _takes(function: Any, count: int) -> bool:
    """Whether it can be called with so many arguments; true where Python cannot tell."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _check_ran(returned: object) -> None:
    """Refuse a coroutine: the callback has not run, and nobody here can await it."""
    if inspect.iscoroutine(returned):
        returned.close()
        raise TypeError("The callback returned a coroutine, which is not awaited here")
