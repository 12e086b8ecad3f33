"""One engine of a fleet: what it tells of an order, of itself, and when its ingress is gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from jitney.config import Settings
from jitney.core.events import FinishReason
from jitney.core.params import Constraint, StructuredOutputsParams
from jitney.core.request import Request
from jitney.core.rules.pauses import PauseOutcome
from jitney.errors import EngineStopped, InvalidRequest
from jitney.loading.compose import assemble
from jitney.sandbox.frames import MalformedFrame
from jitney_cluster.back_channel import BackChannel
from jitney_cluster.replica_engine import ReplicaEngine
from jitney_cluster.replica_messages import (
    Accepted,
    Address,
    CatchingUp,
    Ended,
    Made,
    OfRequest,
    Run,
    Started,
    State,
    Told,
    Wanted,
    decode_description,
    encode_one,
)
from jitney_cluster.routing import HEAD_TOKENS, head_of

MakeRequest = Callable[..., Request]
InLoop = Callable[[Callable[[], Awaitable[None]]], None]
SETTINGS = Settings(backend="fake", max_num_seqs=4, max_model_len=512)
SLOW = {"max_tokens": 400}


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so; `in_loop` bounds the wait."""
    while not is_so():  # noqa: ASYNC110, a test polls
        await asyncio.sleep(0)


class Pair:
    """A replica, and an ingress that keeps what it is told."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.replica = ReplicaEngine(assemble(settings), "r1")
        self.told: list[Told] = []
        self.lost: list[str] = []
        self.channel = BackChannel("in", "127.0.0.1", self._take, self.lost.append)
        self.address: Address
        self._number = 0

    def _take(self, replica: str, message: Told) -> None:
        assert replica == "r1"
        self.told.append(message)

    def order(self, request: Request, attempt: int = 1, model_key: str = "fake") -> bytes:
        self._number += 1
        return encode_one(
            Run(self.address, self._number, attempt, 0.0, Wanted.of(request), model_key)
        )

    def of(self, request: Request) -> list[OfRequest]:
        """What was told of a request."""
        return [each for each in self.told if isinstance(each, OfRequest) and each.id == request.id]

    async def end_of(self, request: Request) -> Ended:
        while True:
            for each in self.of(request):
                if isinstance(each, Ended):
                    return each
            await asyncio.sleep(0)

    async def made(self, request: Request, count: int) -> None:
        """Wait until so many tokens of a request were told."""
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


def tokens_of(told: list[OfRequest]) -> tuple[int, ...]:
    return tuple(token for each in told if isinstance(each, Made) for token in each.tokens)


def test_an_order_is_told_from_its_start_to_its_end(
    in_loop: InLoop, make_request: MakeRequest
) -> None:
    async def test() -> None:
        async with opened() as pair:
            request = make_request(n=2)
            await pair.replica.run(pair.order(request, attempt=3))
            ended = await pair.end_of(request)
            told = pair.of(request)
            assert {each.attempt for each in told} == {3}
            assert told[-1] is ended
            # In this order: observers count a request before it runs.
            assert [type(each) for each in told[:2]] == [Accepted, Started]
            assert sum(isinstance(each, Accepted | Started) for each in told) == 2
            assert [each.index for each in ended.ends] == [0, 1]
            assert {each.finish_reason for each in ended.ends} == {FinishReason.LENGTH}
            assert len(tokens_of(told)) == 32
            assert pair.channel.replicas == ["r1"]

    in_loop(test)


def test_what_another_engine_made_is_not_made_again(
    in_loop: InLoop, make_request: MakeRequest
) -> None:
    """Guards a move: the rest of the tokens are those that one engine makes alone."""

    async def test() -> None:
        async with opened() as pair:
            request = make_request()
            await pair.replica.run(pair.order(request))
            await pair.end_of(request)
            whole = tokens_of(pair.of(request))
            resumed = replace(make_request(), resumed=(whole[:5],))
            await pair.replica.run(pair.order(resumed))
            (end,) = (await pair.end_of(resumed)).ends
            assert tokens_of(pair.of(resumed)) == whole[5:]
            assert end.usage.completion_count == len(whole)

    in_loop(test)


def test_a_refusal_is_told_and_ends_the_order(in_loop: InLoop, make_request: MakeRequest) -> None:
    async def test() -> None:
        async with opened() as pair:
            request = make_request("x" * 600)
            await pair.replica.run(pair.order(request))
            failure = (await pair.end_of(request)).failure
            assert failure is not None
            assert failure.kind == "ContextLengthExceeded"
            assert len(pair.of(request)) == 1

    in_loop(test)


def test_an_order_that_is_none_is_refused(in_loop: InLoop) -> None:
    async def test() -> None:
        async with opened() as pair:
            with pytest.raises(MalformedFrame):
                await pair.replica.run(b"\xc1")

    in_loop(test)


def test_an_ingress_that_is_not_there_gets_nothing(
    in_loop: InLoop, make_request: MakeRequest
) -> None:
    """Guards slots: nothing runs for which nobody could be told; and the next order may work."""

    async def test() -> None:
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

    in_loop(test)


def test_cancelling_a_call_frees_its_slot(in_loop: InLoop, make_request: MakeRequest) -> None:
    async def test() -> None:
        async with opened() as pair:
            request = make_request(**SLOW)
            running = asyncio.create_task(pair.replica.run(pair.order(request)))
            await pair.made(request, 3)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await pair.idle()
            assert pair.replica._engine.snapshot().running_count == 0

    in_loop(test)


def test_the_requests_of_an_ingress_that_is_gone_are_cancelled(
    in_loop: InLoop, make_request: MakeRequest
) -> None:
    """Guards slots: no client is left who could read these answers."""

    async def test() -> None:
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

    in_loop(test)


def test_a_report_has_what_routing_needs(in_loop: InLoop, make_request: MakeRequest) -> None:
    """Guards routing by prefix: the keys of the memory are those of the head of a request."""

    async def test() -> None:
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

    in_loop(test)


def test_it_describes_what_is_loaded(in_loop: InLoop) -> None:
    async def test() -> None:
        async with opened() as pair:
            description = decode_description(pair.replica.describe())
            engine = pair.replica._engine
            assert description.scheduler_settings() == engine.settings
            assert description.traits == engine.backend.traits
            assert description.vocabulary == engine.backend.vocabulary

    in_loop(test)


def test_it_beats_also_when_nothing_happens(in_loop: InLoop, make_request: MakeRequest) -> None:
    """Guards idle replicas: silence would mean that the machine is gone."""

    async def test() -> None:
        async with opened() as pair:
            request = make_request()
            await pair.replica.run(pair.order(request))
            await pair.end_of(request)
            pair.told.clear()
            await until(lambda: len(pair.told) >= 2)
            state = pair.told[1]
            assert isinstance(state, State)
            assert state.snapshot.slot_count == 4
            assert (state.sums["completion_tokens"], state.sums["accepted"]) == (16.0, 1.0)

    in_loop(test)


def test_steering_reaches_a_request_that_runs_here(
    in_loop: InLoop, make_request: MakeRequest
) -> None:
    async def test() -> None:
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

    in_loop(test)


def test_a_second_attempt_replaces_the_first(in_loop: InLoop, make_request: MakeRequest) -> None:
    """Guards a request that is sent again before its cancel arrives: it is no other request."""

    async def test() -> None:
        async with opened() as pair:
            request = make_request(**SLOW)
            first = asyncio.create_task(pair.replica.run(pair.order(request)))
            await until(lambda: any(isinstance(each, Made) for each in pair.of(request)))
            await pair.replica.run(pair.order(request, attempt=2))
            await first

            def last() -> Ended | None:
                told = [each for each in pair.of(request) if isinstance(each, Ended)]
                return next((each for each in told if each.attempt == 2), None)

            await until(lambda: last() is not None)
            ended = last()
            assert ended is not None
            assert ended.failure is None
            assert [each.finish_reason for each in ended.ends] == [FinishReason.LENGTH]

    in_loop(test)


def test_an_engine_that_ends_does_not_tell_it_as_an_answer(
    in_loop: InLoop, make_request: MakeRequest
) -> None:
    """Guards streams of a replica that is shut down: they go on elsewhere."""

    async def test() -> None:
        async with opened() as pair:
            request = make_request(**SLOW)
            running = asyncio.create_task(pair.replica.run(pair.order(request)))
            await pair.made(request, 3)
            await asyncio.to_thread(pair.replica._engine.close, 0.0)
            ended = await pair.end_of(request)
            await running
            assert ended.failure is not None
            assert isinstance(ended.failure.error(), EngineStopped)
            finishes = [each.finish_reason for each in pair.of(request) if isinstance(each, Made)]
            assert set(finishes) == {None}

    in_loop(test)


def test_a_constraint_is_compiled_before_its_request_can_run(
    in_loop: InLoop, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards everyone in the batch, who would wait for it: it was prepared on another replica."""

    async def test() -> None:
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

    in_loop(test)


