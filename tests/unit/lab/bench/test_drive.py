"""All jobs are sent, by clients or at their times; bounds hold."""

import asyncio

from jitney_lab.bench.drive import drive
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.bench.workload import Job, fixed, mixed


class Target:
    """Notes how many jobs are under way, and lets each take a few turns of the loop."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.numbers: list[int] = []

    async def ask(self, job: Job) -> RequestTimes:
        self.numbers.append(job.number)
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(3 + job.number % 3):
            await asyncio.sleep(0)
        self.running -= 1
        return RequestTimes(sent_at=0.0, completion_count=job.number)


def test_clients_ask_again_until_all_jobs_are_done() -> None:
    target = Target()
    results = asyncio.run(drive(fixed(20, 1, 1, seed=0, clients=4), target.ask))
    assert sorted(each.completion_count for each in results) == list(range(20))
    assert target.most == 4


def test_an_open_loop_sends_all_and_reports_each_end() -> None:
    target = Target()
    ended: list[RequestTimes] = []
    load = mixed(20, seed=0)
    results = asyncio.run(drive(load, target.ask, ended=ended.append))
    assert target.numbers == list(range(20))
    assert ended == results
    assert target.most == 20


def test_an_open_loop_keeps_its_bound() -> None:
    target = Target()
    results = asyncio.run(drive(mixed(20, seed=0), target.ask, max_concurrency=3))
    assert len(results) == 20
    assert target.most == 3
