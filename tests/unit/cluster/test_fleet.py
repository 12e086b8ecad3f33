"""The engines of several replicas as one: streams that outlive them, refusals, cancels, counts."""

import asyncio
from dataclasses import replace

import pytest

from jitney.config import Settings
from jitney.core.events import FinishReason
from jitney.core.request import Share
from jitney.core.rules.pauses import PauseOutcome
from jitney.core.scheduler_settings import Strategy
from jitney.engine.answer import Answer
from jitney.errors import BackendFailed, DeadlineExceeded, EngineStopped, InvalidRequest, QueueFull
from jitney.records import RequestAccepted, RequestDone, RequestFailed, RequestRefused
from jitney_cluster.dispatch import ReplicaLost
from jitney_cluster.replica_messages import Order, OrderAccepted, OrderStarted
from tests.unit.cluster.conftest import SETTINGS, SLOW, make_cluster, make_request, until


async def test_requests_are_spread_and_answered() -> None:
    requests = [make_request(f"prompt {number}") for number in range(12)]
    async with make_cluster(1) as alone:
        expected = await alone.texts(requests)
    async with make_cluster(3) as cluster:
        assert await cluster.texts(requests) == expected
        assert set(cluster.dispatch.sent) == set(cluster.dispatch.replicas)


async def test_a_caller_cannot_tell_that_a_replica_died() -> None:
    """Guards invariants 1, 4 and 5 over a loss: nothing twice, nothing lost, usage right."""
    requests = [
        make_request(f"prompt {number}", temperature=float(number % 2), **SLOW)
        for number in range(9)
    ]
    async with make_cluster(1) as alone:
        expected = await alone.texts(requests)
    async with make_cluster(3) as cluster:
        reading = asyncio.create_task(cluster.texts(requests))
        for wanted in (30, 120):
            await cluster.made(wanted)
            await cluster.dispatch.kill(next(iter(cluster.dispatch.replicas)))
        cluster.add()
        assert await reading == expected
        done = cluster.recorded(RequestDone)
        assert len(done) == len(requests)
        assert {each.generated_tokens for each in done} == {200}
        assert len(cluster.recorded(RequestAccepted)) == len(requests)
        assert len(cluster.dispatch.sent) > len(requests)
        assert cluster.fleet.stats().live_requests == 0


async def test_nothing_is_sent_to_a_lost_replica_that_ray_still_lists() -> None:
    """Guards the length of a pause: Ray misses a dead machine up to a minute later than we do."""
    requests = [make_request(f"prompt {number}", **SLOW) for number in range(8)]
    async with make_cluster(2) as cluster:
        reading = asyncio.create_task(cluster.texts(requests))
        await cluster.made(16)
        lost = cluster.dispatch.sent[0]
        before = len(cluster.dispatch.sent)
        cluster.dispatch.cut(lost)
        await reading
        moved = cluster.dispatch.sent[before:]
        assert moved
        assert lost not in moved


async def test_an_order_that_a_silent_replica_did_not_take_goes_elsewhere() -> None:
    """Guards callers of a machine that hangs: Ray would let them wait for a minute."""
    async with make_cluster(2) as cluster:
        first, *others = (make_request(f"prompt {number}") for number in range(9))
        await cluster.texts([first])
        (lost,) = set(cluster.dispatch.sent)
        cluster.dispatch.silent.add(lost)
        reading = asyncio.create_task(cluster.texts(others))
        await until(lambda: lost in cluster.dispatch.sent[1:])
        cluster.dispatch.cut(lost)
        assert all(await reading)


async def test_a_whole_answer_survives_too() -> None:
    """Guards calls without a stream: logprobs and several completions included."""
    request = make_request(n=3, temperature=1.0, logprobs=2, **SLOW)
    async with make_cluster(1) as alone:
        expected: Answer = await alone.fleet.send(request, streams=False).result_async()
    async with make_cluster(2) as cluster:
        answering = asyncio.create_task(cluster.fleet.send(request, streams=False).result_async())
        await cluster.made(50)
        await cluster.dispatch.kill(cluster.dispatch.sent[0])
        answer = await answering
    for ours, theirs in zip(answer.completions, expected.completions, strict=True):
        assert (ours.text, ours.tokens) == (theirs.text, theirs.tokens)
        assert ours.logprobs == theirs.logprobs
        assert ours.finish_reason is theirs.finish_reason
    assert answer.usage.completion_count == expected.usage.completion_count


async def test_a_request_that_kills_its_replicas_ends_alone() -> None:
    """Guards everyone else: it ends after three losses without a token, and they do not."""
    innocent = [make_request(f"prompt {number}", **SLOW) for number in range(6)]
    async with make_cluster(1) as alone:
        expected = await alone.texts(innocent)
    async with make_cluster(2) as cluster:
        reading = asyncio.create_task(cluster.texts(innocent))
        await cluster.made(20)
        poison = make_request("poison")
        cluster.dispatch.poison = poison.id
        with pytest.raises(BackendFailed, match="Every replica"):
            await cluster.fleet.send(poison).result_async()
        assert len(cluster.dispatch.poisoned) == 3
        assert await reading == expected


