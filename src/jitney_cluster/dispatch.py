"""The way to the replicas, and what a server needs of them to make requests from texts.

Tests: tests/unit/cluster/test_fleet.py, test_fleet_texts.py and test_connect_replicas.py.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from copy import copy
from typing import Any, Protocol  # Any: arguments and results of any call

from jitney.core.backend import Segment, Traits, Vocabulary
from jitney.core.limits import FAILURES_MAX
from jitney.core.params import Constraint
from jitney.engine.request_factory import GivenUp
from jitney.errors import InputCrashed, QueueFull
from jitney_cluster.replica_messages import Address, Description, Order

_log = logging.getLogger("jitney")

ENCODE_S_MAX = 60.0
LOOK_S = 0.25
"""How often a wait for a replica looks whether its caller still waits."""

CONNECT_S = 0.5
"""Until the next replica is asked to connect after one that did, as there may be more; and while
none is connected."""

QUIET_S = 5.0
"""Until the next one is asked after one that did not. A call through Serve takes 10 ms."""

CONNECT_S_MAX = 5.0
"""A replica that has not connected by then is stuck, and another one may be asked."""

AGAIN_S = 0.1
"""Before another one is asked."""

DESCRIBED_S_MAX = 30.0
"""A replica that has not said by then what it has loaded is stuck, and another one is asked."""


class ReplicaLost(Exception):
    """The replica that ran something is gone; somebody else can run it."""


class ReplicaDied(ReplicaLost):
    """Its process has ended, perhaps because of this."""


class Dispatch(Protocol):
    """The way to the replicas. Both calls raise ReplicaLost."""

    async def run(self, order: Order) -> None:
        """Have an order run to its end, on the replica that is best for it."""

    async def call(self, method: str, *arguments: Any, **routing: Any) -> Any:
        """The result of a method of `ReplicaEngine` on a replica. Raises its error.

        That replica is the `target`, or one that is not among the `connected`, or any.
        """


async def call_any(dispatch: Dispatch, method: str, argument: object) -> Any:
    """Call replicas until one answers: what is asked changes nothing. Raises its error, and
    InputCrashed when FAILURES_MAX replicas have died of it."""
    deaths = 0
    while deaths < FAILURES_MAX:
        try:
            return await dispatch.call(method, argument)
        except ReplicaLost as error:
            deaths += isinstance(error, ReplicaDied)
            await asyncio.sleep(AGAIN_S)
    raise InputCrashed("Every replica that read this was lost.", deaths=deaths)


async def describe(dispatch: Dispatch) -> Description:
    """What the replicas have loaded. Asks until one says it: bounded by its caller."""
    while True:
        try:
            async with asyncio.timeout(DESCRIBED_S_MAX):
                description: Description = await dispatch.call("describe")
                return description
        except (ReplicaLost, TimeoutError):
            await asyncio.sleep(AGAIN_S)


class FleetBackend:
    """The texts of the fleet: any replica makes tokens of them. Any thread but the loop's."""

    def __init__(
        self, dispatch: Dispatch, description: Description, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._dispatch = dispatch
        self._loop = loop
        self._is_wanted: Callable[[], bool] = lambda: True
        self.traits: Traits = description.traits
        self.vocabulary: Vocabulary = description.vocabulary

    def while_wanted(self, is_wanted: Callable[[], bool]) -> "FleetBackend":
        """The same for one caller: no replica is waited for when that one waits no more."""
        of_one = copy(self)
        of_one._is_wanted = is_wanted
        return of_one

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of all texts in order. Raises GivenUp and InputCrashed."""
        return list(self._ask("encode", list(texts)))

    def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint, so that a mistake is found. Raises a RequestError and GivenUp."""
        self._ask("prepare", constraint)

    def _ask(self, method: str, argument: object) -> Any:
        """The result of a replica. Raises QueueFull if none comes for a long time, and GivenUp."""
        call = call_any(self._dispatch, method, argument)
        running = asyncio.run_coroutine_threadsafe(call, self._loop)
        for _ in range(math.ceil(ENCODE_S_MAX / LOOK_S)):
            if wait([running], LOOK_S).done:
                return running.result()
            if not self._is_wanted():
                running.cancel()
                raise GivenUp
        running.cancel()
        raise QueueFull(f"No replica answered within {ENCODE_S_MAX:g} s; try again later.", 5.0)


async def connect_replicas(
    dispatch: Dispatch, address: Address, names: Callable[[], tuple[str, ...]]
) -> None:
    """Have every replica connect to an ingress before it gets a request from it. Ends by a cancel.

    A replica knows of an ingress only what comes with a call. So one replica after the other is
    asked to connect, of those that are not among the `names` of the connected ones: at the start,
    and whenever a new one takes the place of a lost one. What people see depends on it, and whether
    the server is ready.
    """
    own_task = asyncio.current_task()
    assert own_task is not None
    while True:
        before = names()
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                await dispatch.call("connect", address, connected=before)
        except (ReplicaLost, TimeoutError):
            pass
        except asyncio.CancelledError:
            # A call that Ray itself has cancelled looks like this too.
            if own_task.cancelling():
                raise
        except Exception:  # Ray raises all kinds; the next question may be answered
            _log.exception("A replica could not be asked to connect")
        is_quiet = before and names() == before
        await asyncio.sleep(QUIET_S if is_quiet else CONNECT_S)


def forget_error(ended: "asyncio.Future[Any]") -> None:
    """Look at the error of a call that nobody waits for any more."""
    if not ended.cancelled():
        ended.exception()
