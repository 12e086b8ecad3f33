"""A fleet on Ray, put together for a server: `assemble_cluster`. Main thread.

The fleet has a thread and an event loop of its own, as an engine has. Ray is loaded only here, when
a fleet is asked for.

Tests: tests/e2e/cluster/test_on_ray.py, tests/unit/cluster/test_serving.py.
"""

import asyncio
import contextlib
import importlib
import importlib.util
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from jitney.backends.machine.cores import usable_cores
from jitney.config import ServeSettings, Settings, environment
from jitney.config.machine import add_to_environment
from jitney.engine.request_factory import RequestFactory, seed_source
from jitney.errors import ConfigError, MissingDependency, NoRoom
from jitney.loading import ready_model
from jitney.loading.compose import make_template, model_key
from jitney.loading.model_source import located, takes_model
from jitney.text.chat_template import Renderer
from jitney.version import install_line
from jitney_cluster.dispatch import Dispatch, connect_replicas, describe
from jitney_cluster.fleet import ReplicaFleet
from jitney_cluster.own_ray import closed_environment, warn_of_open_token

EXTRA = install_line("cluster")
STOP_S = 10.0
LOADED_S_MAX = 1800.0
"""An ingress of Ray's own commands is started beside its replicas, and they may fetch a model
first. Where none has one by then, none ever will."""

NOT_LOADED = "No replica has loaded the model within {:g} s; see the replicas' logs."


class ClusterAssembly:
    """A fleet of the replicas behind `dispatch`, with what a server needs beside it.

    The fleet has a thread, which runs its event loop. `close` ends all of it, and calls `stop`.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        settings: Settings,
        replica_count: int,
        host: str,
        stop: Callable[[], None],
    ) -> None:
        """Raises NoRoom."""
        self._stop = stop
        self._opened: Future[tuple[ReplicaFleet, str]] = Future()
        running = self._run(dispatch, replica_count, host)
        self._thread = threading.Thread(
            target=asyncio.run, args=(running,), name="jitney-fleet", daemon=True
        )
        self._thread.start()
        try:
            self.engine, self.model_name = self._opened.result()
        except BaseException:
            self._thread.join(STOP_S)
            raise
        backend, model_len_max = self.engine.backend, self.engine.settings.model_len_max
        self.request_factory = RequestFactory(backend, model_len_max, seed_source(settings.seed))
        renderer = Renderer()
        renderer.spawn()
        self.template = make_template(backend.vocabulary, model_len_max, renderer)

    def close(self, drain_s: float = 0.0) -> None:
        """End the fleet, its loop with all tasks, and what was started for it."""
        self.engine.close(drain_s)
        with contextlib.suppress(RuntimeError):  # it was closed before, or the loop has ended
            self._loop.call_soon_threadsafe(self._is_closing.set)
        # Not even a stuck loop keeps the server from ending.
        self._thread.join(STOP_S)
        if self.template is not None:
            self.template.close()
        self._stop()

    async def _run(self, dispatch: Dispatch, replica_count: int, host: str) -> None:
        self._loop, self._is_closing = asyncio.get_running_loop(), asyncio.Event()
        limit = asyncio.timeout(LOADED_S_MAX)
        try:
            async with limit:
                description = await describe(dispatch)
            fleet = ReplicaFleet(dispatch, description, replica_count=replica_count, host=host)
            address = await fleet.open()
        except BaseException as error:
            # Whoever opens the fleet waits for this without a limit of its own.
            late = NoRoom(NOT_LOADED.format(LOADED_S_MAX))
            self._opened.set_exception(late if limit.expired() else error)
        else:
            self._opened.set_result((fleet, description.model_name))
            names = fleet.replica_names
            self._connecting = asyncio.create_task(connect_replicas(dispatch, address, names))
            await self._is_closing.wait()


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
        if address is None:
            on_ray.check_gpus(one, bounds[0])
        handle = on_ray.start_replicas(one, bounds, name, drain_s=serving.shutdown_timeout)
        # Ray on this machine alone needs no other address than its own.
        host = "127.0.0.1" if address is None else on_ray.own_host()
        dispatch = on_ray.RayDispatch(handle, model_key(one))
        return ClusterAssembly(dispatch, one, bounds[1], host, stop)
    except BaseException:
        stop()
        raise


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
