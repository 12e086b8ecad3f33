"""How many calls are let in, and how many bytes of bodies are held: `CallPlaces`. Event loop.

The engine refuses requests that can neither run nor wait, and knows best when to try again. The
bounds here are for calls that have not reached it yet.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from jitney.engine.served_engine import ServedEngine
from jitney.errors import Draining, QueueFull
from jitney.server import limits
from jitney.server.admission.keys import Caller
from jitney.server.error_object import Refusal, retry_headers


class Place:
    """What one call takes: the bytes of its body and, when the body is complete, one place."""

    def __init__(self, admission: "CallPlaces", caller: Caller) -> None:
        self._admission = admission
        self._caller = caller
        self._is_counted = False
        self._held_bytes = 0
        self._spared_bytes = limits.BODY_BYTES_SPARED

    def hold(self, count: int) -> None:
        """Count so many more bytes of the body until the call ends. The first bytes are free.

        Raises Refusal when the bodies of all calls together are too large.
        """
        spared = min(count, self._spared_bytes)
        self._spared_bytes -= spared
        self._admission.hold(count - spared)
        self._held_bytes += count - spared

    def take(self) -> None:
        """The body is complete: count the call as served. Raises Draining and QueueFull."""
        assert not self._is_counted, "A place is taken once"
        self._admission.check(self._caller)
        self._is_counted = True
        self._admission.call_count += 1
        self._caller.call_count += 1

    def leave(self) -> None:
        """The call has ended."""
        self._admission.call_count -= self._is_counted
        self._caller.call_count -= self._is_counted
        self._admission.held_bytes -= self._held_bytes


class CallPlaces:
    """The calls that bring work, and the bytes of their bodies."""

    def __init__(self, engine: ServedEngine, body_limit: int) -> None:
        self._engine = engine
        self.bodies_bytes_max = max(limits.BODIES_BYTES_MIN, limits.BODIES_MAX * body_limit)
        """Bytes of bodies that may be held at once, over all calls."""
        settings = engine.settings
        self._call_max = (
            settings.max_num_queued_reqs + settings.max_num_seqs + limits.CALLS_UNSENT_MAX
        )
        self.call_count = 0
        """Calls that are served."""
        self.held_bytes = 0
        self.is_draining = False

    @contextmanager
    def place(self, caller: Caller) -> Iterator[Place]:
        """A place for a call of this caller. Raises Draining and QueueFull."""
        self.check(caller)
        place = Place(self, caller)
        try:
            yield place
        finally:
            place.leave()

    def check(self, caller: Caller) -> None:
        """Check that this caller may make another call. Raises Draining and QueueFull."""
        if self.is_draining:
            raise Draining("The server is shutting down.")
        if caller.call_max is not None and caller.call_count >= caller.call_max:
            said = (
                f"{caller.call_count} requests of this key are being served or wait, which is its "
                "share of what the server takes"
            )
        elif self.call_count >= self._call_max:
            said = (
                f"{self.call_count} requests are being served or wait, and the server takes no "
                "more (its limits are max_num_seqs and max_num_queued_reqs)"
            )
        else:
            return
        retry_s = self._retry_s()
        raise QueueFull(f"{said}; try again in {retry_s:.1f} s.", retry_s)

    def hold(self, count: int) -> None:
        """Count so many more bytes as held. Raises Refusal."""
        if self.held_bytes + count > self.bodies_bytes_max:
            raise Refusal(
                "too_many_bytes",
                "The server holds as many bytes of requests as it may; try again later.",
                headers={"connection": "close", **retry_headers(self._retry_s())},
            )
        self.held_bytes += count

    def _retry_s(self) -> float:
        rate = self._engine.stats().requests_per_second
        return 0.25 * self.call_count / rate if rate > 0 else 1.0
