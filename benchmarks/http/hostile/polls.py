"""Attacks that only look: pages, figures and traces, asked for without a pause."""

from benchmarks.http.hostile.attack import Attack, Target, crowd


async def page(target: Target) -> None:
    """The page and what it loads."""
    paths = ("/", "/openapi.json", "/v1/models", "/tokenizer_info")
    await crowd(4, lambda number: target.ask(f"GET {paths[number]}"))


async def metrics(target: Target) -> None:
    """The figures."""
    await crowd(4, lambda number: target.ask("GET /metrics"))


async def trace(target: Target) -> None:
    """The flight recorder, which holds megabytes."""
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
    Attack(name="trace-loop", text="/debug/trace, four at once", run=trace),
    Attack(
        name="ready-poll",
        text="/ready without a key, as probes ask, four at once",
        run=ready,
        needs_key=False,
        seconds=2.0,
    ),
)
