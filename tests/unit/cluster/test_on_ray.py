"""What of Ray's side needs no Ray that runs: the number of replicas that Serve is told, and calls
on a handle."""

import asyncio
import inspect
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any  # Any: what Ray's context holds

import pytest

from jitney.config import Settings
from jitney.core.limits import FAILURES_MAX
from jitney.core.params import Constraint, ConstraintKind
from jitney.errors import ConfigError, InputCrashed
from jitney.loading.compose import assemble
from jitney.sandbox.sent_error import SentError
from jitney_cluster import dispatch
from jitney_cluster.dispatch import call_any, describe
from jitney_cluster.replica_engine import ReplicaEngine
from jitney_cluster.replica_messages import Address
from jitney_cluster.routing import Head
from tests.deadly_text import DEADLY, deadly_text
from tests.unit.cluster.conftest import IDLE_REPORT, make_order

on_ray = pytest.importorskip("jitney_cluster.on_ray", reason="Ray is not installed here")

LATE = {"slot_count": 10.0, "taken_count": 4.0, "wait_s": 3.0}


def context(loads: dict[str, dict[str, float]], *, running: int, target: int) -> Any:
    """As Serve's controller makes it, with what these replicas have reported."""
    reported = {name: {each: load[name] for each, load in loads.items()} for name in LATE}
    # Ray has no defaults for what is not read here.
    unused = inspect.signature(on_ray.AutoscalingContext).parameters
    used = {
        "current_num_replicas": running,
        "target_num_replicas": target,
        "running_replicas": list(loads),
        "aggregated_metrics": reported if loads else None,
        "capacity_adjusted_min_replicas": 1,
        "capacity_adjusted_max_replicas": 8,
        "policy_state": {},
    }
    return on_ray.AutoscalingContext(**{**dict.fromkeys(unused), **used})


def test_a_replica_on_a_gpu_has_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the second replica: both took the first GPU. With too few, Ray would wait for ever."""
    torch, fake = Settings(backend="torch"), Settings(backend="fake")
    for is_there in (False, True):
        monkeypatch.setattr(on_ray, "has_gpu", lambda is_there=is_there: is_there)
        found = on_ray.replica_deployment(torch, (1, 1), drain_s=1.0)
        options = found._bound_deployment.ray_actor_options
        assert options["num_gpus"] == is_there
        assert on_ray.gpus_of_replica(fake) == 0
    nowhere = Settings(model=Path("nowhere.gguf"))
    assert on_ray.gpus_of_replica(nowhere) == 1
    monkeypatch.setattr(on_ray.ray, "cluster_resources", lambda: {"GPU": 1.0})
    on_ray.check_gpus(torch, 1)
    with pytest.raises(ConfigError, match="2 replicas take a GPU each, and 1 are here"):
        on_ray.check_gpus(torch, 2)


def test_a_replica_that_loads_its_model_is_waited_for() -> None:
    """Guards the number of replicas: before the first one has loaded, a second one would be
    started, then a third, and those that load would be stopped for being idle."""
    one = {"a": LATE}
    assert on_ray.needed_replicas(context(one, running=1, target=1)) == (2, {})
    assert on_ray.needed_replicas(context(one, running=1, target=2)) == (2, {}), "it is starting"
    assert on_ray.needed_replicas(context(one, running=2, target=2)) == (2, {}), "no report yet"
    both = {"a": LATE, "b": LATE}
    assert on_ray.needed_replicas(context(both, running=2, target=2)) == (3, {})
    assert on_ray.needed_replicas(context({}, running=0, target=3)) == (3, {}), "all are starting"


class Scripted:
    """Stands for a handle of Serve: it answers each call with the next of these, and never with
    None."""

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.calls: list[asyncio.Future[Any]] = []
        self.asked: list[tuple[str, str]] = []
        self.call = self

    def remote(self, method: str, *_: object, model_key: str) -> "asyncio.Future[Any]":
        """As `handle.call.remote`."""
        call: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.calls.append(call)
        self.asked.append((method, model_key))
        answer = self._answers.pop(0)
        if isinstance(answer, asyncio.CancelledError):
            call.cancel()
        elif isinstance(answer, Exception):
            call.set_exception(answer)
        elif answer is not None:
            call.set_result(answer)
        return call


async def test_a_stuck_replica_does_not_keep_an_ingress_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards invariant 8: another replica is asked, and the call on the stuck one is cancelled."""
    monkeypatch.setattr(dispatch, "DESCRIBED_S_MAX", 0.01)
    replica = ReplicaEngine(assemble(Settings(backend="fake")), "r1")
    gone = on_ray.RayServeException("gone")
    # Ray itself may cancel a call, too: nobody here asked for an end.
    handle = Scripted(None, gone, asyncio.CancelledError(), await replica.describe())
    description = await describe(on_ray.RayDispatch(handle, replica.model_key))
    assert description.model_key == replica.model_key
    assert handle.asked == [("describe", replica.model_key)] * 4
    assert handle.calls[0].cancelled()
    await replica.close()


