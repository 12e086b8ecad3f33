"""One engine of a fleet: what it sends of an order, of itself, and when its ingress is gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from jitney.config import Settings
from jitney.core.events import FinishReason
from jitney.core.params import Constraint, StructuredOutputsParams
from jitney.core.request import Request
from jitney.core.rules.pauses import PauseOutcome
from jitney.errors import EngineStopped, InvalidRequest
from jitney.loading.compose import assemble
from jitney_cluster.back_channel import BackChannel
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
    decode_description,
    encode_request,
)
from jitney_cluster.routing import HEAD_TOKENS, Head, head_of
from tests.unit.cluster.conftest import make_request, until

SETTINGS = Settings(backend="fake", max_num_seqs=4, max_model_len=512)
SLOW: dict[str, Any] = {"max_tokens": 400}


class Pair:
    """A replica, and an ingress that stores its messages."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.replica = ReplicaEngine(assemble(settings), "r1")
        self.messages: list[ReplicaMessage] = []
        self.lost: list[str] = []
        self.channel = BackChannel("in", "127.0.0.1", self._take, self.lost.append)
        self.address: Address
        self._number = 0

    def _take(self, replica: str, message: ReplicaMessage) -> None:
        assert replica == "r1"
        self.messages.append(message)

    def order(self, request: Request, attempt: int = 1, model_key: str = "fake") -> Order:
        self._number += 1
        return Order(
            address=self.address,
            number=self._number,
            attempt=attempt,
            waited_s=0.0,
            model_key=model_key,
            request_id=request.id,
            request=encode_request(request),
            head=Head(len(request.prompt)),
        )

    def of(self, request: Request) -> list[OrderMessage]:
        """The messages about a request."""
        return [
            each
            for each in self.messages
            if isinstance(each, OrderMessage) and each.request_id == request.id
        ]

    async def end_of(self, request: Request) -> OrderEnded:
        while True:
            for each in self.of(request):
                if isinstance(each, OrderEnded):
                    return each
            await asyncio.sleep(0)

    async def made(self, request: Request, count: int) -> None:
        """Wait until so many tokens of a request have come."""
        await until(lambda: len(tokens_of(self.of(request))) >= count)

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
        await pair.replica.run(pair.order(request, attempt=3))
        ended = await pair.end_of(request)
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
        await pair.replica.run(pair.order(request))
        await pair.end_of(request)
        whole = tokens_of(pair.of(request))
        resumed = replace(make_request(), resumed=(whole[:5],))
        await pair.replica.run(pair.order(resumed))
        (completion,) = (await pair.end_of(resumed)).completions
        assert tokens_of(pair.of(resumed)) == whole[5:]
        assert completion.usage.completion_count == len(whole)


async def test_a_refusal_is_told_and_ends_the_order() -> None:
    async with opened() as pair:
        request = make_request("x" * 600)
        await pair.replica.run(pair.order(request))
        failure = (await pair.end_of(request)).failure
        assert failure is not None
        assert failure.kind == "ContextLengthExceeded"
        assert len(pair.of(request)) == 1


async def test_a_request_that_cannot_be_read_is_refused() -> None:
    async with opened() as pair:
        request = make_request()
        await pair.replica.run(replace(pair.order(request), request=b"\xc1"))
        failure = (await pair.end_of(request)).failure
        assert failure is not None
        assert isinstance(failure.error(), InvalidRequest)


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
        await pair.replica.run(pair.order(request))
        assert (await pair.end_of(request)).failure is None


