"""The engines of all replicas as one: `ReplicaFleet`, what the server uses in place of an engine.

Each request has one task (`Attempts.run`). It sends the request to a replica, and when the replica
is lost the request goes on elsewhere from what its caller has (`ClusterRequest`). The caller sees
one stream. All of it happens on one event loop, that of the thread which made the fleet. The server
has another one, so what it calls may be called from any thread.

    sent -> accepted -> started -> deltas ... -> ended
      ^        |           |          |
      `--------+-----------+----------'   the replica is lost, or has no room: another one

What dies with an ingress: its connections to clients, and so the requests of these clients. The
replicas cancel them. Other ingresses do not notice.
"""

import asyncio
import contextlib
import logging
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from jitney.core.request import Priority, Request, RequestId
from jitney.core.rules.pauses import PauseOutcome
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import Detail, Snapshot
from jitney.engine.answer import Answer
from jitney.engine.clock import SystemClock
from jitney.engine.engine import EngineState
from jitney.engine.handle import Handle
from jitney.engine.mailbox import Mailbox
from jitney.engine.observe import Observers
from jitney.engine.served_engine import ReplicaView
from jitney.engine.stats import Statistics, Stats
from jitney.errors import BackendFailed, EngineError, EngineStopped, JitneyError
from jitney.records import Observer
from jitney_cluster.attempts import Attempts
from jitney_cluster.back_channel import BackChannel
from jitney_cluster.cluster_request import ClusterRequest
from jitney_cluster.dispatch import ENCODE_S_MAX, Dispatch, FleetBackend, ReplicaLost, forget_error
from jitney_cluster.overview import FleetOverview
from jitney_cluster.replica_messages import (
    Address,
    Description,
    OrderAccepted,
    OrderMessage,
    ReplicaMessage,
    ReplicaState,
)
from jitney_cluster.request_events import RequestEvents

_log = logging.getLogger("jitney.cluster")