DIED = on_ray.ActorDiedError()
AWAY = on_ray.RayServeException("not now")
CRASHED = SentError.of(InputCrashed("signal 6", deaths=1), "replica")


@pytest.mark.parametrize(
    ("answers", "deaths"),
    [
        pytest.param([CRASHED], 1, id="its backend ended"),
        pytest.param([AWAY, DIED, CRASHED], 1, id="elsewhere"),
        pytest.param([AWAY, *[DIED] * FAILURES_MAX], FAILURES_MAX, id="replicas died"),
    ],
)
async def test_what_kills_backends_is_not_asked_of_every_replica(
    monkeypatch: pytest.MonkeyPatch, answers: list[object], deaths: int
) -> None:
    """Guards the cluster: one call ended 65 backends in a minute, and was told to come back."""
    monkeypatch.setattr(dispatch, "AGAIN_S", 0.0)
    for method, asked in (("encode", ()), ("prepare", Constraint(ConstraintKind.REGEX, "a"))):
        handle = Scripted(*answers, "asked once too often")
        with pytest.raises(InputCrashed) as caught:
            await call_any(on_ray.RayDispatch(handle, "tiny"), method, asked)
        assert caught.value.deaths == deaths
        assert len(handle.calls) == len(answers)


async def test_a_text_outlives_replicas_that_die_or_are_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards innocent callers: kills from outside, and updates, are not theirs."""
    monkeypatch.setattr(dispatch, "AGAIN_S", 0.0)
    handle = Scripted(*[AWAY] * 9, *[DIED] * (FAILURES_MAX - 1), [1, 2])
    assert await call_any(on_ray.RayDispatch(handle, "tiny"), "encode", [("ab", False)]) == [1, 2]


async def test_a_replica_answers_that_its_backend_ended_with_a_text(tmp_path: Path) -> None:
    """Guards the other replicas: an error of Ray's own would send the text to each of them."""
    with deadly_text(tmp_path) as deaths:
        replica = on_ray.RayReplica(Settings(backend="fake", backend_process=True))
        replica._engine = ReplicaEngine(replica._assembly, "r1")
        key = replica._engine.model_key
        answer = await replica.call("encode", [(DEADLY, False)], model_key=key)
        assert isinstance(answer, SentError)
        assert isinstance(answer.error(), InputCrashed)
        assert await replica.call("encode", [("ab", False)], model_key=key) == [97, 98]
        await replica._engine.close()
    assert deaths.count == 1


def test_a_replica_that_is_not_connected_is_asked_to_connect() -> None:
    """Guards what people see: by chance one replica of many would be asked last for a long time."""
    named = [
        SimpleNamespace(replica_id=SimpleNamespace(unique_id=name), routing_stats={})
        for name in ("r1", "r2", "r3")
    ]

    def chosen(*connected: str) -> list[str]:
        call = SimpleNamespace(kwargs={"connected": connected, "model_key": "tiny"})
        router = object.__new__(on_ray.FirstTokenRouter)
        best, others = asyncio.run(router.choose_replicas(named, call))
        return [each.replica_id.unique_id for each in (*best, *others)]

    assert chosen("r1", "r3")[0] == "r2"
    assert chosen("r2", "r3")[0] == "r1"
    assert sorted(chosen("r1", "r2", "r3")) == ["r1", "r2", "r3"], "anyone, if all are"


