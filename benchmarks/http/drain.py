"""SIGTERM under 100 streams: with time everyone gets the whole answer, without it one error."""

import asyncio
import json
import time
from collections import Counter

from benchmarks.http.report import Report
from benchmarks.http.served import Served, is_alive, served
from benchmarks.http.wire import DONE, Connection

STREAMS = 100
SHORT, LONG = 1500, 4000
"""Tokens of each stream: some that fit the time to finish, and some that do not."""

RUN_S_MAX = 120.0
FLAGS = (
    *("--backend", "fake", "--max-num-seqs", str(STREAMS), "--max-model-len", "4096"),
    *("--kv-tokens", "500000"),
)
PATH = "/v1/completions"


def drain(report: Report) -> None:
    """SIGTERM under 100 streams, with 30 s to finish and with one."""
    asyncio.run(_drain(report, "with time", SHORT, (), {"done": STREAMS}))
    hurry = ("--shutdown-timeout", "1")
    asyncio.run(_drain(report, "without", LONG, hurry, {"error": STREAMS}))


async def _drain(
    report: Report, name: str, tokens: int, flags: tuple[str, ...], expected: dict[str, int]
) -> None:
    with served(*FLAGS, *flags) as server:
        children = server.children
        begun = asyncio.Semaphore(0)
        async with asyncio.timeout(RUN_S_MAX):
            streams = [asyncio.create_task(_stream(server, tokens, begun)) for _ in range(STREAMS)]
            for _ in streams:
                await begun.acquire()
            under_way = sum(not stream.done() for stream in streams)
            server.terminate()
            started = time.perf_counter()
            refusals = await _refused(server)
            ends = Counter(await asyncio.gather(*streams))
            code = await server.ended()
        seconds = time.perf_counter() - started
        report.say(
            f"{name}: {under_way} streams under way at the signal ended so: {dict(ends)}; "
            f"exit code {code} after {seconds:.1f} s; meanwhile {refusals}"
        )
        report.figure(f"{name.replace(' ', '_')}_s", seconds)
        report.check(f"{name}: {expected}", dict(ends) == expected and under_way == STREAMS)
        report.check(
            f"{name}: exit code 0, no child left of {len(children)}",
            code == 0 and bool(children) and not any(map(is_alive, children)),
        )
        report.check(
            f"{name}: not ready, and new work is refused with Connection: close",
            refusals == {"/ready": "503", PATH: "503 close"},
        )
        report.check(f"{name}: no traceback in the log", "Traceback" not in server.log())


async def _stream(server: Served, tokens: int, begun: asyncio.Semaphore) -> str:
    """Read one stream to its end; a word for how it ended."""
    connection = await Connection.open(server.port)
    body = {"prompt": "hello", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    ends: list[str] = []
    made = 0
    try:
        head = await connection.begin(PATH, body)
        assert head.status == 200, head
        async for data in connection.events():
            made += 1
            if made == 2:
                begun.release()
            if data == DONE:
                ends.append("done")
            elif "error" in json.loads(data):
                ends.append("error")
            elif ends:
                ends.append("more after the end")
    except (OSError, EOFError, ValueError) as error:
        ends.append(f"{type(error).__name__}: {error}")
    finally:
        connection.close()
    return " and ".join(ends) or "nothing"


async def _refused(server: Served) -> dict[str, str]:
    """How the server answers while it drains."""
    told: dict[str, str] = {}
    async with asyncio.timeout(10.0):
        while told.get("/ready") != "503":
            connection = await Connection.open(server.port)
            told["/ready"] = str((await connection.get("/ready")).status)
            connection.close()
    connection = await Connection.open(server.port)
    reply = await connection.post(PATH, {"prompt": "hello", "max_tokens": 4})
    told[PATH] = f"{reply.status} {reply.head.headers.get('connection')}"
    connection.close()
    return told
