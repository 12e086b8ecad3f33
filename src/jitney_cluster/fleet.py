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
from typing import Any  # Any: the results of two futures

from jitney.core.request import Request
from jitney.core.snapshot import Detail, Snapshot
from jitney.engine.answer import Answer
from jitney.engine.clock import Clock, SystemClock
from jitney.engine.collector import error_of
from jitney.engine.engine import EngineState
from jitney.engine.handle import Handle
from jitney.engine.mailbox import Mailbox
from jitney.engine.observe import Observers
from jitney.engine.replica_view import ReplicaView
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
from jitney.records import Observer
from jitney_cluster.accounts import PLACE_S_MAX, Accounts, MovingRequest
from jitney_cluster.back_channel import BackChannel
from jitney_cluster.dispatch import ENCODE_S_MAX, Dispatch, FleetBackend, ReplicaLost, forget_error
from jitney_cluster.fleet_control import FleetControl
from jitney_cluster.levels import settings_of_all
from jitney_cluster.orders import Orders
from jitney_cluster.overview import FleetOverview
from jitney_cluster.progress import Progress, Verdict
from jitney_cluster.replica_messages import (
    Accepted,
    Address,
    CatchingUp,
    Description,
    Ended,
    Made,
    OfRequest,
    ReplicaDetail,
    Started,
    State,
    Told,
)
from jitney_cluster.routing import head_of
from jitney_cluster.suspects import SuspectTurn

_log = logging.getLogger("jitney.cluster")

LEAVING_S = 0.1
"""Between two tries where replicas leave, or new ones are not there yet."""

PAUSE_S_MAX = 2.0
"""The longest of these pauses."""