async def test_a_full_replica_sends_it_on_and_a_full_fleet_refuses() -> None:
    """Guards admission over all: 429 only when every queue is full, with a time to try again."""
    settings = replace(SETTINGS, max_num_seqs=1, max_num_queued_reqs=1)
    async with make_cluster(2, settings) as cluster:
        handles = [cluster.fleet.send(make_request(f"p{at}", **SLOW)) for at in range(8)]
        ended = await asyncio.gather(
            *(each.result_async() for each in handles), return_exceptions=True
        )
        refused = [each for each in ended if isinstance(each, QueueFull)]
        answered = [each for each in ended if isinstance(each, Answer)]
        assert len(refused) + len(answered) == 8
        assert len(answered) >= 2
        assert all(each.retry_after_s > 0 for each in refused)
        assert all(len(each.completions[0].tokens) == 200 for each in answered)


async def test_a_cancel_reaches_the_replica() -> None:
    async with make_cluster(1) as cluster:
        request = make_request(**SLOW)
        handle = cluster.fleet.send(request)
        await cluster.made(5)
        handle.cancel()
        answer = await handle.result_async()
        assert answer.completions[0].finish_reason is FinishReason.CANCELLED
        (replica,) = cluster.dispatch.replicas.values()
        await until(lambda: not replica._engine.stats().live_requests)
        assert request.id not in cluster.fleet._live


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_cancel_right_after_the_send_ends_it(turns: int) -> None:
    """Guards invariant 1: a task that is cancelled before its first step runs none of its code."""
    async with make_cluster(1) as cluster:
        handle = cluster.fleet.send(make_request(**SLOW))
        for _ in range(turns):
            await asyncio.sleep(0)
        handle.cancel()
        answer = await handle.result_async()
        assert answer.completions[0].finish_reason is FinishReason.CANCELLED
        assert not cluster.fleet._live


async def test_what_is_cancelled_before_a_replica_takes_it_is_recorded() -> None:
    """Guards reserved tokens of a key: they are given back when a record says that it ended."""
    async with make_cluster(1) as cluster:
        cluster.dispatch.silent.add("r1")
        handle = cluster.fleet.send(make_request())
        await until(lambda: cluster.dispatch.sent)
        handle.cancel()
        await handle.result_async()
        assert [each.request_id for each in cluster.recorded(RequestAccepted)] == [handle.id]
        assert [each.generated_tokens for each in cluster.recorded(RequestDone)] == [0]
        assert cluster.fleet.stats().live_requests == 0


async def test_a_drain_ends_pauses_and_groups() -> None:
    """Guards callers of a server that drains: no call can resume theirs, or fill their group."""
    settings = replace(SETTINGS, strategy=Strategy.STATIC, max_num_seqs=2)
    async with make_cluster(1, settings) as cluster:
        pair = [cluster.fleet.send(make_request(**SLOW)) for _ in range(2)]
        await cluster.made(5)
        assert await asyncio.wrap_future(pair[0].pause()) is PauseOutcome.PAUSED
        await pair[1].result_async()
        alone = cluster.fleet.send(make_request())
        await until(lambda: cluster.recorded(RequestAccepted)[2:])
        cluster.fleet.end_waits()
        late = cluster.fleet.send(make_request())
        for handle in (pair[0], alone, late):
            answer = await handle.result_async()
            assert answer.completions[0].finish_reason is FinishReason.LENGTH


async def test_a_pause_is_answered_by_the_replica() -> None:
    """Guards who pauses: each replica has a bound of its own, and only it knows."""
    settings = replace(SETTINGS, max_num_queued_reqs=4)
    async with make_cluster(1, settings) as cluster:
        handles = [cluster.fleet.send(make_request(**SLOW)) for _ in range(2)]
        early = asyncio.wrap_future(cluster.fleet.pause(handles[0].id))
        assert await early is PauseOutcome.NOT_NOW
        await cluster.made(5)
        await until(lambda: all(each.replica for each in cluster.fleet._live.values()))
        outcomes = [await asyncio.wrap_future(each.pause()) for each in handles]
        assert outcomes == [PauseOutcome.PAUSED, PauseOutcome.TOO_MANY]
        for handle in handles:
            handle.cancel()
            await handle.result_async()
        ended = asyncio.wrap_future(cluster.fleet.pause(handles[0].id))
        assert await ended is PauseOutcome.ENDED


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (replace(SETTINGS, request_timeout_s=0.05), "limit passed|passed its deadline"),
        (replace(SETTINGS, queue_timeout_s=0.05), r"did not run within 0\.05 s"),
    ],
)
async def test_limits_hold_while_there_is_no_replica(settings: Settings, words: str) -> None:
    """Guards invariant 8: no wait is without end. The limit for waiting once began only when a
    replica had the request."""
    async with make_cluster(1, settings) as cluster:
        await cluster.dispatch.kill("r1")
        with pytest.raises(DeadlineExceeded, match=words):
            await cluster.fleet.send(make_request()).result_async()


