"""A fleet on Ray, put together for a server: `assemble_cluster`. Main thread.

The fleet has a thread and an event loop of its own, as an engine has. Ray is loaded only here, when
a fleet is asked for.

Tests: tests/e2e/cluster/test_on_ray.py, tests/unit/cluster/test_serving.py.
"""

import asyncio
import importlib
import importlib.util
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from jitney.backends.machine.cores import usable_cores
from jitney.config import ServeSettings, Settings, environment
from jitney.config.machine import add_to_environment
from jitney.engine.request_factory import RequestFactory, seed_source
from jitney.errors import ConfigError, MissingDependency, NoRoom
from jitney.loading import ready_model
from jitney.loading.compose import make_template, model_key
from jitney.loading.model_source import located, takes_model
from jitney.text.chat_template import ChatTemplate, Renderer
from jitney.version import install_line
from jitney_cluster.dispatch import Dispatch, connect_replicas
from jitney_cluster.fleet import ReplicaFleet
from jitney_cluster.own_ray import closed_environment, warn_of_open_token

Output = TypeVar("Output")

EXTRA = install_line("cluster")
STOP_S = 10.0
LOADED_S_MAX = 1800.0
"""An ingress of Ray's own commands is started beside its replicas, and they may fetch a model
first. Where none has one by then, none ever will."""


@dataclass(frozen=True, slots=True)
class ClusterAssembly:
    """What a server of a fleet is made of; `close` ends all of it."""

    engine: ReplicaFleet
    request_factory: RequestFactory
    template: ChatTemplate | None
    model_name: str
    thread: "FleetThread"
    stop: Callable[[], None]
    """Ends what was started for the fleet."""

    def close(self, drain_s: float = 0.0) -> None:
        """End the fleet, and what was started for it."""
        self.engine.close(drain_s)
        self.thread.close()
        if self.template is not None:
            self.template.close()
        self.stop()


class FleetThread:
    """A thread that runs an event loop, with a fleet on it."""

    def __init__(self, dispatch: Dispatch, replica_count: int, host: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="jitney-fleet", daemon=True
        )
        self._thread.start()
        self._connecting: asyncio.Task[None] | None = None
        opening = self._open(dispatch, replica_count, host)
        try:
            self.fleet, self.model_name = self._call(opening).result()
        except Exception:
            self.close()
            self._loop.close()
            raise

    def close(self) -> None:
        """End the loop and the thread."""
        # Not even a stuck loop keeps the server from ending.
        wait([self._call(self._stop_connecting())], STOP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)

    def _call(self, work: Coroutine[None, None, Output]) -> Future[Output]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open(
        self, dispatch: Dispatch, replica_count: int, host: str
    ) -> tuple[ReplicaFleet, str]:
        try:
            async with asyncio.timeout(LOADED_S_MAX):
                description = await dispatch.describe()
        except TimeoutError:
            raise NoRoom(
                f"No replica has loaded the model within {LOADED_S_MAX:g} s; see the replicas' "
                "logs."
            ) from None
        fleet = ReplicaFleet(dispatch, description, replica_count=replica_count, host=host)
        connecting = connect_replicas(dispatch, await fleet.open(), fleet.replica_names)
        self._connecting = self._loop.create_task(connecting)
        return fleet, description.model_name

    async def _stop_connecting(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})


def assemble_cluster(settings: Settings, serving: ServeSettings) -> ClusterAssembly:
    """Start or join Ray, start the replicas, and make a fleet of them. Raises a SetupError."""
    if importlib.util.find_spec("ray") is None:
        raise MissingDependency(f"Replicas need the package ray, which is not installed; {EXTRA}.")
    address = serving.ray_address
    if address is None:
        # Before Ray is imported, which reads it then.
        add_to_environment(closed_environment(environment()))
    warn_of_open_token(environment(), address)
    on_ray = importlib.import_module("jitney_cluster.on_ray")
    bounds = replica_bounds(serving)
    one = _of_one_replica(settings, bounds[1], address)
    if address is None and takes_model(one):
        # What is wrong with the model is said before Ray starts.
        ready_model(located(one))
    # On a cluster each server has its own replicas. One that is started again takes over those
    # that a killed one left.
    name = f"{on_ray.APPLICATION}-{socket.gethostname()}-{serving.port}"
    stop = partial(on_ray.stop_ray, address, name)
    on_ray.start_ray(address)
    try:
        handle = on_ray.start_replicas(one, bounds, name, drain_s=serving.shutdown_timeout)
        # Ray on this machine alone needs no other address than its own.
        host = "127.0.0.1" if address is None else on_ray.own_host()
        dispatch = on_ray.RayDispatch(handle, model_key(one))
        return assemble_fleet(dispatch, one, bounds[1], host, stop)
    except BaseException:
        stop()
        raise


def assemble_fleet(
    dispatch: Dispatch, settings: Settings, replica_count: int, host: str, stop: Callable[[], None]
) -> ClusterAssembly:
    """A fleet of the replicas behind `dispatch`, with what a server needs beside it."""
    thread = FleetThread(dispatch, replica_count, host)
    fleet = thread.fleet
    model_len_max = fleet.settings.model_len_max
    renderer = Renderer()
    renderer.spawn()
    return ClusterAssembly(
        fleet,
        RequestFactory(fleet.backend, model_len_max, seed_source(settings.seed)),
        make_template(fleet.backend.vocabulary, model_len_max, renderer),
        thread.model_name,
        thread,
        stop,
    )


def replica_bounds(serving: ServeSettings) -> tuple[int, int]:
    """The fewest and the most replicas. Raises ConfigError."""
    least = serving.replicas or 1
    most = serving.max_replicas or least
    if most < least:
        raise ConfigError(
            f"max_replicas ({most}) is below replicas ({least}); raise it or leave it out."
        )
    return least, most


def _of_one_replica(settings: Settings, count: int, address: str | None) -> Settings:
    """The settings of each replica. On one machine they share the cores."""
    if settings.threads is not None or address is not None:
        return settings
    return replace(settings, threads=max(1, usable_cores() // count))
