"""Replicas on Ray Serve: the deployment, the router, and the way to them. Imports Ray.

Serve starts replicas, watches them, replaces them, and drains those that leave. Orders go through a
handle of the deployment, so that Serve knows what runs where. What comes of them goes over the back
channel (`jitney_cluster.back_channel`).

Tests: tests/e2e/cluster/test_on_ray.py, tests/unit/cluster/test_on_ray.py.
"""

import asyncio
import logging
import random
import socket
from contextlib import suppress
from dataclasses import asdict, fields
from typing import Any  # Any: Ray has no types for handles and statistics

import ray
from ray import serve
from ray.exceptions import ActorDiedError, RayError
from ray.serve.config import (
    AutoscalingConfig,
    AutoscalingContext,
    AutoscalingPolicy,
    RequestRouterConfig,
)
from ray.serve.exceptions import RayServeException
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from jitney.backends.torch.kind import has_gpu
from jitney.config import Settings
from jitney.errors import ConfigError, InputCrashed, NoRoom, QueueFull, RequestError, SetupError
from jitney.loading import select_backend_if_known
from jitney.loading.compose import assemble
from jitney.loading.model_source import located_if_fetched
from jitney.sandbox.sent_error import SentError
from jitney_cluster.dispatch import ReplicaDied, ReplicaLost
from jitney_cluster.replica_count import ReplicaLoad, needed_count
from jitney_cluster.replica_engine import ReplicaEngine
from jitney_cluster.replica_messages import Order
from jitney_cluster.replica_port import keep_on_loopback
from jitney_cluster.routing import RouteTable

APPLICATION = "jitney"
DEPLOYMENT = "Replica"
ONGOING_MAX = 100_000
"""Serve does not refuse: the engine does, and knows when there is room again."""

NOT_STARTED = "Ray could not be started"
REASON_CHARACTERS_MAX = 300
REPORT_S = 1.0
ANSWERS = (RequestError, QueueFull, InputCrashed)
"""Errors that every replica would answer with, or of which no other one may die. After any other
error, another replica is asked."""

REACH_S_MAX = 5.0

HEALTH_S = 5.0
LOOK_BACK_S = 10.0
SCALE_UP_S = 5.0
SCALE_DOWN_S = 60.0
"""How long more or fewer replicas must be needed before Serve starts or stops some."""