TIME_OVER = "The request's time limit passed before it ended; raise the limit."

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
        self.settings = settings_of_all(description.scheduler_settings(), replica_count)
        self._channel = BackChannel(self.ingress, host, self._take, self._lose)
        self._address: Address | None = None
        self._observers = Observers()
        self._overview = FleetOverview(
            self.settings, self.backend.traits, self._channel.ask, self._clock
        )
        self._accounts = Accounts(self._overview.statistics, self._observers, self._clock)
        self._live: dict[str, MovingRequest] = {}
        self.control = FleetControl(dispatch, self._live, self._loop)
        self._orders = Orders(description.model_key, replica_count, self.settings)
        self._suspects = SuspectTurn()
        self._is_closed = False

    async def open(self) -> Address:
        """Listen for the replicas; where."""
        self._address = await self._channel.open()
        return self._address

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
        """Whether a replica is connected and lives, and so somebody would answer. Any thread."""
        return self._overview.is_ready

    @property
    def stalled_s(self) -> float:
        """How long no replica has made progress though one should. Any thread."""
        return self._overview.stalled_s()

    @property
    def observer_failed_count(self) -> int:
        """How often an observer raised."""
        return self._observers.failed_count

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
            arrived_at,
            now,
        )
        self._loop.call_soon_threadsafe(self._begin, live)
        return Handle(request, mailbox, self.control, lambda answer: answer)

    def observe(self, observer: Observer) -> None:
        """Give this observer every record."""
        self._observers.add(observer)

    def stats(self) -> Stats:
        """Counters and averages since the start. Any thread."""
        return self._overview.totals().stats(self._clock.now())

    def totals(self) -> Statistics:
        """The sums behind the statistics. Any thread."""
        return self._overview.totals()

    def snapshot(self) -> Snapshot:
        """Slots, memory and queues of all replicas together. Any thread."""
        return self._overview.snapshot()

    def look(self, characters_max: int = 0) -> Future[Detail]:
        """Ask the replicas for their details, which are then in `replica_views`. Any thread."""
        return self._overview.look(characters_max)

    def replica_views(self) -> tuple[ReplicaView, ...]:
        """The replicas that are connected, side by side. Any thread."""
        return self._overview.views()

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
            while await self._attempt_in_turn(live):
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

    async def _attempt_in_turn(self, live: MovingRequest) -> bool:
        """An attempt, if anything is left to be made; of suspects, one at a time."""
        if live.progress.is_complete:
            # Its replica was lost between its last token and the word that this was all.
            self._end(live)
            return False
        if live.is_suspect:
            left_s = live.left_s(self._clock.now(), self.settings.request_timeout_s)
            try:
                await self._suspects.take(live, left_s)
            except TimeoutError:
                raise DeadlineExceeded(TIME_OVER) from None
        try:
            return await self._attempt(live)
        finally:
            self._suspects.give_back(live)

    async def _attempt(self, live: MovingRequest) -> bool:
        """Run the request on one replica; whether another one has to go on. Raises its error."""
        told = await self._told(live)
        error = None if told is None or told.failure is None else told.failure.error()
        if told is None or (live.is_placed and isinstance(error, EngineStopped)):
            self._move(live)
            if live.replica is None:
                # Perhaps no replica is there: do not ask for one all the time.
                await asyncio.sleep(min(live.progress.move_count * LEAVING_S, PAUSE_S_MAX))
            return True
        if isinstance(error, QueueFull) and not live.is_placed:
            live.find_full(error)
            return True
        if isinstance(error, Draining | EngineStopped):
            # It is leaving, or has another model. That is not the request's fault.
            live.full[live.replica or ""] = QueueFull(str(error), 1.0)
            await asyncio.sleep(LEAVING_S)
            live.check_place(self._clock.now())
            return True
        answer = told.answer(live.request)
        if answer is not None:
            live.progress.end(answer)
        if error is not None:
            raise error
        self._end(live)
        return False

    def _end(self, live: MovingRequest) -> None:
        """Answer it. Raises the error of a completion whose replica was lost before it told it."""
        answer = live.progress.answer(self._since(live.arrived_at))
        error = error_of(answer.completions)
        if error is not None:
            raise error
        self._accounts.end(live, answer)

    async def _told(self, live: MovingRequest) -> Ended | None:
        """Send the request to a replica, and return what it tells last; None if it is lost."""
        now = self._clock.now()
        left_s = live.left_s(now, self.settings.request_timeout_s)
        live.replica = None
        live.over = self._loop.create_future()
        assert self._address is not None, "the fleet is open"
        # Ray may miss a replica later than we do.
        avoided = (*live.full, *self._overview.lost())
        order = self._orders.next(live, self._address, avoided, now)
        calling = asyncio.ensure_future(self._dispatch.run(*order))
        try:
            async with asyncio.timeout(left_s):
                ends: set[asyncio.Future[Any]] = {calling, live.over}
                await self._wait_placed(live, ends)
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if live.over.done():
                    return live.over.result()
                return await self._told_late(live, calling)
        except DeadlineExceeded:
            raise  # with a reason of its own
        except TimeoutError:
            raise DeadlineExceeded(TIME_OVER) from None
        finally:
            if not calling.done():
                calling.cancel()
            calling.add_done_callback(forget_error)

    async def _wait_placed(self, live: MovingRequest, ends: "set[asyncio.Future[Any]]") -> None:
        """Wait until a replica has it, or the attempt is over. Raises where that takes too long."""
        while live.replica is None and not any(each.done() for each in ends):
            wait_s = live.wait_left_s(self._clock.now(), self.settings.queue_timeout_s)
            limit_s = PLACE_S_MAX if wait_s is None else min(wait_s, PLACE_S_MAX)
            await asyncio.wait(ends, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if live.replica is None and not any(each.done() for each in ends):
                live.check_place(self._clock.now())

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

    def _move(self, live: MovingRequest) -> None:
        """Its replica is lost, and it goes on elsewhere. Raises BackendFailed if it may not."""
        verdict = live.progress.lose()
        _log.warning(
            "Request %s lost its replica %s after %d tokens: %s",
            live.request.id,
            live.replica,
            live.progress.token_count,
            verdict.value,
        )
        live.full.clear()
        live.lose_place(self._clock.now())
        live.was_lost |= live.replica is not None
        if verdict is Verdict.FAIL:
            raise BackendFailed(
                "Every replica that ran this request was lost, so it is not tried again."
            )
        if live.progress.has_begun:
            made = next(iter(live.progress.resumed(None).resumed_tokens.values()), ())
            live.head = head_of((*live.request.prompt, *made), live.request.scope)
        live.is_suspect = verdict is Verdict.ALONE

    def _take(self, replica: str, message: Told) -> None:
        """A replica told something."""
        if isinstance(message, State | ReplicaDetail):
            self._overview.take(replica, message)
            return
        if not isinstance(message, OfRequest):
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
            case CatchingUp():
                live.progress.is_catching_up = message.is_so
            case Made():
                self._pass_on(live, message)
            case Ended():
                live.over.set_result(message)

    def _lose(self, replica: str) -> None:
        """The connection of a replica has ended."""
        if self._is_closed:
            return
        _log.warning("Replica %s is lost", replica)
        self._overview.lose(replica)
        self._accounts.lose(replica)
        for live in self._live.values():
            # Nobody knows where one is that was not taken yet: it may have gone there.
            if live.attempt and live.replica in (replica, None) and not live.over.done():
                live.over.set_result(None)

    def _pass_on(self, live: MovingRequest, message: Made) -> None:
        delta, now = message.delta(), self._clock.now()
        live.progress.take(delta, now - live.arrived_at)
        if delta.tokens:
            self._orders.begin(live)
        if delta.tokens and live.is_suspect:
            live.is_suspect = False
            self._suspects.give_back(live)
        live.mailbox.put(delta, now)
        if now >= live.progress_due_at:
            self._accounts.progress(live, now)
        if live.mailbox.is_bounded and live.mailbox.is_read_too_slowly(now):
            live.was_read_too_slowly = True
            live.task.cancel()

    def _begin(self, live: MovingRequest) -> None:
        if self._is_closed:
            self._accounts.fail(live, EngineStopped("The server was shut down."))
            return
        live.head = head_of(live.request.prompt, live.request.scope)
        live.unplaced_at = self._clock.now()
        self._live[live.request.id] = live
        live.task = self._loop.create_task(self._drive(live))

    def _since(self, moment: float) -> float:
        return self._clock.now() - moment
