"""Replicas in this process, over real engines and real connections, that a test can kill."""

import asyncio
import contextlib
import inspect
import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from jitney.backends.fake import backend as fake_backend
from jitney.backends.fake import kind
from jitney.config import Settings
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.loading.compose import assemble
from jitney.records import Record, RequestDone
from jitney.tokenizers.byte_tokenizer import encode
from jitney_cluster.dispatch import ReplicaLost, describe
from jitney_cluster.fleet import ReplicaFleet
from jitney_cluster.replica_engine import ReplicaEngine
from jitney_cluster.replica_messages import Address, Order, OrderAccepted, OrderStarted
from jitney_cluster.routing import Head, ReplicaReport, RouteTable

Recorded = TypeVar("Recorded", bound=Record)

TICK_S = 0.002
SETTINGS = Settings(backend="fake", max_num_seqs=4, max_model_len=512)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own, for a minute at most."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def bounded() -> None:
        LOOPS.append(asyncio.get_running_loop())
        try:
            async with asyncio.timeout(60):
                await pyfuncitem.obj(**arguments)
        finally:
            LOOPS.clear()

    asyncio.run(bounded())
    return True


LOOPS: list[asyncio.AbstractEventLoop] = []
"""The loop of the test that runs."""


def pass_time(seconds: float) -> None:
    """A pass takes this long, and until the test's loop has turned.

    So a test that polls sees every pass, however busy the machine is: what it does while requests
    run happens while they do.
    """
    threading.Event().wait(seconds)
    turned = threading.Event()
    for loop in LOOPS:
        with contextlib.suppress(RuntimeError):  # it is closed: the test has ended
            loop.call_soon_threadsafe(turned.set)
            turned.wait(10)


@pytest.fixture(autouse=True)
def _slow_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes a moment (`pass_time`)."""
    monkeypatch.setattr(fake_backend, "sleep", pass_time)
    usual = kind.KIND.values
    slow = {"tick_s": TICK_S, "sleeps": True}
    paced = replace(kind.KIND, values=lambda *given: {**usual(*given), **slow})
    monkeypatch.setattr(kind, "KIND", paced)


class LocalDispatch:
    """Sends orders to replicas of this process, as a router on Ray would."""

    def __init__(self) -> None:
        self.table = RouteTable("")
        self.replicas: dict[str, ReplicaEngine] = {}
        self.running: dict[str, set[asyncio.Task[None]]] = {}
        self.sent: list[str] = []
        """The replicas that got orders, in order."""
        self.begun: list[tuple[str, int]] = []
        """The orders that have a token, as far as the router knows."""
        self.poison: RequestId | None = None
        """A request that ends every replica before it has a token."""
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

    def cut(self, name: str) -> None:
        """End the connections of a replica that lives on."""
        for connection in self.replicas[name]._connected():
            connection.close()

    async def kill(self, name: str) -> None:
        """End a replica without a word, as a kill of its process does."""
        self.cut(name)
        replica = self.replicas.pop(name)
        self.table.keep(self.replicas)
        for task in self.running.pop(name):
            task.cancel()
        await replica.close()

    async def run(self, order: Order) -> None:
        head, number, avoided = order.head, order.number, order.avoided
        self.begun.extend(order.begun)
        for place in order.begun:
            self.table.began(*place)
        # As on Ray: where none is left but those to avoid, one of these is asked.
        while (  # noqa: ASYNC110, a test polls
            name := self.table.choose(head, avoided) or self.table.choose(head)
        ) is None:
            await asyncio.sleep(0.005)
        self.sent.append(name)
        if name in self.silent:
            await asyncio.Event().wait()
        if order.request_id == self.poison:
            self.poisoned.append(name)
            assert self.fleet is not None
            self.fleet._take(name, OrderAccepted(order.request_id, order.attempt))
            self.fleet._take(name, OrderStarted(order.request_id, order.attempt, 0))
            self.add()
            await self.kill(name)
            raise ReplicaLost(name)
        request_id = str(number)
        self.table.sent(name, request_id, number, head)
        task = asyncio.ensure_future(self.replicas[name].run(order))
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

    async def call(
        self,
        method: str,
        *arguments: Any,
        connected: tuple[str, ...] = (),
        target: str | None = None,
    ) -> Any:
        others = [each for each in self.replicas if each not in connected]
        name = target or (others or list(self.replicas))[0]
        try:
            return await getattr(self.replicas[name], method)(*arguments)
        except OSError as error:
            raise ReplicaLost(str(error)) from error


class Cluster:
    """A fleet over local replicas."""

    def __init__(self, count: int, settings: Settings = SETTINGS) -> None:
        self.dispatch = LocalDispatch()
        self.records: list[Record] = []
        """What observers got."""
        self._settings = settings
        self._count = count
        for _ in range(count):
            self.add()

    async def __aenter__(self) -> "Cluster":
        description = await describe(self.dispatch)
        self.fleet = ReplicaFleet(
            self.dispatch, description, replica_count=self._count, host="127.0.0.1"
        )
        self.dispatch.fleet = self.fleet
        self.fleet.observe(self.records.append)
        await self.fleet.open()
        return self

    async def __aexit__(self, *ended: object) -> None:
        await asyncio.to_thread(self.fleet.close)
        for name in list(self.dispatch.replicas):
            await self.dispatch.kill(name)

    def add(self) -> str:
        """Start another replica."""
        return self.dispatch.add(self._settings)

    def recorded(self, kind: type[Recorded]) -> list[Recorded]:
        """The records of a kind."""
        return [each for each in self.records if isinstance(each, kind)]

    async def texts(self, requests: list[Request]) -> list[str]:
        """The text of each request, read as a stream."""

        async def read(request: Request) -> str:
            return "".join([delta.text async for delta in self.fleet.send(request)])

        return list(await asyncio.gather(*(read(request) for request in requests)))

    async def made(self, count: int) -> None:
        """Wait until the requests have so many tokens in all."""
        live = self.fleet._live
        await until(
            lambda: (
                sum(each.token_count for each in live.values())
                + sum(each.generated_tokens for each in self.recorded(RequestDone))
                >= count
            )
        )


IDLE_REPORT = ReplicaReport(
    slot_count=4,
    running_count=0,
    waiting_count=0,
    prefill_tokens=0,
    kv_free=100_000,
    tick_s=0.01,
    prefill_token_s=1e-3,
    ends_per_s=1.0,
    heads=frozenset(),
)
SLOW: dict[str, Any] = {"max_tokens": 200}
"""Parameters of a request that lasts until a test has done something."""

_NUMBERS = itertools.count(1)


def make_request(prompt: str = "a prompt", *, scope: str = "", **params: object) -> Request:
    """A request with a text as its prompt."""
    values = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True} | params
    return Request(
        id=RequestId(f"q{next(_NUMBERS)}"),
        prompt=tuple(encode(prompt, special=False)),
        params=SamplingParams(**values),  # type: ignore[arg-type]
        seed=7,
        scope=scope,
    )


def make_order(address: Address, number: int, head: Head, **values: Any) -> Order:
    """The first order for a request, unless other values are given."""
    order = Order(
        address=address,
        number=number,
        attempt=1,
        waited_s=0.0,
        model_key="fake",
        request_id="q",
        request=b"",
        head=head,
    )
    return replace(order, **values)


make_cluster: Callable[..., Any] = Cluster
"""Any: tests change what a Cluster does."""


async def until(is_so: Callable[[], object]) -> None:
    """Wait until something is so. The time of a test is bounded."""
    while not is_so():  # noqa: ASYNC110, a test polls
        await asyncio.sleep(0.001)
