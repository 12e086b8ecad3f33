"""Attacks that only look: pages, figures and traces, asked for without a pause."""

import asyncio
import contextlib

from benchmarks.http.hostile.attack import Attack, Bounds, Target, crowd
from benchmarks.http.wire import HOST, Json

FILL_S = 6.0
"""The longer the recorder ran, the larger is its trace."""


async def page(target: Target) -> None:
    """The page and what it loads."""
    paths = ("/", "/openapi.json", "/v1/models", "/tokenizer_info")
    await crowd(4, lambda number: target.ask(f"GET {paths[number]}"))


async def metrics(target: Target) -> None:
    """The figures."""
    await crowd(4, lambda number: target.ask("GET /metrics"))


async def trace(target: Target) -> None:
    """The flight recorder, once it has something to tell."""
    body: Json = {"prompt": ["x"] * 64, "n": 4, "max_tokens": 2}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FILL_S):
            await crowd(4, lambda number: target.post("/v1/completions", body))
    reader, writer = await asyncio.open_connection(HOST, target.port)
    writer.write(target.request("GET /debug/trace"))
    target.told[f"a trace of {len(await reader.read()) // 1000} KB"] += 1
    writer.close()
    await crowd(4, lambda number: target.ask("GET /debug/trace"))


async def ready(target: Target) -> None:
    """Readiness as a probe asks for it, which has no key."""
    told = await target.ask("GET /ready", key=False)
    if told != "200":
        target.faults.append(f"/ready without a key is told {told}")
    await crowd(4, lambda number: target.ask("GET /ready", key=False))


ATTACKS = (
    Attack(name="page-poll", text="the page and descriptions, four at once", run=page),
    Attack(name="metrics-poll", text="/metrics, four at once", run=metrics),
    Attack(
        name="trace-loop",
        text="/debug/trace after many requests, four at once",
        run=trace,
        seconds=FILL_S + 6.0,
        bounds=Bounds(chat_ms=None, because="its own requests fill the recorder first"),
    ),
    Attack(
        name="ready-poll",
        text="/ready without a key, as probes ask, four at once",
        run=ready,
        needs_key=False,
        seconds=2.0,
    ),
)
