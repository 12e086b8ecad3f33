"""Lets the suspects of an ingress run one at a time: `SuspectTurn`. The event loop of the fleet.

A suspect lost several replicas and made no token in between, so it may be what kills them. Its turn
ends with its first token, which shows that it is harmless, or with its attempt.
"""

import asyncio

from jitney.errors import QueueFull
from jitney_cluster.accounts import PLACE_S_MAX, MovingRequest


class SuspectTurn:
    """Who of the suspects may run."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._holder: MovingRequest | None = None

    async def take(self, live: MovingRequest, left_s: float | None) -> None:
        """Wait for the turn. Raises QueueFull if it does not come, TimeoutError after `left_s`."""
        limit_s = PLACE_S_MAX if left_s is None else min(left_s, PLACE_S_MAX)
        try:
            await asyncio.wait_for(self._lock.acquire(), limit_s)
        except TimeoutError:
            if limit_s < PLACE_S_MAX:
                raise
            raise QueueFull(
                "The request lost its replicas, and others that lost theirs are tried before it; "
                "ask again later.",
                PLACE_S_MAX,
            ) from None
        self._holder = live

    def give_back(self, live: MovingRequest) -> None:
        """Its turn is over, if it was its turn."""
        if self._holder is live:
            self._holder = None
            self._lock.release()