class RayReplica:
    """One engine. Serve makes it, and calls it on one event loop."""

    def __init__(self, settings: Settings) -> None:
        logging.getLogger("jitney").setLevel(logging.INFO)
        keep_on_loopback()
        self._assembly = assemble(settings)
        self._engine: ReplicaEngine | None = None

    async def run(self, order: Order) -> None:
        """Run an order to its end."""
        await self._here().run(order)

    async def call(self, method: str, *arguments: Any, model_key: str, **routing: Any) -> Any:
        """The result of a method of the engine, or an answer that no other replica would better.

        Fails if another replica has to be asked: also where another model is loaded. `routing` is
        for the router.
        """
        del routing
        engine = self._here()
        engine.check()
        engine.check_model(model_key)
        try:
            return await getattr(engine, method)(*arguments)
        except ANSWERS as error:
            return SentError.of(error, "replica")

    async def record_routing_stats(self) -> dict[str, Any]:
        """The state for the router. Serve asks for it every REPORT_S."""
        return {"report": await self._here().report(), "model_key": self._here().model_key}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The load for `needed_replicas`. Serve asks for it now and then."""
        return asdict(self._here().load())

    async def check_health(self) -> None:
        """Serve replaces a replica for which this raises."""
        self._here().check()

    def __del__(self) -> None:
        self._assembly.close(0.0)

    def _here(self) -> ReplicaEngine:
        if self._engine is None:
            name = serve.get_replica_context().replica_id.unique_id
            self._engine = ReplicaEngine(self._assembly, name)
        return self._engine


class FirstTokenRouter(RequestRouter):
    """Sends an order where its first token is expected soonest (`jitney_cluster.routing`)."""

    def initialize_state(self, **options: Any) -> None:
        """Called by Serve once, before the first request."""
        del options
        self._table: RouteTable | None = None
        self._reports: dict[str, Any] = {}
        """The reports that are in the table, as Serve has them."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The best candidate, then the others."""
        call = {} if pending_request is None else pending_request.kwargs
        order: Order | None = call.get("order")
        model_key = call.get("model_key") if order is None else order.model_key
        # A replica that did not report yet is asked: it refuses if it has another model.
        fitting = [
            each
            for each in candidate_replicas
            if each.routing_stats.get("model_key", model_key) in (model_key, None)
        ]
        # Where none is left, any may be asked, and says so.
        candidate_replicas = fitting if model_key and fitting else candidate_replicas
        named = {each.replica_id.unique_id: each for each in candidate_replicas}
        # Any can tokenise. Serve would ask the one with the fewest calls, which may be broken.
        unconnected = [each for each in named if each not in call.get("connected", ())]
        best = call.get("target", random.choice(unconnected or list(named)) if named else None)
        if order is not None:
            table = self._updated_table(order.address.ingress)
            for name, number in order.begun:
                table.began(name, number)
            unfit = {each for each in table.replicas if each not in named}
            best = table.choose(order.head, unfit.union(order.avoided))
        if best not in named:
            return [candidate_replicas]
        others = [each for name, each in named.items() if name != best]
        return [[named[best]], others]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """An order is on its way to this replica."""
        order: Order | None = pending_request.kwargs.get("order")
        if order is not None:
            request_id = pending_request.metadata.internal_request_id
            table = self._updated_table(order.address.ingress)
            table.sent(replica_id.unique_id, request_id, order.number, order.head)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """A call has ended."""
        if self._table is not None:
            self._table.ended(replica_id.unique_id, internal_request_id)

    def _updated_table(self, ingress: str) -> RouteTable:
        """The table with the replicas and the reports of this moment."""
        if self._table is None:
            self._table = RouteTable(ingress)
        replicas = {key.unique_id: each for key, each in self.curr_replicas.items()}
        self._table.keep(replicas)
        before, self._reports = self._reports, {}
        for name, replica in replicas.items():
            stats = self._reports[name] = replica.routing_stats
            if stats and stats is not before.get(name):
                self._table.report(name, stats["report"])
        return self._table


class RayDispatch:
    """The way to the replicas, through a handle of their deployment."""

    def __init__(self, handle: Any, model_key: str) -> None:
        self._handle = handle
        self._model_key = model_key

    async def run(self, order: Order) -> None:
        """Have an order run to its end. Raises ReplicaLost."""
        await self._result(self._handle.run.remote(order=order))

    async def call(self, method: str, *arguments: Any, **routing: Any) -> Any:
        """The result of a call on a replica with the model. Raises its error and ReplicaLost."""
        key = self._model_key
        answer = await self._result(
            self._handle.call.remote(method, *arguments, model_key=key, **routing)
        )
        if isinstance(answer, SentError):
            raise answer.error()
        return answer

    async def _result(self, response: Any) -> Any:
        """The result of a call. When this is cancelled, so is the call. Raises ReplicaLost."""
        try:
            return await response
        except asyncio.CancelledError as error:
            response.cancel()
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                raise ReplicaLost("Ray cancelled the call.") from error
            raise
        except (RayError, RayServeException, OSError) as error:
            kind = ReplicaDied if isinstance(error, ActorDiedError) else ReplicaLost
            raise kind(str(error)) from error


def needed_replicas(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """How many replicas the load needs. Serve's controller calls it."""
    known = context.aggregated_metrics or {}
    names = [each.name for each in fields(ReplicaLoad)]
    reporting = set.intersection(*(set(known.get(name, {})) for name in names))
    loads = [ReplicaLoad(**{name: known[name][replica] for name in names}) for replica in reporting]
    # The target has those that are being started too; the current number has not.
    return needed_count(loads, context.target_num_replicas), {}


def replica_deployment(settings: Settings, bounds: tuple[int, int], *, drain_s: float) -> Any:
    """The deployment of replicas, from the fewest to the most, with their settings."""
    least, most = bounds
    counted: dict[str, Any] = {"num_replicas": least}
    if most > least:
        policy = AutoscalingPolicy(policy_function=needed_replicas)
        counted = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=least,
                max_replicas=most,
                look_back_period_s=LOOK_BACK_S,
                upscale_delay_s=SCALE_UP_S,
                downscale_delay_s=SCALE_DOWN_S,
                policy=policy,
            )
        }
    return serve.deployment(
        RayReplica,
        name=DEPLOYMENT,
        **counted,
        max_ongoing_requests=ONGOING_MAX,
        health_check_period_s=HEALTH_S,
        # What runs longer on a replica that leaves is moved.
        graceful_shutdown_timeout_s=drain_s,
        ray_actor_options={"num_cpus": 0, "num_gpus": gpus_of_replica(settings)},
        request_router_config=RequestRouterConfig(
            request_router_class=FirstTokenRouter, request_routing_stats_period_s=REPORT_S
        ),
    ).bind(settings)


