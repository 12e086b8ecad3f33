"""`python -m tests.simulation`: replay one seed, or sweep over many."""

import argparse
import logging
import sys
import time

from tests.simulation import trace
from tests.simulation.simulator import run
from tests.simulation.sweep import Sweep, describe, regression_seeds, sweep
from tests.simulation.world import draw_world

COUNT = 1000


def main() -> int:
    """Exit code 1 when a seed failed, or a sweep of many left something unvisited."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description="Drives the production core and engine tick in worlds drawn from seeds.",
        epilog=trace.LEGEND,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, help="run this one and say what its world is")
    parser.add_argument("--trace", action="store_true", help="with --seed: one line per turn")
    parser.add_argument("--seeds", metavar="A..B", help="sweep over a range, both ends included")
    parser.add_argument("--count", type=int, help=f"sweep from seed 0 on ({COUNT} unless said)")
    arguments = parser.parse_args()
    # The engine warns of every fault that is put into it.
    logging.getLogger("jitney").setLevel(logging.CRITICAL)
    if arguments.seed is not None:
        return replay(arguments.seed, traced=arguments.trace)
    if arguments.seeds is not None:
        first, _, last = arguments.seeds.partition("..")
        return sweep_all(list(range(int(first), int(last or first) + 1)))
    return sweep_all([*regression_seeds(), *range(arguments.count or COUNT)])


def replay(seed: int, *, traced: bool) -> int:
    """Run one seed and say everything about it."""
    write(f"{draw_world(seed)}\n")
    report = run(seed, (lambda line: write(f"{line}\n")) if traced else None)
    write(f"{report.requests} requests, {report.turns} turns, {report.tokens} tokens, ")
    write(f"{report.virtual_s:.1f} virtual seconds\n")
    write(f"{dict(+report.counters)}\n{dict(report.marks)}\n")
    if report.failure is None:
        write("every checker is content\n")
        return 0
    write(f"{describe(report)}\n")
    return 1


def sweep_all(seeds: list[int]) -> int:
    """Run many seeds with a line of progress, and sum up."""
    started_at = time.monotonic()
    shows_progress = sys.stdout.isatty()

    def progress(total: Sweep) -> None:
        if shows_progress:
            write(
                f"\r{total.seeds}/{len(seeds)} seeds, {total.requests} requests, "
                f"{len(total.failures)} failed"
            )

    total = sweep(seeds, progress)
    write("\n" if shows_progress else "")
    for report in total.failures:
        write(f"{describe(report)}\n")
    seconds = time.monotonic() - started_at
    write(
        f"{total.seeds} seeds, {total.requests} requests, {total.turns} turns, "
        f"{total.tokens} tokens, {seconds:.1f} s, {len(total.failures)} failed\n"
    )
    for name, count in sorted((total.counters + total.marks).items()):
        write(f"  {name:34s} {count}\n")
    if total.unreached and len(seeds) >= 200:
        write(f"never visited: {', '.join(total.unreached)}\n")
        return 1
    return 1 if total.failures else 0


def write(text: str) -> None:
    """To standard output, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
