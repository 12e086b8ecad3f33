"""Runs requests on replicas, one attempt after the other, until each has ended: `Attempts`.

    run -> _attempt -> _run_order     one order to one replica, and its last message
                    -> _move          the replica is lost: another one goes on
                    -> _finish        the answer

The event loop of the fleet. Each request has one task, which calls `run`. What its replica sends
meanwhile comes through `take`.

Tests: tests/unit/cluster/test_fleet_attempts.py and test_suspects.py.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import Any  # Any: the results of two futures

from jitney.engine.clock import Clock
from jitney.engine.collector import error_of
from jitney.errors import BackendFailed, DeadlineExceeded, Draining, EngineStopped, QueueFull
from jitney_cluster import replica_messages as messages
from jitney_cluster.cluster_request import PLACE_S_MAX, ClusterRequest, Verdict
from jitney_cluster.dispatch import Dispatch, ReplicaLost, forget_error
from jitney_cluster.overview import FleetOverview
from jitney_cluster.request_events import RequestEvents

_log = logging.getLogger("jitney.cluster")

LEAVING_S = 0.1
"""Between two tries where replicas leave, or new ones are not there yet."""

PAUSE_S_MAX = 2.0
"""The longest of these pauses."""

TIME_OVER = "The request's time limit passed before it ended; raise the limit."

RESULT_GRACE_S = 2.0
"""The call of an order and the last message about it come on two connections. If the call returns
first, the message may be this late; after that the replica counts as lost."""


class SuspectLock:
    """Lets the suspects of an ingress run one at a time.

    A suspect lost several replicas and got no token in between, so it may be what kills them. It
    holds the lock until its attempt ends, or until its first token: that shows that it is harmless.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._holder: ClusterRequest | None = None

    async def acquire(self, live: ClusterRequest, left_s: float | None) -> None:
        """Wait for the lock. Raises QueueFull after PLACE_S_MAX, or DeadlineExceeded."""
        limit_s = PLACE_S_MAX if left_s is None else min(left_s, PLACE_S_MAX)
        try:
            await asyncio.wait_for(self._lock.acquire(), limit_s)
        except TimeoutError:
            if limit_s < PLACE_S_MAX:
                raise DeadlineExceeded(TIME_OVER) from None
            raise QueueFull(
                "The request lost its replicas, and others that lost theirs are tried before it; "
                "ask again later.",
                PLACE_S_MAX,
            ) from None
        self._holder = live

    def release(self, live: ClusterRequest) -> None:
        """Give the lock back, if this one holds it."""
        if self._holder is live:
            self._holder = None
            self._lock.release()


