"""What of Ray's side needs no Ray that runs: the number of replicas that Serve is told, and calls
on a handle."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any  # Any: what Ray's context holds

import pytest

from jitney.cluster.replica_engine import ReplicaEngine
from jitney.config import Settings
from jitney.loading.compose import assemble

on_ray = pytest.importorskip("jitney.cluster.on_ray", reason="Ray is not installed here")

LATE = {"slot_count": 10.0, "taken_count": 4.0, "wait_s": 3.0}


def context(loads: dict[str, dict[str, float]], *, running: int, target: int) -> Any:
    """As Serve's controller makes it, with what these replicas have reported."""
    reported = {name: {each: load[name] for each, load in loads.items()} for name in LATE}
    unused = dict.fromkeys(
        (
            "deployment_id",
            "deployment_name",
            "app_name",
            "total_num_requests",
            "total_queued_requests",
            "raw_metrics",
            "last_scale_up_time",
            "last_scale_down_time",
            "current_time",
            "config",
        )
    )
    return on_ray.AutoscalingContext(
        **unused,
        current_num_replicas=running,
        target_num_replicas=target,
        running_replicas=list(loads),
        aggregated_metrics=reported if loads else None,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=8,
        policy_state={},
    )


def test_a_replica_that_loads_its_model_is_waited_for() -> None:
    """Guards the number of replicas: before the first one has loaded, a second one would be
    started, then a third, and those that load would be stopped for being idle."""
    one = {"a": LATE}
    assert on_ray.wanted_replicas(context(one, running=1, target=1)) == (2, {})
    assert on_ray.wanted_replicas(context(one, running=1, target=2)) == (2, {}), "it is starting"
    assert on_ray.wanted_replicas(context(one, running=2, target=2)) == (2, {}), "no report yet"
    both = {"a": LATE, "b": LATE}
    assert on_ray.wanted_replicas(context(both, running=2, target=2)) == (3, {})
    assert on_ray.wanted_replicas(context({}, running=0, target=3)) == (3, {}), "all are starting"


class StuckThenFine:
    """Stands for a handle of Serve: the first replica never answers, the second one is gone."""

    def __init__(self, described: bytes) -> None:
        self._described = described
        self.describe = self
        self.calls: list[asyncio.Future[bytes]] = []
        self.keys: list[str] = []

    def remote(self, *, model_key: str) -> "asyncio.Future[bytes]":
        """As `handle.describe.remote`."""
        call: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.calls.append(call)
        self.keys.append(model_key)
        if len(self.calls) == 2:
            call.set_exception(on_ray.RayServeException("gone"))
        elif len(self.calls) > 2:
            call.set_result(self._described)
        return call


def test_a_stuck_replica_does_not_keep_an_ingress_from_starting(
    in_loop: Callable[[Callable[[], Awaitable[None]]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards invariant 8: another replica is asked, and the call on the stuck one is cancelled."""
    monkeypatch.setattr(on_ray, "DESCRIBED_S_MAX", 0.01)

    async def test() -> None:
        replica = ReplicaEngine(assemble(Settings(backend="fake")), "r1")
        handle = StuckThenFine(replica.describe())
        description = await on_ray.RayDispatch(handle, replica.model_key).describe()
        assert description.model_key == replica.model_key
        assert handle.keys == [replica.model_key] * 3
        assert handle.calls[0].cancelled()
        await replica.close()

    in_loop(test)


def test_a_replica_that_is_not_connected_is_asked_to_connect() -> None:
    """Guards what people see: by chance one replica of many would be asked last for a long time."""
    named = [
        SimpleNamespace(replica_id=SimpleNamespace(unique_id=name), routing_stats={})
        for name in ("r1", "r2", "r3")
    ]

    def chosen(*met: str) -> list[str]:
        asked = SimpleNamespace(kwargs={"met": met, "model_key": "tiny"})
        router = object.__new__(on_ray.FirstTokenRouter)
        best, others = asyncio.run(router.choose_replicas(named, asked))
        return [each.replica_id.unique_id for each in (*best, *others)]

    assert chosen("r1", "r3")[0] == "r2"
    assert chosen("r2", "r3")[0] == "r1"
    assert sorted(chosen("r1", "r2", "r3")) == ["r1", "r2", "r3"], "anyone, if all are"
