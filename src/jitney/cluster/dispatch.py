"""The way to the replicas, and what a server needs of them to make requests from texts.

Tests: tests/unit/cluster/test_fleet.py.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol, TypeVar

from jitney.cluster.replica_messages import Description
from jitney.cluster.routing import Head
from jitney.core.backend import Segment, Traits, Vocabulary
from jitney.core.params import Constraint
from jitney.errors import QueueFull

ENCODE_S_MAX = 60.0

Answered = TypeVar("Answered")


class ReplicaLost(Exception):
    """The replica that ran something is gone; somebody else can run it."""


class Dispatch(Protocol):
    """The way to the replicas. It chooses one for each order."""

    async def run(
        self, frame: bytes, ingress: str, head: Head, number: int, avoided: tuple[str, ...]
    ) -> None:
        """Have an order run to its end. Raises ReplicaLost."""
        ...

    async def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Have texts tokenised by any replica."""
        ...

    async def prepare(self, constraint: Constraint) -> None:
        """Have a constraint compiled by any replica. Raises a RequestError."""
        ...

    async def steer(self, replica: str, request_id: str, action: str, priority: int) -> None:
        """Pause, resume or reprioritise a request on its replica."""
        ...


class FleetBackend:
    """The texts of the fleet: any replica makes tokens of them. Any thread but the loop's."""

    def __init__(
        self, dispatch: Dispatch, description: Description, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._dispatch = dispatch
        self._loop = loop
        self.traits: Traits = description.traits
        self.vocabulary: Vocabulary = description.vocabulary

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of all texts in order."""
        asked = asyncio.run_coroutine_threadsafe(self._dispatch.encode(texts), self._loop)
        return _waited(asked)

    def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint, so that a mistake in it is found. Raises a RequestError."""
        asked = asyncio.run_coroutine_threadsafe(self._dispatch.prepare(constraint), self._loop)
        _waited(asked)


def _waited(asked: "Future[Answered]") -> Answered:
    """What a replica answered. Raises QueueFull if none does for a long time."""
    try:
        return asked.result(ENCODE_S_MAX)
    except TimeoutError:
        asked.cancel()
        raise QueueFull(
            f"No replica answered within {ENCODE_S_MAX:g} s; try again later.", 5.0
        ) from None