def test_an_order_to_make_nothing_more_is_refused(
    in_loop: InLoop, make_request: MakeRequest
) -> None:
    async def test() -> None:
        async with opened() as pair:
            request = replace(make_request(n=2), resumed=(None, None))
            await pair.replica.run(pair.order(request))
            ended = await pair.end_of(request)
            assert ended.failure is not None
            assert isinstance(ended.failure.error(), InvalidRequest)

    in_loop(test)


def test_it_tells_while_it_computes_what_was_computed_before(
    in_loop: InLoop, make_request: MakeRequest
) -> None:
    """Guards the innocent: a loss in this time is not their fault. The last pass may be."""

    async def test() -> None:
        async with opened(replace(SETTINGS, prefill_chunk=8, enable_prefix_caching=False)) as pair:
            begun = replace(make_request(max_tokens=60), resumed=(tuple(range(100, 140)),))
            await pair.replica.run(pair.order(begun))
            await pair.end_of(begun)
            news = [each for each in pair.of(begun) if not isinstance(each, Ended)]
            first = next(at for at, each in enumerate(news) if isinstance(each, Made))
            told = [each.is_so for each in news if isinstance(each, CatchingUp)]
            assert told == [True, False]
            assert [type(each) for each in news[:first]].count(CatchingUp) == 2
            new = make_request("a long prompt " * 8)
            await pair.replica.run(pair.order(new))
            await pair.end_of(new)
            assert not any(isinstance(each, CatchingUp) for each in pair.of(new))

    in_loop(test)


def test_completions_of_one_request_tell_it_together(
    in_loop: InLoop, make_request: MakeRequest
) -> None:
    """Guards the innocent and the line: one that makes tokens and one that does not are no news."""

    async def test() -> None:
        async with opened(replace(SETTINGS, prefill_chunk=8, enable_prefix_caching=False)) as pair:
            resumed = (tuple(range(100, 180)), (100,))
            begun = replace(make_request(max_tokens=90, n=2), resumed=resumed)
            await pair.replica.run(pair.order(begun))
            await pair.end_of(begun)
            assert sum(isinstance(each, CatchingUp) for each in pair.of(begun)) <= 2

    in_loop(test)
