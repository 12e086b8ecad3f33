"""`python -m tests.simulation.plant`: put known bugs in, one at a time, and see each one caught.

Each bug goes into a copy of the source in a temporary folder; another process runs seeds on it
until the checker that must find the bug has found it. A bug that survives is a hole in the
simulation, and makes the exit code 1.
"""

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.fleet.simulator import FleetFailure, run_fleet
from tests.simulation.fleet.world import draw_world
from tests.simulation.plants import PLANTS, Plant
from tests.simulation.simulator import Failure, run

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
SEEDS_MAX = 200
HUNT_S_MAX = 3600
"""Only for a bug that hangs: a busy machine may need many times as long as an idle one."""
FAILURE_OF: dict[str, Callable[[int], Failure | FleetFailure | None]] = {
    "engine": lambda seed: run(seed).failure,
    "fleet": lambda seed: run_fleet(draw_world(seed)).failure,
}
"""What the checkers of a simulation find in the world of a seed."""


@dataclass(frozen=True, slots=True)
class Catch:
    """Who found a bug first, and where the checker that must find it did."""

    first: str | None
    first_seed: int
    seed: int | None
    sentence: str


def missing(plant: Plant) -> list[str]:
    """Snippets that do not stand in the source exactly once."""
    return [
        f"{change.file}: {change.old!r}"
        for change in plant.changes
        if (SOURCE / change.file).read_text(encoding="utf-8").count(change.old) != 1
    ]


def catch(plant: Plant, seeds_max: int = SEEDS_MAX) -> Catch:
    """Put the bug into a copy of the source and hunt it there."""
    assert not missing(plant), missing(plant)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(
            SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )
        for change in plant.changes:
            file = copy / change.file
            text = file.read_text(encoding="utf-8")
            file.write_text(text.replace(change.old, change.new), encoding="utf-8")
        # The copy is found first, before what this process was started with.
        path = [folder, str(ROOT), os.environ.get("PYTHONPATH", "")]
        command = [sys.executable, "-m", "tests.simulation.plant", "--hunt", plant.checker]
        done = subprocess.run(
            [*command, "--in", plant.simulation, "--seeds-max", str(seeds_max)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
            text=True,
            timeout=HUNT_S_MAX,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"the hunt for {plant.name!r} broke off: {done.stderr[-2000:]}")
    return Catch(**json.loads(done.stdout))


def hunt(checker: str, simulation: str, seeds_max: int) -> Catch:
    """Run seeds until this checker finds something; remember who was first."""
    failure_of = FAILURE_OF[simulation]
    first: str | None = None
    first_seed = 0
    for seed in range(seeds_max):
        failure = failure_of(seed)
        if failure is None:
            continue
        if first is None:
            first, first_seed = failure.checker, seed
        if failure.checker == checker:
            return Catch(first, first_seed, seed, failure.sentence)
    return Catch(first, first_seed, None, "")


def main() -> int:
    """Plant them all and print a table; exit code 1 when one survives its checker."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.plant", description=__doc__)
    parser.add_argument("--only", help="plant the bugs whose name contains this")
    parser.add_argument("--seeds-max", type=int, default=SEEDS_MAX, help="seeds tried for each bug")
    parser.add_argument("--hunt", metavar="CHECKER", help=argparse.SUPPRESS)
    parser.add_argument("--in", dest="simulation", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logging.getLogger("jitney").setLevel(logging.CRITICAL)
    if arguments.hunt:
        found = hunt(arguments.hunt, arguments.simulation, arguments.seeds_max)
        sys.stdout.write(json.dumps({name: getattr(found, name) for name in Catch.__slots__}))
        return 0
    survived = 0
    sys.stdout.write(f"{'bug':62s} {'checker':10s} {'seed':>4s}  first found by\n")
    for plant in PLANTS:
        if arguments.only and arguments.only not in plant.name:
            continue
        found = catch(plant, arguments.seeds_max)
        survived += found.seed is None
        seed = "none" if found.seed is None else str(found.seed)
        first = f"{found.first} at seed {found.first_seed}" if found.first else "nobody"
        sys.stdout.write(f"{plant.name:62s} {plant.checker:10s} {seed:>4s}  {first}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{survived} survived\n")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
