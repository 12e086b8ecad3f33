"""Has every replica connect to an ingress before it gets a request from it: `Meeting`.

A replica knows of an ingress only what it was told with a call. So the ingress asks one replica
after the other to connect, of those that it does not see: at the start, and whenever a new one
takes the place of a lost one. What people see depends on it, and whether the server is ready. The
event loop of a fleet.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from jitney_cluster.dispatch import ReplicaLost
from jitney_cluster.replica_messages import Address

_log = logging.getLogger("jitney")

MEET_S = 0.5
"""Until the next question after one that brought a replica, as there may be more; and while none is
connected."""

QUIET_S = 5.0
"""Until the next question after one that brought none. A call through Serve takes 10 ms."""

MEET_S_MAX = 5.0
"""A replica that has not connected by then is stuck, and another one may be asked."""


class MeetingDispatch(Protocol):
    """A way to replicas that can have them connect."""

    async def meet(self, address: Address, met: tuple[str, ...]) -> None:
        """Have a replica connect that is not among `met`, if there is one. Raises ReplicaLost."""
        ...


class Meeting:
    """Asks until it is closed. `names` are the replicas that are connected."""

    def __init__(
        self, dispatch: MeetingDispatch, address: Address, names: Callable[[], tuple[str, ...]]
    ) -> None:
        self._dispatch = dispatch
        self._address = address
        self._names = names
        self._is_closed = False
        self._asking = asyncio.create_task(self._ask_always())

    async def close(self) -> None:
        """Ask no more."""
        self._is_closed = True
        self._asking.cancel()
        await asyncio.wait({self._asking})

    async def _ask_always(self) -> None:
        while True:
            before = self._names()
            try:
                async with asyncio.timeout(MEET_S_MAX):
                    await self._dispatch.meet(self._address, before)
            except (ReplicaLost, TimeoutError):
                pass
            except asyncio.CancelledError:
                # A call that Ray itself has cancelled looks like this too.
                if self._is_closed:
                    raise
            except Exception:  # Ray raises all kinds; the next question may be answered
                _log.exception("A replica could not be asked to connect")
            is_quiet = before and self._names() == before
            await asyncio.sleep(QUIET_S if is_quiet else MEET_S)