def gpus_of_replica(settings: Settings) -> int:
    """How many GPUs Ray gives each replica alone: one where PyTorch runs on it."""
    if settings.backend not in ("auto", "torch") or not has_gpu():
        return 0
    if settings.backend == "auto":
        # What is wrong with the model, the replicas say.
        with suppress(SetupError):
            here = located_if_fetched(settings)
            selection = None if here is None else select_backend_if_known(here)
            return int(selection is None or selection.name == "torch")
    return 1


def check_gpus(settings: Settings, count: int) -> None:
    """Raise ConfigError where so many replicas would wait for GPUs for ever. Ray must run."""
    has = int(ray.cluster_resources().get("GPU", 0))
    if count * gpus_of_replica(settings) > has:
        raise ConfigError(
            f"{count} replicas take a GPU each, and {has} are here; lower replicas, or give "
            "another backend."
        )


def start_replicas(
    settings: Settings, bounds: tuple[int, int], name: str, *, drain_s: float
) -> Any:
    """Start the replicas as an application, and return the handle for them. Ray must run.

    Raises SetupError.
    """
    replicas = replica_deployment(settings, bounds, drain_s=drain_s)
    try:
        return serve.run(replicas, name=name, route_prefix=None)
    except RuntimeError as error:  # What Serve raises when none of them gets ready.
        found = serve.status().applications.get(name)
        messages = [each.message for each in found.deployments.values()] if found else []
        reason = failure_in("\n".join(messages) or str(error))
        raise ConfigError(f"No replica could be started: {reason}") from error


def failure_in(message: str) -> str:
    """What a replica failed with, in the message of Serve about it: the end of a traceback."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith(f"{SetupError.__module__}.")]
    if own:
        return own[-1].partition(": ")[2][:REASON_CHARACTERS_MAX]
    reason = (lines or ["for a reason that Serve does not tell"])[-1]
    return f"{reason[:REASON_CHARACTERS_MAX]}; see the logs of Ray Serve."


def start_ray(address: str | None) -> None:
    """Join a cluster, or start Ray on this machine alone. Raises SetupError."""
    logging.getLogger("ray").setLevel(logging.WARNING)
    # Without an address Ray would join whatever it finds here, or RAY_ADDRESS.
    own = {"address": "local", "include_dashboard": False}
    options = own if address is None else {"address": address}
    _check_reachable(address)
    try:
        ray.init(**options, log_to_driver=False, configure_logging=False)
        serve.start(proxy_location="Disabled")
        # Serve has set it to INFO meanwhile.
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
    except Exception as error:  # Ray raises all kinds, also plain ones
        ray.shutdown()
        reason = " ".join(str(error).split())[:REASON_CHARACTERS_MAX] or type(error).__name__
        if address is None:
            raise NoRoom(
                f"{NOT_STARTED}: {reason}; try again when the machine is less busy."
            ) from error
        raise ConfigError(
            f"The Ray cluster at {address} could not be joined: {reason}; see --ray-address."
        ) from error


def _check_reachable(address: str | None) -> None:
    """Refuse a cluster at HOST:PORT where nobody listens: Ray would try for ever. ConfigError."""
    host, _, port = (address or "").rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S_MAX).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(
            f"No Ray cluster answers at {address} ({error}); see --ray-address, and whether "
            "`ray start --head` runs there."
        ) from None


def own_host() -> str:
    """Where replicas reach this process: the address of its node, as Ray knows it."""
    return str(ray.util.get_node_ip_address())


def stop_ray(address: str | None, name: str) -> None:
    """End the replicas of this application; on this machine alone, all of Ray."""
    if address is not None:
        serve.delete(name)
    ray.shutdown()