async def test_cancelling_a_call_frees_its_slot() -> None:
    async with opened() as pair:
        request = make_request(**SLOW)
        running = asyncio.create_task(pair.replica.run(pair.order(request)))
        await pair.made(request, 3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await pair.idle()
        assert pair.replica._engine.snapshot().running_count == 0


async def test_the_requests_of_an_ingress_that_is_gone_are_cancelled() -> None:
    """Guards slots: no client is left who could read these answers."""
    async with opened() as pair:
        requests = [make_request(f"p{at}", **SLOW) for at in range(2)]
        running = [
            asyncio.create_task(pair.replica.run(pair.order(request))) for request in requests
        ]
        for request in requests:
            await pair.made(request, 1)
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
        await pair.replica.run(pair.order(request))
        await pair.end_of(request)
        report = await pair.replica.report()
        assert report.seen == {"in": 1}
        assert set(head_of(request.prompt, "ours").keys) <= report.heads
        assert not set(head_of(request.prompt, "theirs").keys) & report.heads
        assert report.kv_free > 0


async def test_it_describes_what_is_loaded() -> None:
    async with opened() as pair:
        description = decode_description(await pair.replica.describe())
        engine = pair.replica._engine
        assert description.scheduler_settings() == engine.settings
        assert description.traits == engine.backend.traits
        assert description.vocabulary == engine.backend.vocabulary


async def test_it_beats_also_when_nothing_happens() -> None:
    """Guards idle replicas: silence would mean that the machine is gone."""
    async with opened() as pair:
        request = make_request()
        await pair.replica.run(pair.order(request))
        await pair.end_of(request)
        pair.messages.clear()
        await until(lambda: len(pair.messages) >= 2)
        state = pair.messages[1]
        assert isinstance(state, ReplicaState)
        assert state.snapshot.slot_count == 4
        assert state.sums["completion_tokens"] == 16.0


async def test_steering_reaches_a_request_that_runs_here() -> None:
    async with opened() as pair:
        request = make_request(**SLOW)
        running = asyncio.create_task(pair.replica.run(pair.order(request)))
        await pair.made(request, 1)
        steer = pair.replica.steer
        assert await steer("unknown", "pause", 0) is PauseOutcome.ENDED
        assert await steer(request.id, "pause", 0) is PauseOutcome.PAUSED
        await until(lambda: pair.replica._engine.snapshot().paused_count > 0)
        assert await steer(request.id, "pause", 0) is PauseOutcome.WAS_PAUSED
        await steer(request.id, "resume", 0)
        await running
        assert (await pair.end_of(request)).failure is None
        assert len(tokens_of(pair.of(request))) == 400


async def test_a_second_attempt_replaces_the_first() -> None:
    """Guards a request that is sent again before its cancel arrives: it is no other request."""
    async with opened() as pair:
        request = make_request(**SLOW)
        first = asyncio.create_task(pair.replica.run(pair.order(request)))
        await until(lambda: any(isinstance(each, OrderDelta) for each in pair.of(request)))
        await pair.replica.run(pair.order(request, attempt=2))
        await first

        def last() -> OrderEnded | None:
            told = [each for each in pair.of(request) if isinstance(each, OrderEnded)]
            return next((each for each in told if each.attempt == 2), None)

        await until(lambda: last() is not None)
        ended = last()
        assert ended is not None
        assert ended.failure is None
        assert [each.finish_reason for each in ended.completions] == [FinishReason.LENGTH]


async def test_an_engine_that_ends_does_not_tell_it_as_an_answer() -> None:
    """Guards streams of a replica that is shut down: they go on elsewhere."""
    async with opened() as pair:
        request = make_request(**SLOW)
        running = asyncio.create_task(pair.replica.run(pair.order(request)))
        await pair.made(request, 3)
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


async def test_an_order_to_make_nothing_more_is_refused() -> None:
    async with opened() as pair:
        request = replace(make_request(n=2), resumed=(None, None))
        await pair.replica.run(pair.order(request))
        ended = await pair.end_of(request)
        assert ended.failure is not None
        assert isinstance(ended.failure.error(), InvalidRequest)


async def test_it_tells_while_it_computes_what_was_computed_before() -> None:
    """Guards the innocent: a loss in this time is not their fault. The last pass may be."""
    async with opened(replace(SETTINGS, prefill_chunk=8, enable_prefix_caching=False)) as pair:
        begun = replace(make_request(max_tokens=60), resumed=(tuple(range(100, 140)),))
        await pair.replica.run(pair.order(begun))
        await pair.end_of(begun)
        news = [each for each in pair.of(begun) if not isinstance(each, OrderEnded)]
        first = next(at for at, each in enumerate(news) if isinstance(each, OrderDelta))
        told = [each.is_catching_up for each in news if isinstance(each, OrderCatchingUp)]
        assert told == [True, False]
        assert [type(each) for each in news[:first]].count(OrderCatchingUp) == 2
        new = make_request("a long prompt " * 8)
        await pair.replica.run(pair.order(new))
        await pair.end_of(new)
        assert not any(isinstance(each, OrderCatchingUp) for each in pair.of(new))


async def test_completions_of_one_request_tell_it_together() -> None:
    """Guards the innocent and the line: one that makes tokens and one that does not are no news."""
    async with opened(replace(SETTINGS, prefill_chunk=8, enable_prefix_caching=False)) as pair:
        resumed = (tuple(range(100, 180)), (100,))
        begun = replace(make_request(max_tokens=90, n=2), resumed=resumed)
        await pair.replica.run(pair.order(begun))
        await pair.end_of(begun)
        assert sum(isinstance(each, OrderCatchingUp) for each in pair.of(begun)) <= 2
