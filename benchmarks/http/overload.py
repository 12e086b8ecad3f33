"""Ten times too much: goodput stays, the queue is bounded, and everybody gets an answer.

The peak is what the server completes while there are always just enough calls for full batches.
Then ten times as many come, at random moments and whatever becomes of those before them. A call
counts when its answer is whole within ANSWER_S_MAX of its offer, in both runs. The fake backend
takes time as a model would (`benchmarks.http.paced`); `--backend auto` is SmolLM2.
"""

import asyncio
import json
import time
from collections import Counter

from benchmarks.http.arrivals import Answer, Callers, run_modestly
from benchmarks.http.paced import program
from benchmarks.http.report import Report
from benchmarks.http.served import Served, allow_files, served
from benchmarks.http.wire import request_bytes
from benchmarks.load import percentile

TIMES = 10
SECONDS = 60.0
PEAK_S_MIN = 8.0
RAMP_S = 4.0
"""The first batches start empty and end together; what counts comes after."""

SLOTS = 16
QUEUE_MAX = 64
PROMPT_TOKENS = 64
TOKENS_MIN, TOKENS_MAX = 16, 48
"""Lengths differ, so that answers end one by one and a rate can be seen in seconds."""

TICK_MS, TOKEN_US = 30.0, 200.0
"""About what a small model takes on two cores."""

ANSWER_S_MAX = 20.0
FINISH_S_MAX = 60.0
GOODPUT_MIN = 0.9
OFFERED_MIN = 0.9
"""Share of the calls that this process must have offered at their time."""

REFUSALS = frozenset({429, 503})
FLAGS = (
    *("--max-num-seqs", str(SLOTS), "--max-model-len", "256"),
    *("--max-num-queued-reqs", str(QUEUE_MAX)),
)
PATH = "/v1/completions"


def overload(report: Report) -> None:
    """Ten times of what the server can do: goodput, queue, refusals."""
    allow_files()
    is_fake = report.options.backend in (None, "fake")
    flags = (*FLAGS, "--backend", "fake") if is_fake else FLAGS
    started_as = program(TICK_MS, TOKEN_US) if is_fake else ("jitney",)
    with served(*flags, program=started_as) as server:
        run_modestly(lambda: _overload(report, server))
        report.check("no traceback in the log", "Traceback" not in server.log())


async def _overload(report: Report, server: Served) -> None:
    seconds = report.options.seconds or SECONDS
    peak = await _peak(report, server, max(PEAK_S_MIN, seconds / 4))
    before, started_s = server.footprint(), time.perf_counter() + RAMP_S
    callers, waiting = Callers(server.port), [0.0]
    watch = asyncio.create_task(_watch(server, waiting))
    await callers.offer(TIMES * peak, RAMP_S + seconds, _request)
    ended_s = time.perf_counter()
    watch.cancel()
    waiting_peak = max(waiting)
    await callers.finish(FINISH_S_MAX)
    rate = goodput(callers.answers, started_s, ended_s)
    _tell(report, callers, rate, peak)
    idle_s = await server.idle_s(FINISH_S_MAX)
    after = server.footprint()
    report.say(f"waiting at most {waiting_peak:.0f}; idle after {idle_s:.1f} s; {before}; {after}")
    report.figure("waiting_peak", waiting_peak)
    report.check(f"the queue is bounded: at most {QUEUE_MAX} wait", waiting_peak <= QUEUE_MAX)


def goodput(answers: list[Answer], started_s: float, ended_s: float) -> float:
    """Calls in a second that were answered well, in time, and between these two moments."""
    good = sum(
        each.status == 200 and each.took_s <= ANSWER_S_MAX and started_s <= each.ended_s <= ended_s
        for each in answers
    )
    return good / (ended_s - started_s)


async def _peak(report: Report, server: Served, seconds: float) -> float:
    """The best rate of answers with full batches, in calls a second."""
    rates: dict[int, float] = {}
    for at_once in (SLOTS, 2 * SLOTS):
        callers = Callers(server.port)
        await callers.keep_busy(at_once, RAMP_S, _request)
        started_s = time.perf_counter()
        await callers.keep_busy(at_once, seconds, _request)
        rates[at_once] = goodput(callers.answers, started_s, time.perf_counter())
        await callers.finish(FINISH_S_MAX)
    told = ", ".join(f"{at_once} at once {rate:.1f}/s" for at_once, rate in rates.items())
    report.say(f"peak: {told}")
    return max(rates.values())


def _tell(report: Report, callers: Callers, rate: float, peak: float) -> None:
    statuses = Counter(each.status for each in callers.answers)
    well = [each.took_s for each in callers.answers if each.status == 200]
    refused = [each for each in callers.answers if each.status in REFUSALS]
    waits = [each.took_s for each in refused] or [0.0]
    all_due = callers.offered + callers.not_offered
    report.say(
        f"offered {callers.offered} calls, {callers.not_offered} not in time; "
        f"statuses { ({str(status): count for status, count in statuses.items()}) }; an answer "
        f"took p50 {percentile(well, 0.5):.1f} s, p99 {percentile(well, 0.99):.1f} s, a refusal "
        f"p50 {percentile(waits, 0.5) * 1e3:.0f} ms, p99 {percentile(waits, 0.99) * 1e3:.0f} ms"
    )
    report.figure("peak_per_s", peak)
    report.figure("goodput_per_s", rate)
    report.figure("offered", callers.offered)
    report.figure("not_offered", callers.not_offered)
    report.check(
        f"{TIMES} times the peak was offered, at least {OFFERED_MIN:.0%} of it in time",
        callers.offered >= OFFERED_MIN * all_due,
    )
    report.check(
        f"goodput {rate:.1f}/s is at least {GOODPUT_MIN:.0%} of the peak of {peak:.1f}/s, or "
        f"{peak * (TOKENS_MIN + TOKENS_MAX) / 2:.0f} tokens/s",
        rate >= GOODPUT_MIN * peak,
    )
    report.check(
        f"every refusal is 429 or 503 with Retry-After: {len(refused)}",
        set(statuses) <= {200, None, *REFUSALS} and all(each.says_when for each in refused),
    )
    report.check(
        f"no call without an answer: {statuses[None]}",
        statuses[None] == 0 and len(callers.answers) == callers.offered,
    )
    report.check(
        f"no answer took longer than {ANSWER_S_MAX:g} s",
        max(each.took_s for each in callers.answers) <= ANSWER_S_MAX,
    )


async def _watch(server: Served, waiting: list[float]) -> None:
    """How many wait, now and then, until it is cancelled."""
    while True:
        waiting.append((await server.metrics())["jitney:requests_waiting"])
        await asyncio.sleep(0.5)


def _request(number: int) -> bytes:
    """Equal work on average, and nothing to share: every fourth is a stream."""
    words = f"{number:08d}".encode() * (PROMPT_TOKENS // 8)
    body = {
        "prompt": list(words),
        "max_tokens": TOKENS_MIN + number * 7 % (TOKENS_MAX - TOKENS_MIN + 1),
        "ignore_eos": True,
        "temperature": 0.0,
        "stream": number % 4 == 0,
    }
    return request_bytes(f"POST {PATH} HTTP/1.1", json.dumps(body).encode())