async def test_the_router_is_told_of_first_tokens() -> None:
    """Guards routing under load: which prompts are computed only the ingress knows in time."""
    async with make_cluster(1) as cluster:
        for _ in range(3):
            await cluster.fleet.send(make_request()).result_async()
        assert cluster.dispatch.begun == [("r1", 1), ("r1", 2)]


async def test_a_mistake_comes_back_as_itself() -> None:
    """Guards the error of a caller: it is not a loss, and is not tried elsewhere."""
    async with make_cluster(2) as cluster:
        long = make_request("x" * 600)
        with pytest.raises(InvalidRequest.__mro__[1], match="600 tokens"):
            await cluster.fleet.send(long).result_async()
        assert len(cluster.dispatch.sent) == 1
        assert [type(each) for each in cluster.records] == [RequestRefused]


async def test_closing_ends_what_runs() -> None:
    async with make_cluster(1) as cluster:
        handle = cluster.fleet.send(make_request(**SLOW))
        await cluster.made(3)
        await asyncio.to_thread(cluster.fleet.close)
        with pytest.raises(EngineStopped):
            await handle.result_async()
        assert len(cluster.recorded(RequestFailed)) == 1
        with pytest.raises(EngineStopped):
            cluster.fleet.send(make_request())


async def test_a_request_goes_on_with_its_own_model_only() -> None:
    """Guards a rolling update: beside replicas of a new model, the old one finishes its texts."""
    requests = [make_request(f"prompt {number}", **SLOW) for number in range(4)]
    async with make_cluster(1) as alone:
        expected = await alone.texts(requests)
    async with make_cluster(2) as cluster:
        first, second = cluster.dispatch.replicas
        cluster.dispatch.replicas[second].model_key = "another"
        reading = asyncio.create_task(cluster.texts(requests))
        await cluster.made(20)
        assert set(cluster.dispatch.sent) == {first, second}, "both were asked"
        third = cluster.add()
        await cluster.dispatch.kill(first)
        assert await reading == expected
        assert third in cluster.dispatch.sent


async def test_a_request_that_no_replica_takes_ends_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards invariant 8: no wait for a replica is without end."""
    monkeypatch.setattr("jitney_cluster.cluster_request.PLACE_S_MAX", 0.3)
    async with make_cluster(1) as cluster:
        (name,) = cluster.dispatch.replicas
        cluster.dispatch.replicas[name].model_key = "another"
        with pytest.raises(QueueFull, match="another model"):
            await cluster.fleet.send(make_request()).result_async()


async def test_a_key_has_its_part_on_each_replica() -> None:
    """Guards fairness: over all replicas a key holds its share, and no more."""
    async with make_cluster(2) as cluster:
        share = Share(waiting_max=100, waiting_tokens_max=100_000, running_max=2)
        requests = [
            replace(make_request(f"prompt {number}", **SLOW), share=share, tenant="a")
            for number in range(8)
        ]
        reading = asyncio.create_task(cluster.texts(requests))
        await cluster.made(100)
        for replica in cluster.dispatch.replicas.values():
            assert replica._engine.snapshot().running_count == 1
        await reading


async def test_a_moved_request_is_not_refused_by_a_full_queue() -> None:
    """Guards invariant 1: who was accepted is not sent away because its replica died."""
    full = replace(SETTINGS, max_num_seqs=2, max_num_queued_reqs=4, kv_tokens=4096)
    requests = [make_request(f"prompt {number}", **SLOW) for number in range(8)]
    async with make_cluster(2, full) as cluster:
        reading = asyncio.create_task(cluster.texts(requests))
        await cluster.made(100)
        assert not reading.done(), "all were accepted: both replicas are full"
        await cluster.dispatch.kill(next(iter(cluster.dispatch.replicas)))
        assert [len(text) > 0 for text in await reading] == [True] * 8


async def test_a_suspect_that_is_lost_before_it_starts_goes_on() -> None:
    """Guards the turn of suspects: one that is lost again gives it back, and takes it again."""
    async with make_cluster(1) as cluster:
        usual, fates = cluster.dispatch.run, ["runs", "runs", "never comes", "never comes"]
        request = make_request()

        async def run(order: Order) -> None:
            if not fates:
                await usual(order)
                return
            if fates.pop(0) == "runs":
                cluster.fleet._take("gone", OrderAccepted(order.request_id, order.attempt))
                cluster.fleet._take("gone", OrderStarted(order.request_id, order.attempt, 0))
            raise ReplicaLost("gone")

        cluster.dispatch.run = run
        answer = await cluster.fleet.send(request).result_async()
        assert answer.completions[0].finish_reason is FinishReason.LENGTH
        await cluster.fleet._attempts.suspects.acquire(object(), 0.1)  # the turn is free