class ReplicaFleet:
    """All replicas, as one ingress sees them. `open` it on the event loop before its first use."""

    def __init__(
        self, dispatch: Dispatch, description: Description, *, replica_count: int, host: str
    ) -> None:
        self._clock = SystemClock()
        self._loop = asyncio.get_running_loop()
        self._dispatch = dispatch
        self.backend = FleetBackend(dispatch, description, self._loop)
        self.settings = _settings_of_all(description.settings, replica_count)
        self._channel = BackChannel(host, self._take, self._lose)
        self._observers = Observers()
        self._overview = FleetOverview(
            self.settings, self.backend.traits, self._channel.ask, self._clock
        )
        self._events = RequestEvents(self._overview.statistics, self._observers, self._clock)
        self._live: dict[str, ClusterRequest] = {}
        tools = dispatch, self._overview, self._events, self._clock
        self._attempts = Attempts(*tools, description.model_key, replica_count)
        self._is_closed = self._ends_waits = False

    async def open(self) -> Address:
        """Listen for the replicas; where."""
        self._attempts.address = await self._channel.open()
        return self._attempts.address

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
        live = ClusterRequest(
            request, mailbox, self.settings, arrived_at, now, stores_logprobs=not streams
        )
        self._loop.call_soon_threadsafe(self._begin, live)
        return Handle(request, mailbox, self, lambda answer: answer)

    def cancel(self, request_id: RequestId, mailbox: Mailbox | None = None) -> None:
        """Cancel a request, wherever it runs. Any thread; unknown ids are ignored."""
        self._loop.call_soon_threadsafe(self._cancel, request_id, mailbox)

    def pause(self, request_id: RequestId, mailbox: Mailbox | None = None) -> Future[PauseOutcome]:
        """Pause a request where it runs. A move to another replica ends the pause. Any thread."""
        return asyncio.run_coroutine_threadsafe(self._pause(request_id), self._loop)

    def resume(self, request_id: RequestId, mailbox: Mailbox | None = None) -> None:
        """Let a paused request go on. Any thread."""
        self._loop.call_soon_threadsafe(self._steer, request_id, "resume")

    def reprioritise(
        self, request_id: RequestId, priority: Priority, mailbox: Mailbox | None = None
    ) -> None:
        """Change the class of a request, here and where it runs. Any thread."""
        self._loop.call_soon_threadsafe(self._steer, request_id, "priority", priority)

    def observe(self, observer: Observer) -> None:
        """Give this observer every record."""
        self._observers.add(observer)

    def stats(self) -> Stats:
        """Counters and averages since the start. Any thread."""
        return self.totals().stats(self._clock.now())

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

    def replica_names(self) -> tuple[str, ...]:
        """The names of the replicas that are connected. Any thread."""
        return tuple(each.name for each in self.replica_views())

    def end_waits(self) -> None:
        """No call can resume a paused request any more, or fill a group: let all go on. Any
        thread."""
        self._loop.call_soon_threadsafe(self._end_waits)

    def close(self, drain_s: float = 0.0) -> None:
        """End all requests of this ingress and leave the replicas. Any thread but the loop's."""
        if not self._is_closed:
            self._is_closed = True
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(ENCODE_S_MAX)

    async def _close(self) -> None:
        for live in list(self._live.values()):
            self._events.fail(live, EngineStopped("The server was shut down."))
            live.task.cancel()
        await self._channel.close()

    def _begin(self, live: ClusterRequest) -> None:
        if self._is_closed:
            self._events.fail(live, EngineStopped("The server was shut down."))
            return
        live.update_head()
        live.lose_place(self._clock.now())
        self._live[live.request.id] = live
        live.task = self._loop.create_task(self._attempts.run(live))
        live.task.add_done_callback(partial(self._finish, live))

    def _finish(self, live: ClusterRequest, task: asyncio.Task[None]) -> None:
        """It ends exactly once (invariant 1), even if it was cancelled before its first step."""
        self._live.pop(live.request.id, None)
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            self._events.end_cancelled(live)
        elif isinstance(error, JitneyError):
            self._events.fail(live, error)
        elif error is not None:
            _log.error("A request of the fleet failed", exc_info=error)
            self._events.fail(live, BackendFailed(f"The cluster failed unexpectedly ({error})."))

    def _cancel(self, request_id: RequestId, mailbox: Mailbox | None) -> None:
        live = self._live.get(request_id)
        if live is not None and mailbox in (None, live.mailbox):
            live.task.cancel()

    async def _pause(self, request_id: RequestId) -> PauseOutcome:
        live = self._live.get(request_id)
        if live is None:
            return PauseOutcome.ENDED
        outcome = None
        if live.replica is not None:
            with contextlib.suppress(ReplicaLost):
                outcome = await self._steering(live, "pause")
        return outcome or PauseOutcome.NOT_NOW

    def _end_waits(self) -> None:
        self._ends_waits = True
        for live in self._live.values():
            self._steer(live.request.id, "end_waits")

    def _steer(self, request_id: RequestId, action: str, priority: Priority | None = None) -> None:
        live = self._live.get(request_id)
        if live is None:
            return
        if priority is not None:
            live.request = replace(live.request, priority=priority)
        if live.replica is not None:
            steering = self._loop.create_task(self._steering(live, action))
            steering.add_done_callback(forget_error)

    async def _steering(self, live: ClusterRequest, action: str) -> PauseOutcome | None:
        """Have its replica pause, resume or reprioritise it; the outcome of a pause."""
        arguments = live.request.id, action, int(live.request.priority)
        call = self._dispatch.call("steer", *arguments, target=live.replica)
        outcome: PauseOutcome | None = await call
        return outcome

    def _take(self, replica: str, message: ReplicaMessage) -> None:
        """A replica has sent a message."""
        if isinstance(message, ReplicaState):
            self._overview.take(replica, message)
        elif isinstance(message, OrderMessage):
            live = self._live.get(message.request_id)
            if live is not None:
                self._attempts.take(live, replica, message)
                if self._ends_waits and isinstance(message, OrderAccepted):
                    self._steer(live.request.id, "end_waits")

    def _lose(self, replica: str) -> None:
        """The connection of a replica has ended."""
        if self._is_closed:
            return
        _log.warning("Replica %s is lost", replica)
        self._overview.lose(replica)
        self._events.lose(replica)
        for live in self._live.values():
            # An order that no replica has taken yet may have gone there.
            if live.attempt and live.replica in (replica, None) and not live.end.done():
                live.end.set_result(None)


def _settings_of_all(settings: SchedulerSettings, replica_count: int) -> SchedulerSettings:
    """The limits of all replicas together, from those of one."""
    names = (
        *("max_num_seqs", "max_num_batched_tokens"),
        *("max_num_queued_reqs", "max_num_queued_tokens"),
    )
    return replace(settings, **{name: getattr(settings, name) * replica_count for name in names})
