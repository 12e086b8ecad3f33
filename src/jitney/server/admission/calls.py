"""Calls: what the layers know of one, how many are let in, which are being answered. Event loop.

A call is an HTTP request or a line of a batch. Of a request, the outermost layer makes the `Call`
and puts it into the scope; each layer adds what it learns. `CallPlaces` bounds the calls that have
not reached the engine, which itself refuses requests that can neither run nor wait. `LiveCalls`
finds calls for their callers: a request reserves tokens of its key, and gives back what it did not
use when it has ended. `LiveCalls.take` is called on the engine thread for every record.

Tests: tests/unit/server/admission/test_calls.py, tests/e2e/server/test_deadlines.py, test_log.py,
test_steering.py and test_rates.py.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jitney import records
from jitney.core.request import Request, RequestId
from jitney.engine.answer import Answer, Usage
from jitney.engine.handle import Handle
from jitney.engine.served_engine import ServedEngine
from jitney.errors import DeadlineExceeded, Draining, QueueFull
from jitney.server import limits
from jitney.server.admission.keys import Caller
from jitney.server.error_object import Refusal, retry_headers

Handles = list[Handle[Answer]]


@dataclass(slots=True, eq=False)
class Call:
    """One call. Times are seconds on the service's clock."""

    id: str
    """Its name in the log: of a request, `X-Request-ID`."""
    arrived_at: float
    caller: Caller = field(init=False)
    """Missing before the key was checked, and on paths that need no key."""
    place: "Place" = field(init=False)
    """Its place among the HTTP requests that bring work."""
    due_at: float | None = None
    """When it must be done."""
    window_s: float | None = None
    """For a line of a batch: how long it may wait and run, instead of the server's limits."""
    input_bytes: int = 0
    """Of its body, and of the stored responses that it goes on from."""
    is_background: bool = False
    """Whether it runs behind all others."""
    is_large: bool = False
    """Whether its work in a worker thread may take long."""
    is_tiny: bool = False
    """Whether its body is so short that its work can be done together with that of others."""
    is_wanted: bool = True
    """Whether somebody still waits for the result. Worker threads read it."""
    refused: str | None = None
    """Why it was refused, for the metrics."""
    ignored: list[str] = field(default_factory=list)
    """Fields of the body that were ignored, for the caller."""
    user: str | None = None
    """The field `user` of the body, for the log."""
    reply_id: str | None = None
    usages: Callable[[], list[Usage]] = list
    """Returns the tokens counted so far, for the log."""

    @staticmethod
    def of(scope: Mapping[str, Any]) -> "Call":  # Any: what ASGI has in a scope
        """The call of this scope."""
        call: Call = scope["state"]["call"]
        return call

    @property
    def turn(self) -> tuple[str, bool]:
        """Whose turn its work in a worker thread waits for. Lines are a caller of their own."""
        name = self.caller.name
        return name if self.window_s is None else f"batches of {name}", self.is_large

    def still_wanted(self) -> bool:
        """Whether somebody still waits for the result. Any thread."""
        return self.is_wanted

    def left_s(self, now: float) -> float | None:
        """Seconds until it must be done. Raises DeadlineExceeded."""
        left_s = None if self.due_at is None else self.due_at - now
        if left_s is not None and left_s <= 0:
            raise deadline_passed()
        return left_s


def deadline_passed() -> DeadlineExceeded:
    """The error of a call whose time ends before its requests reach the engine."""
    return DeadlineExceeded(
        "The time limit passed before the request reached the engine; raise deadline_ms."
    )


class Place:
    """What one call takes: the bytes of its body and, when the body is complete, one place."""

    def __init__(self, places: "CallPlaces", caller: Caller) -> None:
        self._places = places
        self._caller = caller
        self.is_counted = False
        self.held_bytes = 0
        self._spared_bytes = limits.BODY_BYTES_SPARED

    def hold(self, count: int) -> None:
        """Count so many more bytes of the body until the call ends. The first bytes are free.

        Raises Refusal when the bodies of all calls together are too large.
        """
        places = self._places
        spared = min(count, self._spared_bytes)
        self._spared_bytes -= spared
        if places.held_bytes + count - spared > places.bodies_bytes_max:
            message = "The server holds as many bytes of requests as it may; try again later."
            headers = {"connection": "close", **retry_headers(places.retry_s())}
            raise Refusal("too_many_bytes", message, headers=headers)
        places.held_bytes += count - spared
        self.held_bytes += count - spared

    def take(self) -> None:
        """The body is complete: count the call as served. Raises Draining and QueueFull."""
        assert not self.is_counted, "A place is taken once"
        self._places.check(self._caller)
        self.is_counted = True
        self._places.call_count += 1
        self._caller.call_count += 1


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
            self.call_count -= place.is_counted
            caller.call_count -= place.is_counted
            self.held_bytes -= place.held_bytes

    def check(self, caller: Caller) -> None:
        """Check that this caller may make another call. Raises Draining and QueueFull."""
        if self.is_draining:
            raise Draining("The server is shutting down.")
        if caller.call_max is not None and caller.call_count >= caller.call_max:
            reason = (
                f"{caller.call_count} requests of this key are being served or wait, which is its "
                "share of what the server takes"
            )
        elif self.call_count >= self._call_max:
            reason = (
                f"{self.call_count} requests are being served or wait, and the server takes no "
                "more (its limits are max_num_seqs and max_num_queued_reqs)"
            )
        else:
            return
        retry_s = self.retry_s()
        raise QueueFull(f"{reason}; try again in {retry_s:.1f} s.", retry_s)

    def retry_s(self) -> float:
        """When to try again, by the requests that end in a second."""
        rate = self._engine.stats().requests_per_second
        return 0.25 * self.call_count / rate if rate > 0 else 1.0


