"""Runs every check, says how long each took, and ends with the status of the first that failed.

Usage, from the root of the repository:
.venv/bin/python -m scripts.check [--only STAGE] [--quick] [pytest arguments]

Lint and layers come first, beside each other: tests begin when both are well. mypy, which may need
a minute, runs beside the tests. Tests run as one pytest, on more workers than there are cores,
because many of them wait. `--workers 0` runs them one by one, as a debugger wants it. `--quick` is
for while you work: style, unit and property tests, and sixty seeds of the simulation.
"""

import argparse
import compileall
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
CODE = ("src", "tests", "benchmarks", "examples", "scripts")
TESTS_QUICK = ("style", "unit", "property")
TESTS = (*TESTS_QUICK, "simulation", "conformance", "e2e")
SEEDS_QUICK = "0..59"
FAILURES_MAX = 20
RUFF = str(BIN / "ruff")
STAGES = {
    "lint": [RUFF, "check", "--quiet", "--output-format=concise"],
    "format": [RUFF, "format", "--check", "--quiet"],
    "layers": [str(BIN / "lint-imports"), "--no-cache"],
    # It has what the tests leave of the machine: many of them wait.
    "types": ["nice", str(BIN / "mypy"), "--no-error-summary", *CODE],
    "seeds": [sys.executable, "-m", "tests.simulation", "--seeds", SEEDS_QUICK],
}
CHOICES = {"lint": ("lint", "format"), "types": ("types",), "layers": ("layers",)}
"""What `--only` takes, and the stages that it means."""


class Stage:
    """One command that runs in the background. Its output is shown only when it fails."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._started_at = time.monotonic()
        # No pipe: a command that writes much would wait for its reader.
        self._output: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed by `close`
        self._process = subprocess.Popen(
            STAGES[name], cwd=ROOT, stdout=self._output, stderr=subprocess.STDOUT
        )

    def wait(self) -> int:
        """Its status, once it has ended."""
        status = self._process.wait()
        seconds = time.monotonic() - self._started_at
        if status != 0:
            self._output.seek(0)
            print(self._output.read(), end="")
        print(f"{self.name:<12} {'failed' if status else 'ok':6} {seconds:6.1f} s", flush=True)
        return status

    def close(self) -> None:
        """End it, where it still runs."""
        self._process.kill()
        self._process.wait()
        self._output.close()


def run_tests(folders: Sequence[str], workers: str, others: Sequence[str]) -> int:
    """Pytest's status."""
    command = [sys.executable, "-m", "pytest", "-p", "scripts.stage_times"]
    if not any(each.startswith("tests/") for each in others):
        command += [f"tests/{name}" for name in folders]
    command += [f"--maxfail={FAILURES_MAX}", "-n", workers]
    command += ["--dist", "loadfile", "--no-loadscope-reorder"]
    # A worker that died fails the run: with another one in its place, the run may never end.
    command += ["--max-worker-restart=0", *others]
    # Hundreds of processes import jitney: each would compile it again.
    environ = {**os.environ}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall.compile_dir(ROOT / "src", quiet=1)
    if not any((ROOT / "tests").rglob("*-pytest-*.pyc")):
        # Each worker would rewrite the asserts of all files, which is half of its start.
        collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests"]
        subprocess.run(collect, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, check=False)
    return subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode


def main() -> int:
    """The first status that is not zero."""
    parser = argparse.ArgumentParser(description="Run every check.")
    parser.add_argument("--only", choices=tuple(CHOICES), help="one stage, and no tests")
    parser.add_argument("--quick", action="store_true", help="no simulation, conformance, e2e")
    workers = 2 * (os.cpu_count() or 1) + 1
    parser.add_argument("--workers", default=str(workers), help="processes that run tests")
    asked, others = parser.parse_known_args()
    with ExitStack() as stack:

        def start(*names: str) -> list[Stage]:
            made = [Stage(name) for name in names]
            for stage in made:
                stack.callback(stage.close)
            return made

        if asked.only is not None:
            return _first_failure([stage.wait() for stage in start(*CHOICES[asked.only])])
        first = start("lint", "format", "layers")
        beside = start("types", *(["seeds"] if asked.quick else []))
        status = _first_failure([stage.wait() for stage in first])
        if status != 0:
            return status
        folders = TESTS_QUICK if asked.quick else TESTS
        status = run_tests(folders, asked.workers, others)
        return _first_failure([status, *(stage.wait() for stage in beside)])


def _first_failure(statuses: list[int]) -> int:
    return next((status for status in statuses if status != 0), 0)


if __name__ == "__main__":
    sys.exit(main())
