"""What HTTP costs: tokens per second through one core, and against the engine without it.

On the fake backend the server, its backend's process included, is kept to one core and the
clients to another. On SmolLM2 the same load (16 callers, each with its next request when the last
one ended; 128 in, 64 out) is given to the engine in this process and to the server, in turns. Both
stream every token; a client over HTTP looks at its events when it has them all, since clients are
elsewhere and their work is not the server's. Callers come one by one in both: sixteen prompts of
one tick would be computed in one large pass, which has nothing to do with HTTP.
"""

import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable

from benchmarks.http.report import Report
from benchmarks.http.served import Served, served
from benchmarks.http.wire import DONE, Connection, Json
from benchmarks.load import Job, make_engine, random_jobs, serve, spread
from jitney.config import Settings
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.loading import load_backend

RUNS = 3
STREAMS = 64
STREAM_TOKENS = 500
CALLERS = 16
RATE_GOAL = 5000.0
RATIO_GOAL = 0.95
RUN_S_MAX = 300.0
FAKE_FLAGS = ("--backend", "fake", "--max-num-seqs", str(STREAMS), "--kv-tokens", "100000")
LENGTH_MAX = 256
SMOL_FLAGS = (
    *("--max-num-seqs", str(CALLERS), "--max-model-len", str(LENGTH_MAX)),
    "--no-enable-prefix-caching",
)

PATH = "/v1/completions"


def cost(report: Report) -> None:
    """Fake backend through one core, at least 5,000 tokens/s; SmolLM2, at least 0.95 of engine."""
    asyncio.run(_one_core(report))
    _against_engine(report)


async def _one_core(report: Report) -> None:
    cores = sorted(os.sched_getaffinity(0))
    ours = set(cores[1:]) or set(cores)
    bodies = [_fake_body(number) for number in range(STREAMS)]
    rates = []
    with served(*FAKE_FLAGS, cores={cores[0]}) as server:
        os.sched_setaffinity(0, ours)
        try:
            async with asyncio.timeout(RUN_S_MAX):
                await _run(server, bodies[:8])
                for _ in range(RUNS):
                    events, seconds = await _run(server, bodies)
                    rates.append(STREAMS * STREAM_TOKENS / seconds)
                    report.say(
                        f"{rates[-1]:.0f} tokens/s in {events / seconds:.0f} events/s over "
                        f"{STREAMS} streams, server and fake backend on one core"
                    )
        finally:
            os.sched_setaffinity(0, cores)
    report.figure("one_core_tokens_per_s", rates)
    report.check(
        f"at least {RATE_GOAL:g} streamed tokens/s on one core: {spread(rates)}",
        statistics.median(rates) >= RATE_GOAL,
    )


def _fake_body(number: int) -> Json:
    generator = random.Random(number)
    return {
        "prompt": [generator.randrange(256) for _ in range(16)],
        "max_tokens": STREAM_TOKENS,
        "seed": number,
        "ignore_eos": True,
        "stream": True,
    }


def _against_engine(report: Report) -> None:
    ratios, over_http, in_process = [], [], []
    with served(*SMOL_FLAGS) as server:
        _http_rate(server, random_jobs(CALLERS, 128, 8, seed=599, vocabulary_size=49_000))
        for number in range(RUNS):
            jobs = random_jobs(96, 128, 64, seed=600 + number, vocabulary_size=49_000)
            # The engine before and after, so that what drifts on a shared machine cancels out.
            before = _engine_rate(jobs)
            over_http.append(_http_rate(server, jobs))
            after = _engine_rate(jobs)
            in_process += [before, after]
            ratios.append(2 * over_http[-1] / (before + after))
            report.say(
                f"http {over_http[-1]:.0f} tokens/s, engine {before:.0f} and {after:.0f}, "
                f"ratio {ratios[-1]:.3f}"
            )
    report.figure("http_over_engine", ratios)
    report.figure("http_tokens_per_s", over_http)
    report.figure("engine_tokens_per_s", in_process)
    report.check(
        f"at least {RATIO_GOAL} of the engine's throughput over HTTP: {spread(ratios)}",
        statistics.median(ratios) >= RATIO_GOAL,
    )


def _engine_rate(jobs: list[Job]) -> float:
    backend = load_backend(Settings(max_num_seqs=CALLERS, max_model_len=LENGTH_MAX))
    engine = make_engine(
        backend, sequences_max=CALLERS, model_len_max=LENGTH_MAX, cache_tokens_max=0
    )

    async def ask(number: int) -> None:
        for place, job in enumerate(jobs[number::CALLERS]):
            params = SamplingParams(temperature=0, max_tokens=job.completion_count, ignore_eos=True)
            request_id = RequestId(f"{number}-{place}")
            request = Request(id=request_id, prompt=job.prompt, params=params, seed=number)
            count = 0
            async for delta in engine.send(request, streams=True):
                count += len(delta.tokens)
            assert count == job.completion_count, count

    serve(engine, jobs[:4])
    rate = _rate(jobs, ask)
    engine.close()
    return rate


def _http_rate(server: Served, jobs: list[Job]) -> float:
    async def ask(number: int) -> None:
        connection = await Connection.open(server.port)
        for job in jobs[number::CALLERS]:
            await _count(connection, _body(job))
        connection.close()

    return _rate(jobs, ask)


def _rate(jobs: list[Job], ask: Callable[[int], Awaitable[None]]) -> float:
    """Tokens per second when all callers have had all of theirs."""

    async def all_of_them() -> float:
        started = time.perf_counter()
        async with asyncio.timeout(RUN_S_MAX):
            await asyncio.gather(*map(ask, range(CALLERS)))
        return time.perf_counter() - started

    return sum(job.completion_count for job in jobs) / asyncio.run(all_of_them())


def _body(job: Job) -> Json:
    return {
        "prompt": list(job.prompt),
        "max_tokens": job.completion_count,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }


async def _run(server: Served, bodies: list[Json]) -> tuple[int, float]:
    """All at once, each on a connection of its own; events and seconds."""
    connections = [await Connection.open(server.port) for _ in bodies]
    started = time.perf_counter()
    counts = await asyncio.gather(*map(_count, connections, bodies))
    seconds = time.perf_counter() - started
    for connection in connections:
        connection.close()
    return sum(counts), seconds


async def _count(connection: Connection, body: Json) -> int:
    head = await connection.begin(PATH, body)
    assert head.status == 200, head
    events = await connection.events_at_end()
    assert events[-1] == DONE, events[-1]
    assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length", events[-2]
    return len(events) - 1
