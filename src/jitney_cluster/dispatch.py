"""The way to the replicas, and what a server needs of them to make requests from texts.

Tests: tests/unit/cluster/test_fleet.py and test_fleet_texts.py.
"""

import asyncio
import math
from collections.abc import Sequence
from concurrent.futures import Future, wait
from copy import copy
from typing import Any, Protocol, TypeVar  # Any: the result of any call

from jitney.core.backend import Segment, Traits, Vocabulary
from jitney.core.params import Constraint
from jitney.core.rules.pauses import PauseOutcome
from jitney.engine.request_factory import GivenUp, Wanted
from jitney.errors import QueueFull
from jitney_cluster.replica_messages import Description
from jitney_cluster.routing import Sought

ENCODE_S_MAX = 60.0
LOOK_S = 0.25
"""How often a wait for a replica looks whether its caller still waits."""

Answered = TypeVar("Answered")


class ReplicaLost(Exception):
    """The replica that ran something is gone; somebody else can run it."""


class Dispatch(Protocol):
    """The way to the replicas. It chooses one for each order."""

    async def run(self, frame: bytes, sought: Sought) -> None:
        """Have an order run to its end. Raises ReplicaLost."""
        ...

    async def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Have texts tokenised by any replica. Raises InputCrashed."""
        ...

    async def prepare(self, constraint: Constraint) -> None:
        """Have a constraint compiled by any replica. Raises a RequestError and InputCrashed."""
        ...

    async def steer(
        self, replica: str, request_id: str, action: str, priority: int
    ) -> PauseOutcome | None:
        """Pause, resume or reprioritise a request on its replica; the outcome of a pause.

        Raises ReplicaLost.
        """
        ...


class FleetBackend:
    """The texts of the fleet: any replica makes tokens of them. Any thread but the loop's."""

    def __init__(
        self, dispatch: Dispatch, description: Description, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._dispatch = dispatch
        self._loop = loop
        self._is_wanted: Wanted = lambda: True
        self.traits: Traits = description.traits
        self.vocabulary: Vocabulary = description.vocabulary

    def while_wanted(self, is_wanted: Wanted) -> "FleetBackend":
        """The same for one caller: no replica is waited for when that one waits no more."""
        of_one = copy(self)
        of_one._is_wanted = is_wanted
        return of_one

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of all texts in order. Raises GivenUp and InputCrashed."""
        asked = asyncio.run_coroutine_threadsafe(self._dispatch.encode(texts), self._loop)
        return self._waited(asked)

    def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint, so that a mistake is found. Raises a RequestError and GivenUp."""
        asked = asyncio.run_coroutine_threadsafe(self._dispatch.prepare(constraint), self._loop)
        self._waited(asked)

    def _waited(self, asked: "Future[Answered]") -> Answered:
        """What a replica answered. Raises QueueFull if none does for a long time, and GivenUp."""
        for _ in range(math.ceil(ENCODE_S_MAX / LOOK_S)):
            if wait([asked], LOOK_S).done:
                return asked.result()
            if not self._is_wanted():
                asked.cancel()
                raise GivenUp
        asked.cancel()
        raise QueueFull(f"No replica answered within {ENCODE_S_MAX:g} s; try again later.", 5.0)


def forget_error(ended: "asyncio.Future[Any]") -> None:
    """Look at the error of a call that nobody waits for any more."""
    if not ended.cancelled():
        ended.exception()
