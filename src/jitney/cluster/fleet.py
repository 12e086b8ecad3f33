"""The engines of all replicas as one: `ReplicaFleet`, what the server uses in place of an engine.

Each request has one task. It sends the request to a replica, passes on what the replica tells, and
when the replica is lost it goes on elsewhere from what its caller has (`Progress`). The caller sees
one stream. All of it happens on one event loop, that of the thread which made the fleet. The server
has another one, so what it calls may be called from any thread.

    sent -> accepted -> started -> made ... -> ended
      ^        |           |         |
      `--------+-----------+---------'   the replica is lost, or has no room: another one

What dies with an ingress: its connections to clients, and so the requests of these clients. The
replicas cancel them. Other ingresses do not notice.
"""

import asyncio
import contextlib
import logging
import secrets
from concurrent.futures import Future
from dataclasses import replace
from typing import Any  # Any: the results of two futures

from jitney.cluster.accounts import Accounts, MovingRequest
from jitney.cluster.back_channel import BackChannel
from jitney.cluster.dispatch import ENCODE_S_MAX, Dispatch, FleetBackend, ReplicaLost
from jitney.cluster.levels import Levels
from jitney.cluster.progress import Progress, Verdict
from jitney.cluster.replica_messages import (
    Accepted,
    Address,
    Description,
    Ended,
    Made,
    Run,
    Started,
    State,
    Told,
    Wanted,
    encode_one,
)
from jitney.cluster.routing import head_of
from jitney.core.request import Priority, Request, RequestId
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import Detail, Snapshot
from jitney.engine.answer import Answer
from jitney.engine.clock import Clock, SystemClock
from jitney.engine.engine import EngineState
from jitney.engine.handle import Handle
from jitney.engine.mailbox import Mailbox
from jitney.engine.observe import Observers
from jitney.engine.stats import Statistics, Stats
from jitney.errors import (
    BackendFailed,
    DeadlineExceeded,
    Draining,
    EngineError,
    EngineStopped,
    JitneyError,
    QueueFull,
)
from jitney.records import (
    Observer,
)

_log = logging.getLogger("jitney.cluster")

PLACE_S_MAX = 120.0
"""How long a request waits for a replica that takes it, at the beginning and after a loss."""

RESULT_GRACE_S = 2.0
"""A replica that says it is done has told the end before; so long may it be on its way."""


