"""Replicas on Ray Serve: the deployment, the router, and the way to them. Imports Ray.

Serve starts replicas, watches them, replaces them, and drains those that leave. Orders go through a
handle of the deployment, so that Serve knows what runs where. What comes of them goes over the back
channel (`jitney.cluster.back_channel`).

Tests: tests/e2e/cluster/test_on_ray.py.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import fields
from typing import Any  # Any: Ray has no types for handles and statistics

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.request_router import (
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

from jitney.cluster.dispatch import ReplicaLost
from jitney.cluster.replica_engine import ReplicaEngine
from jitney.cluster.replica_messages import Description, ReplicaFailure, decode_description
from jitney.cluster.routing import Head, Report, RouteTable
from jitney.config import Settings
from jitney.core.backend import Segment
from jitney.core.params import Constraint
from jitney.errors import ConfigError, JitneyError, NoRoom
from jitney.loading.compose import assemble

APPLICATION = "jitney"
DEPLOYMENT = "Replica"
ONGOING_MAX = 100_000
"""Serve does not refuse: the engine does, and knows when there is room again."""

NOT_STARTED = "Ray could not be started"
REASON_CHARACTERS_MAX = 300
REPORT_S = 1.0
HEALTH_S = 5.0
DRAIN_S = 30.0
"""What runs longer on a replica that leaves is moved."""


class RayReplica:
    """One engine. Serve makes it, and calls it on one event loop."""

    def __init__(self, settings: dict[str, Any]) -> None:
        logging.getLogger("jitney").setLevel(logging.INFO)
        self._assembly = assemble(Settings(**settings))
        self._engine: ReplicaEngine | None = None

    async def run(
        self,
        frame: bytes,
        ingress: str,
        number: int,
        head: tuple[int, tuple[int, ...]],
        avoided: tuple[str, ...],
    ) -> None:
        """Run an order to its end. The other arguments are for the router."""
        del ingress, number, head, avoided
        await self._here().run(frame)

    async def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of texts."""
        return await self._here().encode(texts)

    async def prepare(self, constraint: Constraint) -> ReplicaFailure | None:
        """Compile a constraint; the mistake in it, if there is one."""
        try:
            await self._here().prepare(constraint)
        except JitneyError as error:
            return ReplicaFailure.of(error)
        return None

    async def describe(self) -> bytes:
        """What is loaded here."""
        return self._here().describe()

    async def steer(self, request_id: str, action: str, priority: int, target: str) -> None:
        """Pause, resume or reprioritise a request."""
        del target
        self._here().steer(request_id, action, priority)

    async def record_routing_stats(self) -> dict[str, Any]:
        """The state for the router. Serve asks for it every REPORT_S."""
        report = await self._here().report()
        return {each.name: getattr(report, each.name) for each in fields(Report)}

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
    """Sends an order where its first token is expected soonest (`jitney.cluster.routing`)."""

    def initialize_state(self, **given: Any) -> None:
        """Called by Serve once, before the first request."""
        del given
        self._table: RouteTable | None = None

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The best candidate, then the others."""
        asked = {} if pending_request is None else pending_request.kwargs
        named = {each.replica_id.unique_id: each for each in candidate_replicas}
        best = asked.get("target")
        if "head" in asked:
            table = self._known(asked["ingress"])
            best = table.choose(Head(*asked["head"]), asked["avoided"])
        if best not in named:
            return [candidate_replicas]
        others = [each for name, each in named.items() if name != best]
        return [[named[best]], others]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """An order is on its way to this replica."""
        asked = pending_request.kwargs
        if "head" in asked:
            request_id = pending_request.metadata.internal_request_id
            head = Head(*asked["head"])
            table = self._known(asked["ingress"])
            table.sent(replica_id.unique_id, request_id, asked["number"], head)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """A call has ended."""
        if self._table is not None:
            self._table.ended(replica_id.unique_id, internal_request_id)

    def _known(self, ingress: str) -> RouteTable:
        """The table with the replicas and the reports of this moment."""
        if self._table is None:
            self._table = RouteTable(ingress)
        replicas = {key.unique_id: each for key, each in self.curr_replicas.items()}
        self._table.keep(replicas)
        for name, replica in replicas.items():
            if replica.routing_stats:
                self._table.report(name, Report(**replica.routing_stats))
        return self._table


class RayDispatch:
    """The way to the replicas, through a handle of their deployment."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def run(
        self, frame: bytes, ingress: str, head: Head, number: int, avoided: tuple[str, ...]
    ) -> None:
        """Have an order run to its end. Raises ReplicaLost."""
        await self._asked(
            self._handle.run.remote(
                frame,
                ingress=ingress,
                number=number,
                head=(head.prompt_count, head.keys),
                avoided=avoided,
            )
        )

    async def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Have texts tokenised by any replica."""
        return list(await self._again(lambda: self._handle.encode.remote(list(texts))))

    async def prepare(self, constraint: Constraint) -> None:
        """Have a constraint compiled by any replica. Raises a RequestError."""
        failure: ReplicaFailure | None = await self._again(
            lambda: self._handle.prepare.remote(constraint)
        )
        if failure is not None:
            raise failure.error()

    async def describe(self) -> Description:
        """What the replicas have loaded."""
        return decode_description(await self._again(lambda: self._handle.describe.remote()))

    async def steer(self, replica: str, request_id: str, action: str, priority: int) -> None:
        """Pause, resume or reprioritise a request on its replica."""
        await self._asked(self._handle.steer.remote(request_id, action, priority, target=replica))

    async def _again(self, ask: Any) -> Any:
        """Ask until a replica answers: what is asked changes nothing."""
        while True:
            try:
                return await self._asked(ask())
            except ReplicaLost:
                await asyncio.sleep(0.1)

    async def _asked(self, response: Any) -> Any:
        """The answer to a call. When this is cancelled, so is the call."""
        try:
            return await response
        except asyncio.CancelledError:
            response.cancel()
            raise
        except (RayError, RayServeException, OSError) as error:
            raise ReplicaLost(str(error)) from error


def start_replicas(settings: Settings, count: int, *, cpus: float) -> Any:
    """Start so many replicas, and return the handle for them. Ray must run already."""
    values = {each.name: getattr(settings, each.name) for each in fields(Settings)}
    deployment = serve.deployment(
        RayReplica,
        name=DEPLOYMENT,
        num_replicas=count,
        max_ongoing_requests=ONGOING_MAX,
        health_check_period_s=HEALTH_S,
        graceful_shutdown_timeout_s=DRAIN_S,
        ray_actor_options={"num_cpus": cpus},
        request_router_config=RequestRouterConfig(
            request_router_class=FirstTokenRouter, request_routing_stats_period_s=REPORT_S
        ),
    )
    return serve.run(deployment.bind(values), name=APPLICATION, route_prefix=None)


def start_ray(address: str | None) -> None:
    """Join a cluster, or start Ray on this machine alone. Raises SetupError."""
    logging.getLogger("ray").setLevel(logging.WARNING)
    given = {"include_dashboard": False} if address is None else {"address": address}
    try:
        ray.init(**given, log_to_driver=False, configure_logging=False)
        serve.start(proxy_location="Disabled")
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


def own_host() -> str:
    """Where replicas reach this process: the address of its node, as Ray knows it."""
    return str(ray.util.get_node_ip_address())


def stop_ray(address: str | None) -> None:
    """End the replicas; on this machine alone, all of Ray."""
    if address is not None:
        serve.delete(APPLICATION)
    ray.shutdown()