@dataclass(slots=True)
class LiveRequest:
    """One request of a live call. The engine thread sets the fields that may be None."""

    caller: Caller
    prompt_count: int
    reserved_count: int
    """Tokens of the caller's key."""
    queue_position: int | None = None
    """How many others waited when it was accepted, without background ones."""
    waited_ms: float | None = None
    """The time until its first slot."""


class LiveCalls:
    """The calls that are being answered, by caller and by the id of the reply."""

    def __init__(self, model_len_max: int) -> None:
        self._model_len_max = model_len_max
        self._calls: dict[tuple[str, str], list[Handles]] = {}
        self._requests: dict[RequestId, LiveRequest] = {}
        self._waiting: set[RequestId] = set()

    def __len__(self) -> int:
        return len(self._calls)

    @contextmanager
    def registered(self, caller: str, reply_id: str, handles: Handles) -> Iterator[None]:
        """Within this context the call can be found. A caller may use one id twice."""
        calls = self._calls.setdefault((caller, reply_id), [])
        calls.append(handles)
        try:
            yield
        finally:
            calls.remove(handles)
            if not calls:
                del self._calls[caller, reply_id]

    def find(self, caller: str, reply_id: str) -> Handles:
        """The requests of the caller's calls with this id that have not ended.

        The id is that of the reply, the caller's own `request_id`, or the id of one request in
        `/slots`.
        """
        for name in (reply_id, f"chatcmpl-{reply_id}", f"cmpl-{reply_id}"):
            if (caller, name) in self._calls:
                return [each for each in self._live(caller, name) if not each.is_done]
        names = [name for owner, name in self._calls if owner == caller]
        live = (each for name in names for each in self._live(caller, name))
        return [each for each in live if each.id == reply_id and not each.is_done]

    def reserve(self, requests: Sequence[Request], caller: Caller) -> list[LiveRequest]:
        """Count the completions of one call, and reserve its tokens until they have ended.

        All of them or none. Raises Refusal and InvalidRequest.
        """
        reserved = {
            each.id: LiveRequest(caller, len(each.prompt), self._tokens_max(each))
            for each in requests
        }
        caller.reserve(
            sum(each.params.n for each in requests),
            sum(each.reserved_count for each in reserved.values()),
        )
        self._requests.update(reserved)
        return list(reserved.values())

    def release(self, request_id: RequestId, generated_count: int = 0) -> None:
        """The request has ended: give back unused tokens. A request that never ran used none."""
        self._waiting.discard(request_id)
        request = self._requests.pop(request_id, None)
        if request is not None:
            has_run = request.waited_ms is not None
            used_count = request.prompt_count + generated_count if has_run else 0
            request.caller.give_back_tokens(max(request.reserved_count - used_count, 0))

    def take(self, record: records.Record) -> None:
        """Engine thread: note how requests wait, and release one before its caller knows of its
        end."""
        match record:
            case records.RequestAccepted():
                if (request := self._requests.get(record.request_id)) is not None:
                    request.queue_position = len(self._waiting)
                if not record.is_background:
                    self._waiting.add(record.request_id)
            case records.RequestStarted():
                if (request := self._requests.get(record.request_id)) is not None:
                    request.waited_ms = record.waited_ms
                self._waiting.discard(record.request_id)
            case records.RequestDone() | records.RequestFailed():
                self.release(record.request_id, record.generated_tokens)
            case records.RequestRefused():
                self.release(record.request_id)

    def _live(self, caller: str, reply_id: str) -> Handles:
        return [each for handles in self._calls[caller, reply_id] for each in handles]

    def _tokens_max(self, request: Request) -> int:
        """The most tokens that a request may use: its prompt and its longest completions."""
        params, prompt_count = request.params, len(request.prompt)
        room = self._model_len_max - prompt_count
        completion_max = room if params.max_tokens is None else min(params.max_tokens, room)
        return prompt_count + params.n * completion_max