class ReplicaFleet:
    """All replicas, as one ingress sees them. `open` it on the event loop before its first use."""

    def __init__(
        self,
        dispatch: Dispatch,
        description: Description,
        *,
        replica_count: int,
        host: str = "127.0.0.1",
        clock: Clock | None = None,
    ) -> None:
        self._dispatch = dispatch
        self._clock = clock or SystemClock()
        self._loop = asyncio.get_running_loop()
        self.ingress = secrets.token_hex(8)
        self.backend = FleetBackend(dispatch, description, self._loop)
        self.settings = _over_all(description.scheduler_settings(), replica_count)
        self._channel = BackChannel(self.ingress, host, self._take, self._lose)
        self._address: Address | None = None
        self._observers = Observers()
        self._levels = Levels(self.settings, self.backend.traits)
        self._statistics = Statistics(self._clock.now(), self._levels.snapshot())
        self._accounts = Accounts(self._statistics, self._observers, self._clock)
        self._live: dict[str, MovingRequest] = {}
        self._number = 0
        self._suspects = asyncio.Lock()
        """Held while a suspect runs: one at a time in the whole fleet."""
        self._is_closed = False

    async def open(self) -> None:
        """Listen for the replicas."""
        self._address = await self._channel.open()

    @property
    def state(self) -> EngineState:
        """Whether it takes requests. Any thread."""
        return EngineState.STOPPED if self._is_closed else EngineState.RUNNING

    @property
    def failure(self) -> EngineError | None:
        """A fleet never gives up: lost replicas are replaced. Any thread."""
        return None

    @property
    def is_backend_ready(self) -> bool:
        """Whether a replica is there. Any thread."""
        return bool(self._levels.replicas) or not self._live

    @property
    def stalled_s(self) -> float:
        """How long no replica has made progress though one should. Any thread."""
        return self._statistics.stalled_s(self._clock.now())

    @property
    def observer_failed_count(self) -> int:
        """How often an observer raised."""
        return self._observers.failed_count

    @property
    def replicas(self) -> list[str]:
        """The replicas that are connected."""
        return list(self._levels.replicas)

    def send(
        self,
        request: Request,
        *,
        streams: bool = True,
        is_bounded: bool = False,
        arrived_at: float | None = None,
    ) -> Handle[Answer]:
        """Submit a request without waiting. Any thread; a refusal comes through the handle.

        Raises EngineStopped.
        """
        if self._is_closed:
            raise EngineStopped("The server has stopped.")
        now = self._clock.now()
        arrived_at = now if arrived_at is None else min(arrived_at, now)
        mailbox = Mailbox(streams=streams, is_bounded=is_bounded)
        live = MovingRequest(
            request,
            mailbox,
            Progress(request, now - arrived_at, keeps_logprobs=not streams),
            head_of(request.prompt, request.scope),
            arrived_at,
            now,
        )
        self._loop.call_soon_threadsafe(self._begin, live)
        return Handle(request, mailbox, self, lambda answer: answer)

    def cancel(self, request_id: RequestId, mailbox: Mailbox | None = None) -> None:
        """Cancel a request. Any thread; unknown ids are ignored."""
        self._loop.call_soon_threadsafe(self._cancel, request_id, mailbox)

    def pause(self, request_id: RequestId, mailbox: Mailbox | None = None) -> None:
        """Pause a request where it runs. A move to another replica ends the pause. Any thread."""
        self._loop.call_soon_threadsafe(self._steer, request_id, "pause")

    def resume(self, request_id: RequestId, mailbox: Mailbox | None = None) -> None:
        """Let a paused request go on. Any thread."""
        self._loop.call_soon_threadsafe(self._steer, request_id, "resume")

    def reprioritise(
        self, request_id: RequestId, priority: Priority, mailbox: Mailbox | None = None
    ) -> None:
        """Change the class of a request, here and where it runs. Any thread."""
        self._loop.call_soon_threadsafe(self._reprioritise, request_id, priority)

    def observe(self, observer: Observer) -> None:
        """Give this observer every record."""
        self._observers.add(observer)

    def stats(self) -> Stats:
        """Counters and averages since the start. Any thread."""
        return self._levels.totals(self._statistics).stats(self._clock.now())

    def totals(self) -> Statistics:
        """The sums behind the statistics. Any thread."""
        return self._levels.totals(self._statistics)

    def snapshot(self) -> Snapshot:
        """Slots, memory and queues of all replicas together. Any thread."""
        return self._levels.snapshot()

    def look(self, characters_max: int = 0) -> Future[Detail]:
        """The detail: what this ingress knows without asking."""
        answer: Future[Detail] = Future()
        answer.set_result(Detail(self._clock.now(), (), (), ()))
        return answer

    def end_waits(self) -> None:
        """A fleet gathers nothing."""

    def close(self, drain_s: float = 0.0) -> None:
        """End all requests of this ingress and leave the replicas. Any thread but the loop's."""
        if not self._is_closed:
            self._is_closed = True
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(ENCODE_S_MAX)

    async def _close(self) -> None:
        for live in list(self._live.values()):
            self._accounts.fail(live, EngineStopped("The server was shut down."))
            live.task.cancel()
        await self._channel.close()

    async def _drive(self, live: MovingRequest) -> None:
        """One request from its first replica to its end. It ends exactly once (invariant 1)."""
        try:
            while await self._attempt(live):
                pass
        except asyncio.CancelledError:
            self._accounts.end_cancelled(live)
        except JitneyError as error:
            self._accounts.fail(live, error)
        except Exception as error:
            _log.exception("A request of the fleet failed")
            self._accounts.fail(live, BackendFailed(f"The cluster failed unexpectedly ({error})."))
        finally:
            self._live.pop(live.request.id, None)

    async def _attempt(self, live: MovingRequest) -> bool:
        """Run the request on one replica; whether another one has to go on. Raises its error."""
        told = await self._told(live)
        if told is None:
            return await self._move(live)
        error = None if told.failure is None else told.failure.error()
        if isinstance(error, QueueFull):
            return self._try_next(live, error)
        if isinstance(error, Draining | EngineStopped):
            # It is leaving. That is not the request's fault.
            live.full[live.replica or ""] = QueueFull(str(error), 1.0)
            return True
        answer = told.answer(live.request)
        if answer is not None:
            live.progress.end(answer)
        if error is not None:
            raise error
        self._accounts.end(live, live.progress.answer(self._since(live.arrived_at)))
        return False

    async def _told(self, live: MovingRequest) -> Ended | None:
        """Send the request to a replica, and return what it tells last; None if it is lost."""
        left_s = self._left_s(live)
        self._number += 1
        live.attempt += 1
        live.replica = None
        live.over = self._loop.create_future()
        assert self._address is not None, "the fleet is open"
        request = live.progress.resumed(left_s)
        order = Run(
            self._address,
            self._number,
            live.attempt,
            self._since(live.arrived_at),
            Wanted.of(request),
        )
        calling = asyncio.ensure_future(
            self._dispatch.run(
                encode_one(order), self.ingress, live.head, self._number, tuple(live.full)
            )
        )
        try:
            async with asyncio.timeout(left_s):
                ends: set[asyncio.Future[Any]] = {calling, live.over}
                await asyncio.wait(ends, timeout=PLACE_S_MAX, return_when=asyncio.FIRST_COMPLETED)
                if live.replica is None and not (calling.done() or live.over.done()):
                    raise QueueFull(
                        f"No replica took the request within {PLACE_S_MAX:g} s; try again later.",
                        PLACE_S_MAX,
                    )
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if live.over.done():
                    return live.over.result()
                return await self._told_late(live, calling)
        except TimeoutError:
            raise DeadlineExceeded(
                "The request's time limit passed before it ended; raise the limit."
            ) from None
        finally:
            if not calling.done():
                calling.cancel()
            calling.add_done_callback(_forget_error)

    async def _told_late(
        self, live: MovingRequest, calling: "asyncio.Future[None]"
    ) -> Ended | None:
        """The call is over, and the end was not told yet: it is on its way, or it never comes."""
        error = calling.exception()
        if isinstance(error, ReplicaLost):
            return None
        if error is not None:
            raise error
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RESULT_GRACE_S):
                return await asyncio.shield(live.over)
        return None

    async def _move(self, live: MovingRequest) -> bool:
        """Its replica is lost: whether it goes on. Raises BackendFailed if it may not."""
        verdict = live.progress.lose()
        _log.warning(
            "Request %s lost its replica %s after %d tokens: %s",
            live.request.id,
            live.replica,
            live.progress.token_count,
            verdict.value,
        )
        live.full.clear()
        if verdict is Verdict.FAIL:
            raise BackendFailed(
                "Every replica that ran this request was lost, so it is not tried again."
            )
        if live.progress.has_begun:
            made = next(iter(live.progress.resumed(None).resumed_tokens.values()), ())
            live.head = head_of((*live.request.prompt, *made), live.request.scope)
        if verdict is Verdict.ALONE:
            async with self._suspects:
                return await self._attempt(live)
        return True

    def _try_next(self, live: MovingRequest, error: QueueFull) -> bool:
        """A replica has no room: try another one. Raises the error when all were tried."""
        live.full[live.replica or ""] = error
        if live.replica is None or set(self._levels.replicas) <= set(live.full):
            retry_s = min(each.retry_after_s for each in live.full.values())
            raise QueueFull(
                f"Every replica has as many requests as it takes; try again in {retry_s:.1f} s.",
                retry_s,
            )
        return True

    def _take(self, replica: str, message: Told) -> None:
        """A replica told something."""
        if isinstance(message, State):
            self._levels.take(replica, message)
            self._statistics.note(self._levels.snapshot(), self._clock.now())
            return
        if not isinstance(message, Accepted | Started | Made | Ended):
            return
        live = self._live.get(message.id)
        if live is None or live.attempt != message.attempt or live.over.done():
            return  # of an attempt that was given up
        live.replica = replica
        match message:
            case Accepted():
                self._accounts.accept(live)
            case Started():
                self._accounts.start(live, message)
            case Made():
                self._pass_on(live, message)
            case Ended():
                live.over.set_result(message)

    def _lose(self, replica: str) -> None:
        """The connection of a replica has ended."""
        if self._is_closed:
            return
        _log.warning("Replica %s is lost", replica)
        self._levels.lose(replica)
        for live in self._live.values():
            if live.replica == replica and not live.over.done():
                live.over.set_result(None)

    def _pass_on(self, live: MovingRequest, message: Made) -> None:
        delta, now = message.delta(), self._clock.now()
        live.progress.take(delta, now - live.arrived_at)
        live.mailbox.put(delta, now)
        if live.mailbox.is_bounded and live.mailbox.is_read_too_slowly(now):
            live.was_read_too_slowly = True
            live.task.cancel()

    def _begin(self, live: MovingRequest) -> None:
        if self._is_closed:
            self._accounts.fail(live, EngineStopped("The server was shut down."))
            return
        self._live[live.request.id] = live
        live.task = self._loop.create_task(self._drive(live))

    def _reprioritise(self, request_id: RequestId, priority: Priority) -> None:
        live = self._live.get(request_id)
        if live is not None:
            live.progress.request = replace(live.progress.request, priority=priority)
            self._steer(request_id, "priority", int(priority))

    def _cancel(self, request_id: RequestId, mailbox: Mailbox | None) -> None:
        live = self._live.get(request_id)
        if live is not None and mailbox in (None, live.mailbox):
            live.task.cancel()

    def _steer(self, request_id: RequestId, action: str, priority: int = 0) -> None:
        live = self._live.get(request_id)
        if live is not None and live.replica is not None:
            steering = self._dispatch.steer(live.replica, request_id, action, priority)
            self._loop.create_task(steering).add_done_callback(_forget_error)

    def _left_s(self, live: MovingRequest) -> float | None:
        """Seconds until its deadline. Raises DeadlineExceeded."""
        limit_s = live.request.request_timeout_s or self.settings.request_timeout_s
        if limit_s is None:
            return None
        left_s = limit_s - self._since(live.sent_at)
        if left_s <= 0:
            raise DeadlineExceeded("The request passed its deadline.")
        return left_s

    def _since(self, moment: float) -> float:
        return self._clock.now() - moment


def _over_all(settings: SchedulerSettings, replica_count: int) -> SchedulerSettings:
    """The limits of all replicas together."""
    return replace(
        settings,
        max_num_seqs=settings.max_num_seqs * replica_count,
        max_num_batched_tokens=settings.max_num_batched_tokens * replica_count,
        max_num_queued_reqs=settings.max_num_queued_reqs * replica_count,
        max_num_queued_tokens=settings.max_num_queued_tokens * replica_count,
    )


def _forget_error(ended: "asyncio.Future[None]") -> None:
    """Look at the error of a call that nobody waits for any more."""
    if not ended.cancelled():
        ended.exception()
