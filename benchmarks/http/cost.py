"""What HTTP costs: tokens per second through one core, and against the engine without it.

On the fake backend the server, its backend's process included, is kept to one core and the
clients to another. On SmolLM2 the same load (16 callers, each with its next request when the last
one ended; 128 in, 64 out on average) is given to the server and to two engines in this process,
all of which live all the time, in turns of some seconds there and back: engine, apart, server,
server, apart, engine, and the other way round. What drifts on a shared machine cancels out. All
stream every token.

"Engine" is what a program has that imports jitney, with the backend in its own process. "Apart" is
one whose backend is a process of its own, as the server's is: a second batch is sent there before
the first is done, which the other lacks. The goal is of the first; the second says what HTTP takes.

Twice: with answers of 32 to 96 tokens, and with answers of one length. In the second all callers
end in one tick; in process they are back before the next one and all their prompts make one pass,
while over HTTP they come one by one, and the first of them run alone. That is what callers in step
would see, and more than HTTP costs.
"""

import asyncio
import contextlib
import json
import os
import random
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from benchmarks.http.quiet import call_all
from benchmarks.http.report import Report
from benchmarks.http.served import Served, served
from benchmarks.http.wire import DONE, Connection, Json
from benchmarks.load import VOCABULARY, Job, random_jobs, spread
from jitney.config import Settings
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.engine.engine import Engine
from jitney.loading.compose import assemble

RUNS = 3
ROUNDS = 8
ROUNDS_IN_STEP = 3
STREAMS = 64
STREAM_TOKENS = 500
CALLERS = 16
JOBS = 32
PROMPT_TOKENS = 128
MEAN_TOKENS = 64
SPREAD_TOKENS = 32
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

Sides = dict[str, Callable[[list[Job]], float]]
"""Tokens per second of a load, by where it is sent."""


def cost(report: Report) -> None:
    """Fake backend through one core, at least 5,000 tokens/s; SmolLM2, at least 0.95 of engine."""
    asyncio.run(_one_core(report))
    _against_engine(report)


async def _one_core(report: Report) -> None:
    cores = sorted(os.sched_getaffinity(0))
    ours = set(cores[1:]) or set(cores)
    bodies = [fake_body(number) for number in range(STREAMS)]
    rates = []
    with served(*FAKE_FLAGS, cores={cores[0]}) as server:
        os.sched_setaffinity(0, ours)
        try:
            async with asyncio.timeout(RUN_S_MAX):
                await stream_all(server, bodies[:8])
                for _ in range(RUNS):
                    events, seconds = await stream_all(server, bodies)
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


def fake_body(number: int) -> Json:
    """A stream of the fake backend that has a fixed length."""
    generator = random.Random(number)
    return {
        "prompt": [generator.randrange(256) for _ in range(16)],
        "max_tokens": STREAM_TOKENS,
        "seed": number,
        "ignore_eos": True,
        "stream": True,
    }


def _against_engine(report: Report) -> None:
    with (
        served(*SMOL_FLAGS) as server,
        _opened(apart=False) as engine,
        _opened(apart=True) as apart,
    ):
        sides: Sides = {
            "engine": partial(_engine_rate, engine),
            "apart": partial(_engine_rate, apart),
            "http": partial(http_rate, server),
        }
        for rate in sides.values():
            rate(_like_jobs(599)[:CALLERS])
        mixed = [_compare(report, sides, mixed_jobs(600 + at), at) for at in range(ROUNDS)]
        report.say("answers of one length:")
        in_step = [
            _compare(report, sides, _like_jobs(700 + at), at) for at in range(ROUNDS_IN_STEP)
        ]
    for name, ratios in (("", mixed), ("_in_step", in_step)):
        for side in ("engine", "apart"):
            report.figure(f"http_over_{side}{name}", [each[side] for each in ratios])
    of_engine, of_apart = ([each[side] for each in mixed] for side in ("engine", "apart"))
    told = spread([each["engine"] for each in in_step])
    report.say(f"with answers of one length: {told} of the engine's throughput")
    report.say(f"of the engine whose backend is a process as well: {spread(of_apart)}")
    report.check(
        f"at least {RATIO_GOAL} of the engine's throughput over HTTP: {spread(of_engine)}",
        statistics.median(of_engine) >= RATIO_GOAL,
    )


