"""Makes the orders for the replicas: `Orders`. The event loop of the fleet.

Clocks of two machines differ, so an order says how much time is left. Time that a request has spent
at its ingress counts: while it waited for a replica, was refused by some, or lost one.
"""

import math
from dataclasses import replace

from jitney.core.scheduler_settings import SchedulerSettings
from jitney_cluster.accounts import MovingRequest
from jitney_cluster.levels import share_of_one
from jitney_cluster.replica_messages import Address, Run, Wanted, encode_one
from jitney_cluster.routing import Sought


class Orders:
    """The orders of one ingress, which have numbers in a row."""

    def __init__(self, model_key: str, replica_count: int, settings: SchedulerSettings) -> None:
        self._model_key = model_key
        self._replica_count = replica_count
        self._settings = settings
        self._number = 0
        self._begun: list[tuple[str, int]] = []

    def next(
        self, live: MovingRequest, address: Address, avoided: tuple[str, ...], now: float
    ) -> tuple[bytes, Sought]:
        """An order for the next attempt, as bytes, and what the router is told of it.

        Raises DeadlineExceeded if no time is left.
        """
        left_s = live.left_s(now, self._settings.request_timeout_s)
        wait_s = live.wait_left_s(now, self._settings.queue_timeout_s)
        self._number += 1
        live.attempt += 1
        live.number, live.has_begun = self._number, False
        age_s = now - live.arrived_at
        waited_s = age_s if live.is_accepted else None
        request = live.progress.resumed(left_s)
        if not request.resumed and wait_s is not None:
            # The replica counts from where the request was accepted first.
            request = replace(request, queue_timeout_s=wait_s + (waited_s or 0.0))
        elif not request.resumed and live.is_started:
            request = replace(request, queue_timeout_s=math.inf)
        request = replace(
            request,
            share=share_of_one(live.request.share, self._replica_count),
            waited_s=waited_s,
        )
        order = Run(address, self._number, live.attempt, age_s, Wanted.of(request), self._model_key)
        begun, self._begun = tuple(self._begun), []
        sought = Sought(address.ingress, self._number, live.head, avoided, begun)
        return encode_one(order), sought

    def begin(self, live: MovingRequest) -> None:
        """A token of this attempt has come. The router is told with the next order."""
        if not live.has_begun and live.replica is not None:
            live.has_begun = True
            self._begun.append((live.replica, live.number))
