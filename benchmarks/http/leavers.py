"""Clients that give up: 200 long requests are left after half a second, then one normal one comes.

Nobody may wait for work that nobody wants. Half of the leavers stream; most of them still wait in
the queue when they go. SmolLM2 was made for 8,192 tokens, so 10,000 there means all the room.
"""

import asyncio
import time

from benchmarks.http.report import Report
from benchmarks.http.served import Served, served
from benchmarks.http.wire import Connection, Json

LEAVERS = 200
TOKENS = 10_000
PATIENCE_S = 0.5
ANSWER_S_MAX = 5.0
RUN_S_MAX = 120.0
FAKE_FLAGS = ("--backend", "fake", "--max-model-len", "12000", "--kv-tokens", "262144")
SMOL_FLAGS = ("--max-model-len", "8192", "--kv-tokens", "32768")
PATH = "/v1/completions"


def leavers(report: Report) -> None:
    """200 requests of 10,000 tokens, left after 0.5 s, then a normal one; fake, then SmolLM2."""
    for name, flags in (("fake", FAKE_FLAGS), ("smollm2", SMOL_FLAGS)):
        asyncio.run(_leavers(report, name, flags))


async def _leavers(report: Report, name: str, flags: tuple[str, ...]) -> None:
    with served(*flags) as server:
        async with asyncio.timeout(RUN_S_MAX):
            await _normal(server, streams=False)
            ended = sum(await asyncio.gather(*(_leave(server, n) for n in range(LEAVERS))))
            answers = [await _normal(server, streams=streams) for streams in (False, True)]
            idle_s = await server.idle_s(ANSWER_S_MAX)
            told = await server.metrics()
        cancelled = told['jitney:requests_ended_total{reason="abort"}']
        report.say(
            f"{name}: {LEAVERS - ended} of {LEAVERS} gave up, {cancelled:.0f} of them cancelled in "
            f"the engine after {told['jitney:completion_tokens_total']:.0f} tokens; the next "
            f"answer came after {answers[0]:.2f} s, a stream after {answers[1]:.2f} s, "
            f"idle {idle_s:.2f} s later"
        )
        report.figure(f"{name}_answer_s", answers[0])
        report.check(
            f"{name}: a normal request is answered within {ANSWER_S_MAX:g} s",
            max(answers) <= ANSWER_S_MAX,
        )
        report.check(
            f"{name}: every leaver was seen to leave, and nothing runs or waits",
            ended == 0
            and cancelled == told["jitney:requests_accepted_total"] - 3
            and told["jitney:requests_running"] == told["jitney:requests_waiting"] == 0,
        )


async def _leave(server: Served, number: int) -> bool:
    """Ask for more than can be had in time and go; whether it ended before."""
    connection = await Connection.open(server.port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            head = await connection.begin(PATH, _body(number, TOKENS, streams=number % 2 == 0))
            if "content-length" in head.headers:
                await connection.rest(head)
            else:
                async for _ in connection.events():
                    pass
        return True
    except TimeoutError:
        return False
    finally:
        connection.close()


async def _normal(server: Served, *, streams: bool) -> float:
    """Seconds until a short request was answered in full."""
    started = time.perf_counter()
    connection = await Connection.open(server.port)
    head = await connection.begin(PATH, _body(-1, 16, streams=streams))
    assert head.status == 200, head
    if streams:
        assert [each async for each in connection.events()][-1] == b"[DONE]"
    else:
        await connection.rest(head)
    connection.close()
    return time.perf_counter() - started


def _body(number: int, tokens: int, *, streams: bool) -> Json:
    return {
        "prompt": f"Request {number}: tell me everything about buses.",
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": streams,
    }