def _compare(report: Report, sides: Sides, jobs: list[Job], number: int) -> dict[str, float]:
    """HTTP over each of the others on one load, all measured twice."""
    order = list(sides) if number % 2 == 0 else list(reversed(sides))
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for side in (*order, *reversed(order)):
        rates[side].append(sides[side](jobs))
    said = [f"{side} {', '.join(f'{each:.0f}' for each in rates[side])}" for side in rates]
    ratios = {side: sum(rates["http"]) / sum(rates[side]) for side in ("engine", "apart")}
    told = ", ".join(f"{ratio:.3f} of {side}" for side, ratio in ratios.items())
    report.say(f"{'; '.join(said)} tokens/s: http {told}")
    return ratios


def _like_jobs(seed: int) -> list[Job]:
    return random_jobs(JOBS, PROMPT_TOKENS, MEAN_TOKENS, seed=seed, vocabulary_size=VOCABULARY)


def mixed_jobs(seed: int) -> list[Job]:
    """As many tokens for each caller, so that all of them are there to the end."""
    generator = random.Random(seed)
    by_turn = [
        [generator.randint(-SPREAD_TOKENS, SPREAD_TOKENS) for _ in range(CALLERS)]
        for _ in range(JOBS // CALLERS // 2)
    ]
    offsets = [sign * each for turn in by_turn for sign in (1, -1) for each in turn]
    return [
        replace(job, completion_count=MEAN_TOKENS + offset)
        for job, offset in zip(_like_jobs(seed), offsets, strict=True)
    ]


@contextlib.contextmanager
def _opened(*, apart: bool) -> Iterator[Engine]:
    """An engine in this process, with its backend here or apart."""
    settings = Settings(
        max_num_seqs=CALLERS,
        max_model_len=LENGTH_MAX,
        enable_prefix_caching=False,
        backend_process=apart,
    )
    assembly = assemble(settings)
    try:
        yield assembly.engine
    finally:
        assembly.close()


def _engine_rate(engine: Engine, jobs: list[Job]) -> float:
    """Tokens per second when all callers have had all of theirs."""

    async def ask(number: int) -> None:
        for job in jobs[number::CALLERS]:
            params = SamplingParams(temperature=0, max_tokens=job.completion_count, ignore_eos=True)
            request_id = RequestId(uuid.uuid4().hex)
            request = Request(id=request_id, prompt=job.prompt, params=params, seed=number)
            count = 0
            async for delta in engine.send(request, streams=True):
                count += len(delta.tokens)
            assert count == job.completion_count, count

    async def all_of_them() -> float:
        started = time.perf_counter()
        async with asyncio.timeout(RUN_S_MAX):
            await asyncio.gather(*map(ask, range(CALLERS)))
        return time.perf_counter() - started

    return _token_count(jobs) / asyncio.run(all_of_them())


def http_rate(server: Served, jobs: list[Job]) -> float:
    """Tokens per second over HTTP when all callers have had all of theirs."""
    bodies = [[_body(job) for job in jobs[number::CALLERS]] for number in range(CALLERS)]
    seconds = call_all(server.port, PATH, bodies)
    return _token_count(jobs) / seconds


def _token_count(jobs: list[Job]) -> int:
    return sum(job.completion_count for job in jobs)


def _body(job: Job) -> Json:
    return {
        "prompt": list(job.prompt),
        "max_tokens": job.completion_count,
        "temperature": 0,
        "ignore_eos": True,
    }


async def stream_all(server: Served, bodies: list[Json]) -> tuple[int, float]:
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
