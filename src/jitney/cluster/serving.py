"""A fleet on Ray, put together for a server: `assemble_cluster`. Main thread.

The fleet has a thread and an event loop of its own, as an engine has. Ray is loaded only here, when
a fleet is asked for.

Tests: tests/e2e/cluster/test_on_ray.py.
"""

import asyncio
import importlib
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol  # Any: the module of Ray

from jitney.backends.machine.cores import usable_cores
from jitney.cluster.dispatch import Dispatch
from jitney.cluster.fleet import ReplicaFleet
from jitney.cluster.replica_messages import Description
from jitney.config import Settings
from jitney.engine.request_factory import RequestFactory
from jitney.errors import MissingDependency
from jitney.loading.compose import make_seed_source, make_template
from jitney.text.chat_template import ChatTemplate
from jitney.text.renderer import Renderer

EXTRA = 'pip install "jitney[cluster]"'
STOP_S = 10.0


class DescribedDispatch(Dispatch, Protocol):
    """A way to replicas that can say what they have loaded."""

    async def describe(self) -> Description:
        """What the replicas have loaded."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterAssembly:
    """What a server of a fleet is made of; `close` ends all of it."""

    engine: ReplicaFleet
    request_factory: RequestFactory
    template: ChatTemplate | None
    model_name: str
    thread: "FleetThread"
    on_ray: Any
    address: str | None

    def close(self, drain_s: float = 0.0) -> None:
        """End the replicas, and Ray if it was started here."""
        self.engine.close(drain_s)
        self.thread.close()
        if self.template is not None:
            self.template.close()
        self.on_ray.stop_ray(self.address)


class FleetThread:
    """A thread that runs an event loop, with a fleet on it."""

    def __init__(self, dispatch: DescribedDispatch, replica_count: int, host: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="jitney-fleet", daemon=True
        )
        self._thread.start()
        opening: Future[tuple[ReplicaFleet, str]] = asyncio.run_coroutine_threadsafe(
            _open_fleet(dispatch, replica_count, host), self._loop
        )
        self.fleet, self.model_name = opening.result()

    def close(self) -> None:
        """End the loop and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)


def assemble_cluster(
    settings: Settings, replica_count: int, address: str | None
) -> ClusterAssembly:
    """Start or join Ray, start the replicas, and make a fleet of them. Raises a SetupError."""
    try:
        on_ray = importlib.import_module("jitney.cluster.on_ray")
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"Replicas need the package {error.name}, which is not installed; {EXTRA}."
        ) from error
    on_ray.start_ray(address)
    try:
        handle = on_ray.start_replicas(
            _of_one_replica(settings, replica_count, address), replica_count, cpus=0
        )
        # Ray on this machine alone needs no other address than its own.
        host = "127.0.0.1" if address is None else on_ray.own_host()
        thread = FleetThread(on_ray.RayDispatch(handle), replica_count, host)
    except BaseException:
        on_ray.stop_ray(address)
        raise
    fleet = thread.fleet
    model_len_max = fleet.settings.model_len_max
    renderer = Renderer()
    renderer.spawn()
    return ClusterAssembly(
        fleet,
        RequestFactory(fleet.backend, model_len_max, make_seed_source(settings.seed)),
        make_template(fleet.backend.vocabulary, model_len_max, renderer),
        thread.model_name,
        thread,
        on_ray,
        address,
    )


async def _open_fleet(
    dispatch: DescribedDispatch, replica_count: int, host: str
) -> tuple[ReplicaFleet, str]:
    description = await dispatch.describe()
    fleet = ReplicaFleet(dispatch, description, replica_count=replica_count, host=host)
    await fleet.open()
    return fleet, description.model_name


def _of_one_replica(settings: Settings, count: int, address: str | None) -> Settings:
    """The settings of each replica. On one machine they share the cores."""
    if settings.threads is not None or address is not None:
        return settings
    return replace(settings, threads=max(1, usable_cores() // count))