@dataclass(eq=False)
class Attempts:
    """The attempts of all requests of an ingress. `address` is set before the first."""

    dispatch: Dispatch
    overview: FleetOverview
    events: RequestEvents
    clock: Clock
    model_key: str
    replica_count: int
    address: messages.Address | None = None
    suspects: SuspectLock = field(default_factory=SuspectLock)
    _order_count: int = 0
    _begun: list[tuple[str, int]] = field(default_factory=list)
    """Orders with a first token, of which the router does not know yet."""

    async def run(self, live: ClusterRequest) -> None:
        """Run a request to its answer. Raises its error."""
        # Its replica may be lost between its last token and the message that it has ended.
        while not live.is_complete:
            if live.is_suspect:
                await self.suspects.acquire(live, live.left_s(self.clock.now()))
            try:
                if await self._attempt(live):
                    break
            finally:
                self.suspects.release(live)
        self._finish(live)

    def take(self, live: ClusterRequest, replica: str, message: messages.OrderMessage) -> None:
        """Its replica has sent something about it."""
        if live.attempt != message.attempt or live.end.done():
            return  # of an attempt that was given up
        live.replica = replica
        match message:
            case messages.OrderAccepted():
                self.events.accept(live)
            case messages.OrderStarted():
                self.events.start(live, message)
            case messages.OrderCatchingUp():
                live.is_catching_up = message.is_catching_up
            case messages.OrderDelta():
                self._take_delta(live, message)
            case messages.OrderEnded():
                live.end.set_result(message)

    async def _attempt(self, live: ClusterRequest) -> bool:
        """Run the request on one replica; whether it was answered there. Raises its error."""
        ended = await self._run_order(live)
        error = None if ended is None or ended.failure is None else ended.failure.error()
        is_placed = live.unplaced_at is None
        if ended is None or (is_placed and isinstance(error, EngineStopped)):
            await self._move(live)
        elif isinstance(error, QueueFull) and not is_placed:
            live.find_full(error)
        elif isinstance(error, Draining | EngineStopped):
            # It is leaving, or has another model. That is not the request's fault.
            live.full[live.replica or ""] = QueueFull(str(error), 1.0)
            await asyncio.sleep(LEAVING_S)
            live.check_place(self.clock.now())
        else:
            live.take_results(ended)
            if error is not None:
                raise error
            return True
        return False

    async def _run_order(self, live: ClusterRequest) -> messages.OrderEnded | None:
        """Send the request to a replica, and return its last message; None if it is lost."""
        left_s = live.left_s(self.clock.now())
        live.end = asyncio.get_running_loop().create_future()
        call = asyncio.ensure_future(self.dispatch.run(self._next_order(live)))
        try:
            async with asyncio.timeout(left_s):
                await self._wait_any(live, call)
                return await self._last_message(live, call)
        except DeadlineExceeded:
            raise  # with a reason of its own
        except TimeoutError:
            raise DeadlineExceeded(TIME_OVER) from None
        finally:
            if not call.done():
                call.cancel()
            call.add_done_callback(forget_error)

    def _next_order(self, live: ClusterRequest) -> messages.Order:
        assert self.address is not None, "the fleet is open"
        now = self.clock.now()
        self._order_count += 1
        request = live.next_request(self._order_count, self.replica_count, now)
        begun, self._begun = tuple(self._begun), []
        return messages.Order(
            address=self.address,
            number=live.number,
            attempt=live.attempt,
            waited_s=now - live.arrived_at,
            model_key=self.model_key,
            request_id=request.id,
            request=messages.encode_request(request),
            head=live.head,
            # Ray may miss a replica later than we do.
            avoided=(*live.full, *self.overview.lost()),
            begun=begun,
        )

    async def _wait_any(self, live: ClusterRequest, call: "asyncio.Future[None]") -> None:
        """Wait for the end of the call or of the attempt. Raises if no replica takes it in time."""
        while not (call.done() or live.end.done()):
            limit_s = None
            if live.replica is None:
                wait_s = live.wait_left_s(self.clock.now())
                limit_s = PLACE_S_MAX if wait_s is None else min(wait_s, PLACE_S_MAX)
            ends: set[asyncio.Future[Any]] = {call, live.end}
            done, _ = await asyncio.wait(ends, timeout=limit_s, return_when="FIRST_COMPLETED")
            if live.replica is None and not done:
                live.check_place(self.clock.now())

    async def _last_message(
        self, live: ClusterRequest, call: "asyncio.Future[None]"
    ) -> messages.OrderEnded | None:
        """The last message of its replica, which may come after the end of the call, or never."""
        if live.end.done():
            return live.end.result()
        error = call.exception()
        if error is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RESULT_GRACE_S):
                    return await asyncio.shield(live.end)
        elif not isinstance(error, ReplicaLost):
            raise error
        return None

    async def _move(self, live: ClusterRequest) -> None:
        """Its replica is lost, and it goes on elsewhere. Raises BackendFailed if it may not."""
        verdict = live.lose(self.clock.now())
        _log.warning(
            "Request %s lost its replica %s after %d tokens: %s",
            live.request.id,
            live.replica,
            live.token_count,
            verdict.value,
        )
        if verdict is Verdict.FAIL:
            raise BackendFailed(
                "Every replica that ran this request was lost, so it is not tried again."
            )
        if live.replica is None:
            # Perhaps no replica is there: do not ask for one all the time.
            await asyncio.sleep(min(live.move_count * LEAVING_S, PAUSE_S_MAX))

    def _finish(self, live: ClusterRequest) -> None:
        """Answer it. Raises the error of a completion whose replica was lost before it sent it."""
        answer = live.answer(self.clock.now())
        error = error_of(answer.completions)
        if error is not None:
            raise error
        self.events.end(live, answer)

    def _take_delta(self, live: ClusterRequest, message: messages.OrderDelta) -> None:
        delta, now = message.delta, self.clock.now()
        live.take(delta, now)
        if delta.tokens and not live.has_token and live.replica is not None:
            # The router learns that with the next order.
            live.has_token = True
            self._begun.append((live.replica, live.number))
        if delta.tokens and live.is_suspect:
            live.is_suspect = False
            self.suspects.release(live)
        live.mailbox.put(delta, now)
        if now >= live.progress_due_at:
            self.events.progress(live, now)
        if live.mailbox.is_bounded and live.mailbox.is_read_too_slowly(now):
            live.was_read_too_slowly = True
            live.task.cancel()
