"""What a handle can do with a request of the fleet: `FleetControl`. Any thread; the fleet's event
loop does it.

Tests: tests/unit/cluster/test_fleet.py and tests/e2e/server/test_fleet_callers.py.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace

from jitney.core.request import Priority, RequestId
from jitney.core.rules.pauses import PauseOutcome
from jitney.engine.mailbox import Mailbox
from jitney_cluster.cluster_request import ClusterRequest
from jitney_cluster.dispatch import Dispatch, ReplicaLost, forget_error


class FleetControl:
    """Cancels and steers the `live` requests of a fleet, where they run; ignores unknown ids."""

    def __init__(
        self,
        dispatch: Dispatch,
        live: Mapping[str, ClusterRequest],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._dispatch = dispatch
        self._live = live
        self._loop = loop

    def cancel(self, request_id: RequestId, mailbox: Mailbox | None = None) -> None:
        """Cancel a request."""
        self._loop.call_soon_threadsafe(self._cancel, request_id, mailbox)

    def pause(self, request_id: RequestId, mailbox: Mailbox | None = None) -> Future[PauseOutcome]:
        """Pause a request where it runs. A move to another replica ends the pause."""
        return asyncio.run_coroutine_threadsafe(self._pause(request_id), self._loop)

    def resume(self, request_id: RequestId, mailbox: Mailbox | None = None) -> None:
        """Let a paused request go on."""
        self._loop.call_soon_threadsafe(self._steer, request_id, "resume")

    def reprioritise(
        self, request_id: RequestId, priority: Priority, mailbox: Mailbox | None = None
    ) -> None:
        """Change the class of a request, here and where it runs."""
        self._loop.call_soon_threadsafe(self._reprioritise, request_id, priority)

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
                outcome = await self._dispatch.steer(live.replica, request_id, "pause", 0)
        return outcome or PauseOutcome.NOT_NOW

    def _reprioritise(self, request_id: RequestId, priority: Priority) -> None:
        live = self._live.get(request_id)
        if live is not None:
            live.request = replace(live.request, priority=priority)
            self._steer(request_id, "priority", int(priority))

    def _steer(self, request_id: RequestId, action: str, priority: int = 0) -> None:
        live = self._live.get(request_id)
        if live is not None and live.replica is not None:
            steering = self._dispatch.steer(live.replica, request_id, action, priority)
            self._loop.create_task(steering).add_done_callback(forget_error)
