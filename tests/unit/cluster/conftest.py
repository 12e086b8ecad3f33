"""Replicas in this process, over real engines and real connections, that a test can kill."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from jitney.backends.fake import kind
from jitney.config import Settings
from jitney.core.backend import Segment
from jitney.core.params import Constraint, SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.rules.pauses import PauseOutcome
from jitney.loading.compose import assemble
from jitney.tokenizers.byte_tokenizer import encode
from jitney_cluster.dispatch import ReplicaLost
from jitney_cluster.fleet import ReplicaFleet
from jitney_cluster.replica_engine import ReplicaEngine
from jitney_cluster.replica_messages import (
    Accepted,
    Address,
    Started,
    decode_description,
    decode_run,
)
from jitney_cluster.routing import RouteTable, Sought

Made = TypeVar("Made")
TICK_S = 0.002
SETTINGS = Settings(backend="fake", max_num_seqs=4, max_model_len=512)


@pytest.fixture(autouse=True)
def _slow_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes a moment: what a test does while requests run must happen while they do."""
    usual = kind.KIND.values
    slow = {"tick_s": TICK_S, "sleeps": True}
    paced = replace(kind.KIND, values=lambda *given: {**usual(*given), **slow})
    monkeypatch.setattr(kind, "KIND", paced)


class HandClock:
    """A clock that the test moves."""

    def __init__(self, at: float = 0.0) -> None:
        self.at = at

    def now(self) -> float:
        return self.at


class LocalDispatch:
    """Sends orders to replicas of this process, as a router on Ray would."""

    def __init__(self) -> None:
        self.table = RouteTable("")
        self.replicas: dict[str, ReplicaEngine] = {}
        self.running: dict[str, set[asyncio.Task[None]]] = {}
        self.sent: list[str] = []
        """The replicas that got orders, in order."""
        self.begun: list[tuple[str, int]] = []
        """The orders of which it was told that they have a token."""
        self.poison: RequestId | None = None
        """A request that ends every replica before it makes a token."""
        self.poisoned: list[str] = []
        self.silent: set[str] = set()
        """Replicas that take no more orders, and say nothing of it."""
        self.fleet: ReplicaFleet | None = None
        self._number = 0

    def add(self, settings: Settings = SETTINGS) -> str:
        """Start a replica."""
        self._number += 1
        name = f"r{self._number}"
        self.replicas[name] = ReplicaEngine(assemble(settings), name)
        self.running[name] = set()
        self.table.keep(self.replicas)
        return name

    async def kill(self, name: str) -> None:
        """End a replica without a word, as a kill of its process does."""
        replica = self.replicas.pop(name)
        self.table.keep(self.replicas)
        for connecting in replica._lines.values():
            (await connecting).close()
        for task in self.running.pop(name):
            task.cancel()
        await replica.close()

    async def run(self, frame: bytes, sought: Sought) -> None:
        head, number, avoided = sought.head, sought.number, sought.avoided
        self.begun.extend(sought.begun)
        for place in sought.begun:
            self.table.began(*place)
        # As on Ray: where none is left but those to avoid, one of these is asked.
        while (  # noqa: ASYNC110, a test polls
            name := self.table.choose(head, avoided) or self.table.choose(head)
        ) is None:
            await asyncio.sleep(0.005)
        self.sent.append(name)
        if name in self.silent:
            await asyncio.Event().wait()
        order = decode_run(frame)
        if order.wanted.id == self.poison:
            self.poisoned.append(name)
            assert self.fleet is not None
            self.fleet._take(name, Accepted(order.wanted.id, order.attempt))
            self.fleet._take(name, Started(order.wanted.id, order.attempt, 0))
            self.add()
            await self.kill(name)
            raise ReplicaLost(name)
        request_id = str(number)
        self.table.sent(name, request_id, number, head)
        task = asyncio.ensure_future(self.replicas[name].run(frame))
        self.running[name].add(task)
        try:
            await task
        except asyncio.CancelledError:
            if task.cancelled() and name not in self.replicas:
                raise ReplicaLost(name) from None
            raise
        finally:
            self.table.ended(name, request_id)
            self.running.get(name, set()).discard(task)

    async def meet(self, address: Address, met: tuple[str, ...]) -> None:
        unmet = [each for name, each in self.replicas.items() if name not in met]
        try:
            for replica in unmet[:1]:
                await replica.meet(address)
        except OSError as error:
            raise ReplicaLost(str(error)) from error

    async def encode(self, texts: Sequence[Segment]) -> list[int]:
        return await next(iter(self.replicas.values())).encode(texts)

    async def prepare(self, constraint: Constraint) -> None:
        await next(iter(self.replicas.values())).prepare(constraint)

    async def steer(
        self, replica: str, request_id: str, action: str, priority: int
    ) -> PauseOutcome | None:
        return await self.replicas[replica].steer(request_id, action, priority)


class Cluster:
    """A fleet over local replicas."""

    def __init__(self, count: int, settings: Settings = SETTINGS) -> None:
        self.dispatch = LocalDispatch()
        self._settings = settings
        names = [self.dispatch.add(settings) for _ in range(count)]
        description = decode_description(self.dispatch.replicas[names[0]].describe())
        self.fleet = ReplicaFleet(self.dispatch, description, replica_count=count)
        self.dispatch.fleet = self.fleet

    async def __aenter__(self) -> "Cluster":
        await self.fleet.open()
        return self

    async def __aexit__(self, *ended: object) -> None:
        await asyncio.to_thread(self.fleet.close)
        for name in list(self.dispatch.replicas):
            await self.dispatch.kill(name)

    def add(self) -> str:
        """Start another replica."""
        return self.dispatch.add(self._settings)


@pytest.fixture
def make_request() -> Callable[..., Request]:
    """A request with a text as its prompt."""
    count = 0

    def make(prompt: str = "a prompt", *, scope: str = "", **params: object) -> Request:
        nonlocal count
        count += 1
        values = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True} | params
        return Request(
            id=RequestId(f"q{count}"),
            prompt=tuple(encode(prompt, special=False)),
            params=SamplingParams(**values),  # type: ignore[arg-type]
            seed=7,
            scope=scope,
        )

    return make


@pytest.fixture
def make_cluster() -> Callable[..., Cluster]:
    """A cluster with so many replicas. Made inside an event loop."""
    return Cluster


@pytest.fixture
def in_loop() -> Callable[[Callable[[], Awaitable[Made]]], Made]:
    """Run a test's coroutine, for a minute at most."""

    def run(test: Callable[[], Awaitable[Made]]) -> Made:
        async def bounded() -> Made:
            async with asyncio.timeout(60):
                return await test()

        return asyncio.run(bounded())

    return run
