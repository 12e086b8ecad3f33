"""`python -m tests.simulation.fleet`: a fleet of many replicas, some of which die, on virtual time.

Prints a small table, and one line of JSON at the end. The exit code is 1 if a checker found
something.
"""

import argparse
import gc
import json
import sys
import time
from dataclasses import replace

import numpy as np

from tests.simulation.fleet.checks import End
from tests.simulation.fleet.routers import ROUTERS
from tests.simulation.fleet.simulator import FleetReport, run_fleet
from tests.simulation.fleet.world import FleetWorld, draw_world


def main() -> int:
    """Run one world and say what became of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.fleet", description=__doc__)
    parser.add_argument("--replicas", type=int, default=100)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--losses", type=int, default=10, help="replicas that die by themselves")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--router", choices=ROUTERS, default=ROUTERS[0])
    parser.add_argument(
        "--prompts",
        choices=("shared", "apart"),
        default="shared",
        help="whether prompts begin with system prompts and conversations, or share nothing",
    )
    parser.add_argument("--load", type=float, help="requests in a second, for each replica")
    parser.add_argument("--small", action="store_true", help="the world that tests draw from SEED")
    asked = parser.parse_args()
    world = draw_world(asked.seed) if asked.small else _world_of(asked)
    # Nothing of what is loaded by now is garbage, and a large world is looked through for long.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    started_at, started_s = time.monotonic(), time.process_time()

    def show(ended_count: int) -> None:
        passed_s = time.monotonic() - started_at
        sys.stderr.write(f"{ended_count:,} of {world.request_count:,} after {passed_s:.0f} s\n")

    report = run_fleet(world, show)
    wall_s, processor_s = time.monotonic() - started_at, time.process_time() - started_s
    values = values_of(report) | {"wall_s": round(wall_s, 1), "processor_s": round(processor_s, 1)}
    for name, value in values.items():
        shown = value if isinstance(value, str) else f"{value:,}"
        sys.stdout.write(f"{name.replace('_', ' '):24s} {shown}\n")
    if report.failure is not None:
        sys.stdout.write(f"{describe(report)}\n")
    sys.stdout.write(json.dumps(values) + "\n")
    return 1 if report.failure is not None else 0


def values_of(report: FleetReport) -> dict[str, str | float]:
    """The figures of a run, by name."""
    world, figures = report.world, report.figures
    firsts = list(figures.first_token_s)
    p50, p95 = (1e3 * np.percentile(firsts or [0.0], (50.0, 95.0))).tolist()
    return {
        "seed": world.seed,
        "router": world.router,
        "prompts": "shared" if world.are_prompts_shared else "apart",
        "replicas": world.replica_count,
        "replicas_lost": report.lost_count,
        "replicas_killed": report.killed_count,
        "requests_ended": figures.ended_count,
        **{each.value: figures.ends[each] for each in End},
        "failed_innocent": figures.innocent_count,
        "requests_moved": figures.moved_count,
        "moves": figures.move_count,
        "tokens": figures.token_count,
        "prompt_tokens": figures.prompt_count,
        "prompt_tokens_computed": report.computed_count,
        "cached_share": round(figures.cached_count / max(1, figures.prompt_count), 4),
        "first_token_p50_ms": round(p50, 1),
        "first_token_p95_ms": round(p95, 1),
        "virtual_s": round(report.virtual_s, 1),
        "violations": 0 if report.failure is None else 1,
    }


def describe(report: FleetReport) -> str:
    """What a checker found, and how to see it again."""
    failure, world = report.failure, report.world
    assert failure is not None, "nothing was found"
    is_small = world == draw_world(world.seed)
    again = f"python -m tests.simulation.fleet --small --seed {world.seed}" if is_small else world
    return (
        f"seed {world.seed}, at {failure.at:.3f} s, {failure.checker}: {failure.sentence}\n"
        f"  {again}"
    )


def _world_of(asked: argparse.Namespace) -> FleetWorld:
    world = FleetWorld(
        seed=asked.seed,
        replica_count=asked.replicas,
        request_count=asked.requests,
        loss_count=asked.losses,
        cut_count=asked.losses,
        router=asked.router,
        are_prompts_shared=asked.prompts == "shared",
    )
    return world if asked.load is None else replace(world, per_s=asked.load)


if __name__ == "__main__":
    sys.exit(main())