@dataclass(frozen=True)
class Id:
    """Stands for a `ReplicaID`."""

    unique_id: str


class BareRouter(on_ray.FirstTokenRouter):  # type: ignore[misc, name-defined]
    """The router without Serve: the test says which replicas there are."""

    def __init__(self) -> None:
        self.here: dict[Id, Any] = {}
        self.initialize_state()

    @property
    def curr_replicas(self) -> dict[Id, Any]:
        return self.here

    def tell(self, name: str, stats: dict[str, Any]) -> None:
        """A replica is there with these statistics, as Serve has them."""
        self.here[Id(name)] = SimpleNamespace(replica_id=Id(name), routing_stats=stats)

    async def place(self, number: int, *begun: tuple[str, int], count: int = 10) -> str:
        """Route an order, as Serve does, and return its replica."""
        order = make_order(Address("us", "", 0, ""), number, Head(count), begun=begun)
        metadata = SimpleNamespace(internal_request_id=f"q{number}")
        pending = SimpleNamespace(kwargs={"order": order}, metadata=metadata)
        ranks = await self.choose_replicas(list(self.here.values()), pending)
        self.on_request_routed(pending, ranks[0][0].replica_id, None)
        return str(ranks[0][0].replica_id.unique_id)


def stats_of(**values: Any) -> dict[str, Any]:
    """What a replica with one slot reports."""
    return {"report": replace(IDLE_REPORT, **{"slot_count": 1, **values})}


async def test_a_report_is_read_when_it_is_new() -> None:
    """Guards routing on Ray: Serve shows the last report at every order. It is read once; the next
    one is not missed, nor that of a replica which was gone for a moment."""
    router = BareRouter()
    free, busy = stats_of(), stats_of(waiting_count=50)
    router.tell("a", free)
    router.tell("b", busy)
    assert await router.place(1) == "a"
    free["report"] = busy["report"] = None
    assert await router.place(2) == "a", "read again, this would fail"
    router.tell("a", stats_of(waiting_count=90, seen={"us": 2}))
    assert await router.place(3) == "b"
    last = stats_of(waiting_count=70, seen={"us": 3})
    router.tell("b", last)
    assert await router.place(4) == "b"
    gone = router.here.pop(Id("b"))
    assert await router.place(5) == "a"
    router.here[Id("b")] = gone
    router.tell("c", stats_of(waiting_count=60, seen={"us": 5}))
    assert await router.place(6) == "c", "b is as busy as it was"


async def test_first_tokens_reach_the_table_with_the_next_order() -> None:
    """Guards the tail under load: a prompt that is computed keeps no order away."""
    router = BareRouter()
    router.tell("a", stats_of(slot_count=9))
    router.tell("b", stats_of(slot_count=9, tick_s=0.5))
    assert await router.place(1, count=1000) == "a"
    assert await router.place(2) == "b"
    assert await router.place(3, ("a", 1)) == "a"


def test_a_cluster_where_nobody_listens_is_refused_at_once() -> None:
    """Guards a typing mistake: Ray itself would try for ever, and say it in its own words."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"No Ray cluster answers at {address}"):
            on_ray.start_ray(address)
    with pytest.raises(ConfigError, match=r"answers at 127\.0\.0\.1:99999"):
        on_ray.start_ray("127.0.0.1:99999")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "It failed 3 times. Error:\n  File on_ray.py, line 1\n"
            "jitney.errors.ModelError: a.gguf does not exist; give another.\n",
            "a.gguf does not exist; give another.",
        ),
        ("Error:\nMemoryError: no more\n\n", "MemoryError: no more; see the logs of Ray Serve."),
        ("", "for a reason that Serve does not tell; see the logs of Ray Serve."),
    ],
)
def test_why_a_replica_did_not_start_is_found_in_the_message_of_serve(
    message: str, reason: str
) -> None:
    """Guards whoever started it: a traceback of Ray says nothing to them."""
    assert on_ray.failure_in(message) == reason
