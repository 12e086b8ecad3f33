"""Simulations small enough to be computed by hand; the scheduler in them is the real one."""

from dataclasses import replace

import pytest

from jitney.core.scheduler import Scheduler
from jitney_lab.bench.workload import Job, Workload, mixed
from jitney_lab.plan.replica import SimulatedReplica, make_request, refusal_of
from jitney_lab.plan.simulate import CLIENT_S, SimulatedRun, simulate
from jitney_lab.plan.tick_cost import TickCost
from tests.plan_for_tests import make_configuration, make_cost


def job(number: int, at_s: float, prompt: int, completion: int) -> Job:
    return Job(number=number, at_s=at_s, prompt_count=prompt, completion_count=completion)


def run(
    *jobs: Job, clients: int | None = None, replicas: int = 1, **settings: object
) -> SimulatedRun:
    workload = Workload(name="hand", seed=0, jobs=jobs, clients=clients)
    configuration = make_configuration(replicas, **settings)
    return simulate(workload, configuration, make_cost())


def test_a_prompt_beyond_the_model_is_refused_without_being_built() -> None:
    (times,) = run(job(0, 0.0, 10**12, 3)).requests
    assert times.error is not None


def test_the_reason_why_everything_is_refused() -> None:
    configuration = make_configuration(model_len_max=100)
    long = [job(0, 0.0, 200, 3), job(1, 0.0, 300, 3)]
    reason = refusal_of(configuration, long)
    assert reason is not None
    assert "200" in reason
    assert refusal_of(configuration, [*long, job(2, 0.0, 20, 3)]) is None


def test_one_request_takes_its_prompt_and_its_tokens() -> None:
    found = run(job(0, 1.0, 20, 3))
    (times,) = found.requests
    assert times.sent_at == 1.0
    assert times.token_times == pytest.approx([1.02])
    assert times.ended_at == pytest.approx(1.04)
    assert (times.prompt_count, times.completion_count) == (20, 3)
    assert (found.tick_count, found.entry_count) == (3, 3)


def test_one_that_arrives_during_a_tick_joins_the_next() -> None:
    found = run(job(0, 0.0, 20, 3), job(1, 0.005, 10, 2), mix="decode-first")
    first, second = sorted(found.requests, key=lambda each: each.sent_at)
    # 20 ms of prompt; then 10 ms of decode and 10 ms of the other's prompt; then both.
    assert [*first.token_times, first.ended_at] == pytest.approx([0.02, 0.05])
    assert [*second.token_times, second.ended_at] == pytest.approx([0.04, 0.05])


def test_what_the_host_does_delays_the_next_tick_and_not_this_token() -> None:
    workload = Workload(name="hand", seed=0, jobs=(job(0, 0.0, 20, 2),))
    found = simulate(workload, make_configuration(), make_cost(host_s=0.004))
    assert found.requests[0].token_times == pytest.approx([0.02])
    assert found.requests[0].ended_at == pytest.approx(0.038)


def test_with_one_slot_requests_wait_for_each_other() -> None:
    found = run(job(0, 0.0, 10, 2), job(1, 0.0, 10, 2), max_num_seqs=1)
    assert [each.token_times[0] for each in found.requests] == pytest.approx([0.01, 0.03])


def test_a_client_asks_again_when_it_has_its_answer() -> None:
    found = run(*(job(number, 0.0, 10, 1) for number in range(3)), clients=1)
    sent = [each.sent_at for each in found.requests]
    assert sent == pytest.approx([0.0, 0.01 + CLIENT_S, 0.02 + 2 * CLIENT_S])


def test_replicas_share_the_load() -> None:
    found = run(*(job(number, 0.0, 10, 1) for number in range(2)), replicas=2)
    assert [each.token_times[0] for each in found.requests] == pytest.approx([0.01, 0.01])


def test_a_refused_request_has_an_error_and_the_others_go_on() -> None:
    found = run(job(0, 0.0, 2000, 1), job(1, 0.0, 10, 1))
    refused, served = found.requests
    assert refused.error is not None
    assert "2000 tokens" in refused.error
    assert served.error is None


def test_the_answers_of_a_group_come_together() -> None:
    jobs = (job(0, 0.0, 10, 1), job(1, 0.0, 10, 4))
    found = run(*jobs, strategy="static", wait_s=1.0, max_num_seqs=2, mix="decode-first")
    assert len({each.ended_at for each in found.requests}) == 1


def test_a_group_waits_for_its_window() -> None:
    found = run(job(0, 0.0, 10, 1), strategy="dynamic", wait_s=0.05)
    assert found.requests[0].token_times == pytest.approx([0.06])


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_group_that_nobody_fills_starts_when_nothing_else_can_happen(replicas: int) -> None:
    jobs = tuple(job(number, 0.1 * number, 10, 2) for number in range(7))
    found = run(*jobs, replicas=replicas, strategy="static", wait_s=None, max_num_seqs=2)
    assert [each.error for each in found.requests] == [None] * 7
    # The last one stays alone: nothing is ready before its arrival.
    assert max(each.sent_at for each in found.requests) == pytest.approx(0.6)
    assert found.duration_s >= 0.62


def test_clients_that_fill_no_group_get_their_answers() -> None:
    jobs = tuple(job(number, 0.0, 10, 2) for number in range(5))
    found = run(*jobs, clients=2, strategy="static", wait_s=None, max_num_seqs=4)
    assert [each.error for each in found.requests] == [None] * 5


def test_the_scheduler_is_the_production_class() -> None:
    replica = SimulatedReplica(make_configuration(), TickCost(make_cost()))
    assert type(replica.scheduler) is Scheduler


def test_prompts_share_exactly_their_prefix() -> None:
    first, second = (
        make_request(Job(number=number, prompt_count=6, completion_count=1, prefix_count=4))
        for number in range(2)
    )
    assert first.prompt[:4] == second.prompt[:4]
    assert first.prompt[4] != second.prompt[4]


def test_a_shared_prefix_is_computed_once() -> None:
    jobs = tuple(
        Job(number=number, at_s=number, prompt_count=101, completion_count=1, prefix_count=96)
        for number in range(2)
    )
    found = run(*jobs)
    assert found.requests[0].ttft_s == pytest.approx(0.101)
    assert found.requests[1].ttft_s == pytest.approx(0.005)


@pytest.mark.parametrize(("shared", "ttft_s"), [(512, 0.03), (0, 0.54)])
def test_the_router_is_that_of_a_cluster(shared: int, ttft_s: float) -> None:
    """A prompt goes to the replica that has its beginning, though another one is as idle."""
    first = Job(number=0, prompt_count=540, completion_count=1, prefix_count=512)
    second = replace(first, number=1, at_s=3.0, prefix_count=shared)
    found = run(first, second, replicas=4)
    assert found.requests[1].ttft_s == pytest.approx(ttft_s, abs=0.01)


def test_a_request_is_refused_only_if_every_replica_is_full() -> None:
    jobs = tuple(job(number, 0.0, 10, 2) for number in range(9))
    found = run(*jobs, replicas=3, max_num_seqs=1, max_num_queued_reqs=2)
    assert sum(each.error is not None for each in found.requests) == 3


def test_the_same_workload_gives_the_same_times() -> None:
    workload = mixed(60, seed=3, per_s=40.0)
    first, second = (
        simulate(workload, make_configuration(replicas=2), make_cost()) for _ in range(2)
    )
    assert first == second
