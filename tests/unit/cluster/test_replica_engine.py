"""One engine of a fleet: what it sends of an order, of itself, and when its ingress is gone."""

import asyncio
import contextlib
import pickle
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from jitney.config import Settings
from jitney.core.events import FinishReason
from jitney.core.params import Constraint, StructuredOutputsParams
from jitney.core.request import Request
from jitney.core.rules.pauses import PauseOutcome
from jitney.core.scheduler_settings import Candidate, Policy
from jitney.errors import EngineStopped
from jitney.loading.compose import assemble
from jitney_cluster.back_channel import BackChannel, IngressConnection
from jitney_cluster.replica_engine import ReplicaEngine
from jitney_cluster.replica_messages import (
    Address,
    Order,
    OrderAccepted,
    OrderCatchingUp,
    OrderDelta,
    OrderEnded,
    OrderMessage,
    OrderStarted,
    ReplicaMessage,
    ReplicaState,
    encode_request,
)
from jitney_cluster.routing import HEAD_TOKENS, Head, head_of
from tests.unit.cluster.conftest import SETTINGS, SLOW, make_order, make_request, until


class Pair:
    """A replica, and an ingress that stores its messages."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.replica = ReplicaEngine(assemble(settings), "r1")
        self.messages: list[ReplicaMessage] = []
        self.lost: list[str] = []
        self.channel = BackChannel("127.0.0.1", self._take, self.lost.append)
        self.address: Address
        self._number = 0

    def _take(self, replica: str, message: ReplicaMessage) -> None:
        assert replica == "r1"
        self.messages.append(message)

    def order(self, request: Request, attempt: int = 1) -> Order:
        self._number += 1
        head, encoded = Head(len(request.prompt)), encode_request(request)
        order = make_order(self.address, self._number, head, request=encoded, attempt=attempt)
        return replace(order, request_id=request.id)

    async def run(self, request: Request, attempt: int = 1) -> OrderEnded:
        """Run an order; its last message."""
        await self.replica.run(self.order(request, attempt))
        return await self.end_of(request, attempt)

    async def running(self, request: Request, count: int = 1) -> asyncio.Task[None]:
        """An order that runs, of which so many tokens have come."""
        task = asyncio.create_task(self.replica.run(self.order(request)))
        await until(lambda: len(tokens_of(self.of(request))) >= count)
        return task

    def of(self, request: Request) -> list[OrderMessage]:
        """The messages about a request."""
        return [
            each
            for each in self.messages
            if isinstance(each, OrderMessage) and each.request_id == request.id
        ]

    async def end_of(self, request: Request, attempt: int = 1) -> OrderEnded:
        def found() -> list[OrderEnded]:
            ends = [each for each in self.of(request) if isinstance(each, OrderEnded)]
            return [each for each in ends if each.attempt == attempt]

        await until(found)
        return found()[0]

    async def idle(self) -> None:
        """Wait until the engine runs nothing."""
        await until(lambda: not self.replica._engine.stats().live_requests)


@contextlib.asynccontextmanager
async def opened(settings: Settings = SETTINGS) -> AsyncIterator[Pair]:
    pair = Pair(settings)
    pair.address = await pair.channel.open()
    try:
        yield pair
    finally:
        await pair.replica.close()
        await pair.channel.close()
        await until(lambda: not pair.channel.replicas)


def tokens_of(messages: list[OrderMessage]) -> tuple[int, ...]:
    return tuple(
        token for each in messages if isinstance(each, OrderDelta) for token in each.delta.tokens
    )


async def test_an_order_is_followed_from_its_start_to_its_end() -> None:
    async with opened() as pair:
        request = make_request(n=2)
        ended = await pair.run(request, attempt=3)
        told = pair.of(request)
        assert {each.attempt for each in told} == {3}
        assert told[-1] is ended
        # In this order: observers count a request before it runs.
        assert [type(each) for each in told[:2]] == [OrderAccepted, OrderStarted]
        assert sum(isinstance(each, OrderAccepted | OrderStarted) for each in told) == 2
        assert [each.index for each in ended.completions] == [0, 1]
        assert {each.finish_reason for each in ended.completions} == {FinishReason.LENGTH}
        assert len(tokens_of(told)) == 32
        assert pair.channel.replicas == ["r1"]


async def test_what_another_engine_made_is_not_made_again() -> None:
    """Guards a move: the rest of the tokens are those that one engine makes alone."""
    async with opened() as pair:
        request = make_request()
        await pair.run(request)
        whole = tokens_of(pair.of(request))
        resumed = replace(make_request(), resumed=(whole[:5],))
        (completion,) = (await pair.run(resumed)).completions
        assert tokens_of(pair.of(resumed)) == whole[5:]
        assert completion.usage.completion_count == len(whole)


@pytest.mark.parametrize(
    ("request_", "encoded", "kind"),
    [
        pytest.param(make_request("x" * 600), None, "ContextLengthExceeded", id="too long"),
        pytest.param(make_request(), b"\xc1", "InvalidRequest", id="cannot be read"),
        pytest.param(
            replace(make_request(), resumed=((97, -5),)), None, "InvalidRequest", id="no token"
        ),
        pytest.param(
            replace(make_request(n=2), resumed=(None, None)), None, "InvalidRequest", id="nothing"
        ),
    ],
)
async def test_a_refusal_is_told_and_ends_the_order(
    request_: Request, encoded: bytes | None, kind: str
) -> None:
    async with opened() as pair:
        order = pair.order(request_)
        await pair.replica.run(replace(order, request=encoded or order.request))
        failure = (await pair.end_of(request_)).failure
        assert failure is not None
        assert failure.kind == kind
        assert len(pair.of(request_)) == 1


async def test_an_ingress_that_is_not_there_gets_nothing() -> None:
    """Guards slots: nothing runs for which nobody could be told; and the next order may work."""
    async with opened() as pair:
        order = pair.order(make_request())
        await pair.channel.close()
        with pytest.raises(OSError):
            await pair.replica.run(order)
        assert pair.replica._engine.stats().total_requests == 0
        pair.address = await pair.channel.open()
        request = make_request()
        assert (await pair.run(request)).failure is None


async def test_a_connection_that_is_still_made_ends_with_the_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards against a task that outlives its event loop: an ingress may never answer."""

    async def connect(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(IngressConnection, "connect", connect)
    async with opened() as pair:
        running = asyncio.create_task(pair.replica.run(pair.order(make_request())))
        await until(lambda: pair.replica._connections)
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_cancelling_a_call_frees_its_slot() -> None:
    async with opened() as pair:
        request = make_request(**SLOW)
        running = await pair.running(request, 3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await pair.idle()
        assert pair.replica._engine.snapshot().running_count == 0


async def test_the_requests_of_an_ingress_that_is_gone_are_cancelled() -> None:
    """Guards slots: no client is left who could read these answers."""
    async with opened() as pair:
        running = [await pair.running(make_request(f"p{at}", **SLOW)) for at in range(2)]
        await pair.channel.close()
        await asyncio.gather(*running)
        await pair.idle()
        assert (await pair.replica.report()).seen == {}


async def test_a_report_has_what_routing_needs() -> None:
    """Guards routing by prefix: the keys of the memory are those of the head of a request."""
    async with opened() as pair:
        empty = await pair.replica.report()
        assert (empty.slot_count, empty.running_count, empty.waiting_count) == (4, 0, 0)
        assert (empty.heads, empty.seen) == (frozenset(), {})
        request = make_request("x" * 3 * HEAD_TOKENS, scope="ours")
        await pair.run(request)
        report = await pair.replica.report()
        assert report.seen == {pair.address.ingress: 1}
        assert set(head_of(request.prompt, "ours").keys) <= report.heads
        assert not set(head_of(request.prompt, "theirs").keys) & report.heads
        assert report.kv_free > 0


class OwnPolicy:
    def rank(self, candidate: Candidate) -> float:
        return -candidate.priority


@pytest.mark.parametrize(
    ("policy", "told"),
    [(Policy.FAIR, Policy.FAIR), (OwnPolicy(), Policy.PRIORITY)],
    ids=["ours", "own"],
)
async def test_it_describes_what_is_loaded(policy: Policy | OwnPolicy, told: Policy) -> None:
    """Guards numbers of priorities: an ingress refuses those that a policy of one's own may read
    the other way round."""
    async with opened(replace(SETTINGS, policy=policy)) as pair:
        # As Ray sends it.
        description = pickle.loads(pickle.dumps(await pair.replica.describe()))  # noqa: S301
        engine = pair.replica._engine
        assert description.settings == replace(engine.settings, policy=told)
        assert description.traits == engine.backend.traits
        assert description.vocabulary == engine.backend.vocabulary


async def test_it_beats_also_when_nothing_happens() -> None:
    """Guards idle replicas: silence would mean that the machine is gone."""
    async with opened() as pair:
        request = make_request()
        await pair.run(request)
        pair.messages.clear()
        await until(lambda: len(pair.messages) >= 2)
        state = pair.messages[1]
        assert isinstance(state, ReplicaState)
        assert state.snapshot.slot_count == 4
        assert state.sums["completion_tokens"] == 16.0


async def test_steering_reaches_a_request_that_runs_here() -> None:
    async with opened() as pair:
        request = make_request(**SLOW)
        running = await pair.running(request)
        steer = pair.replica.steer
        assert await steer("unknown", "pause", 0) is PauseOutcome.ENDED
        assert await steer(request.id, "pause", 0) is PauseOutcome.PAUSED
        await until(lambda: pair.replica._engine.snapshot().paused_count > 0)
        assert await steer(request.id, "pause", 0) is PauseOutcome.WAS_PAUSED
        await steer(request.id, "resume", 0)
        await running
        assert (await pair.end_of(request)).failure is None
        assert len(tokens_of(pair.of(request))) == 200


async def test_a_second_attempt_replaces_the_first() -> None:
    """Guards a request that is sent again before its cancel arrives: it is no other request."""
    async with opened() as pair:
        request = make_request(**SLOW)
        first = await pair.running(request)
        ended = await pair.run(request, attempt=2)
        await first
        assert ended.failure is None
        assert [each.finish_reason for each in ended.completions] == [FinishReason.LENGTH]


async def test_an_engine_that_ends_does_not_tell_it_as_an_answer() -> None:
    """Guards streams of a replica that is shut down: they go on elsewhere."""
    async with opened() as pair:
        request = make_request(**SLOW)
        running = await pair.running(request, 3)
        await asyncio.to_thread(pair.replica._engine.close, 0.0)
        ended = await pair.end_of(request)
        await running
        assert ended.failure is not None
        assert isinstance(ended.failure.error(), EngineStopped)
        finishes = [
            each.delta.finish_reason for each in pair.of(request) if isinstance(each, OrderDelta)
        ]
        assert set(finishes) == {None}


async def test_a_constraint_is_compiled_before_its_request_can_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards everyone in the batch, who would wait for it: it was prepared on another replica."""
    async with opened() as pair:
        choice = StructuredOutputsParams(choice=("a", "b"))
        request = make_request(structured_outputs=choice, ignore_eos=False)
        prepared: list[tuple[Constraint, int]] = []
        monkeypatch.setattr(
            pair.replica._engine.backend,
            "prepare",
            lambda constraint: prepared.append((constraint, len(pair.of(request)))),
        )
        await pair.replica.run(pair.order(request))
        assert prepared == [(request.params.constraint, 0)]


async def test_it_tells_while_it_computes_what_was_computed_before() -> None:
    """Guards the innocent: a loss in this time is not their fault. The last pass may be."""
    async with opened(replace(SETTINGS, prefill_chunk=8, enable_prefix_caching=False)) as pair:
        begun = replace(make_request(max_tokens=60), resumed=(tuple(range(100, 140)),))
        await pair.run(begun)
        news = [each for each in pair.of(begun) if not isinstance(each, OrderEnded)]
        first = next(at for at, each in enumerate(news) if isinstance(each, OrderDelta))
        told = [each.is_catching_up for each in news if isinstance(each, OrderCatchingUp)]
        assert told == [True, False]
        assert [type(each) for each in news[:first]].count(OrderCatchingUp) == 2
        new = make_request("a long prompt " * 8)
        await pair.run(new)
        assert not any(isinstance(each, OrderCatchingUp) for each in pair.of(new))


async def test_completions_of_one_request_tell_it_together() -> None:
    """Guards the innocent and the line: one that makes tokens and one that does not are no news."""
    async with opened(replace(SETTINGS, prefill_chunk=8, enable_prefix_caching=False)) as pair:
        resumed = (tuple(range(100, 180)), (100,))
        begun = replace(make_request(max_tokens=90, n=2), resumed=resumed)
        await pair.run(begun)
        assert sum(isinstance(each, OrderCatchingUp) for each in pair.of(begun)) <= 2
