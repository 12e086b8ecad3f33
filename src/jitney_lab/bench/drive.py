"""Sends the jobs of a workload, by their times or by clients that ask again and again.

Runs on an event loop. What a job is sent to is the caller's: an engine in this process or a server.
"""

import asyncio
from collections.abc import Awaitable, Callable

from jitney_lab.bench.timing import RequestTimes
from jitney_lab.bench.workload import Job, Workload

Ask = Callable[[Job], Awaitable[RequestTimes]]
"""Sends one job and waits for its end. Raises nothing that belongs to a single request."""


async def drive(
    workload: Workload,
    ask: Ask,
    *,
    max_concurrency: int | None = None,
    ended: Callable[[RequestTimes], None] = lambda times: None,
) -> list[RequestTimes]:
    """Run a workload to its end; what each request took, in the order of the ends.

    `max_concurrency` bounds how many jobs of an open loop are under way; later ones wait for room.
    """
    results: list[RequestTimes] = []

    async def run(job: Job) -> None:
        times = await ask(job)
        results.append(times)
        ended(times)

    # Clients that ask again and again are a bound, because all of their jobs are due at the start.
    room = asyncio.Semaphore(workload.clients or max_concurrency or len(workload.jobs))
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    async with asyncio.TaskGroup() as group:
        for job in workload.jobs:
            early_s = started_at + job.at_s - loop.time()
            if early_s > 0:
                await asyncio.sleep(early_s)
            await room.acquire()
            group.create_task(run(job)).add_done_callback(lambda task: room.release())
    return results
