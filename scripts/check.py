"""Runs every check in order, says how long each took, and stops at the first that fails.

Usage, from the root of the repository:
.venv/bin/python -m scripts.check [--only STAGE] [pytest arguments]

Tests run as one pytest, so that its closing line is the last line of all, on three workers, so that
two cores compute while one test waits. `--workers 0` runs them one by one, as a debugger wants it.
"""

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
CODE = ("src", "tests", "benchmarks", "examples", "scripts")
TESTS = ("style", "unit", "property", "simulation", "conformance", "e2e")
FAILURES_MAX = 20


def existing(*names: str) -> list[str]:
    """Those of the names that are there."""
    return [name for name in names if (ROOT / name).exists()]


def stages() -> dict[str, list[list[str]]]:
    """The commands of each stage before the tests."""
    ruff = str(BIN / "ruff")
    return {
        "lint": [
            [ruff, "check", "--quiet", "--output-format=concise"],
            [ruff, "format", "--check", "--quiet"],
        ],
        "types": [[str(BIN / "mypy"), "--no-error-summary", *existing(*CODE)]],
        "layers": [[str(BIN / "lint-imports"), "--no-cache"]],
    }


def run_stage(name: str, commands: list[list[str]]) -> int:
    """Run a stage; its output is shown only when it fails."""
    started = time.monotonic()
    for command in commands:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            print(done.stdout, end="")
            print(f"{name:<12} failed after {time.monotonic() - started:.1f} s", flush=True)
            return done.returncode
    print(f"{name:<12} ok {time.monotonic() - started:6.1f} s", flush=True)
    return 0


def main() -> int:
    """The first status that is not zero, or that of pytest."""
    parser = argparse.ArgumentParser(description="Run every check.")
    parser.add_argument("--only", choices=tuple(stages()), help="one stage, and no tests")
    parser.add_argument("--workers", default="3", help="processes that run tests")
    asked, others = parser.parse_known_args()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell has what it starts in the background ignore interrupts, which some tests send.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, commands in stages().items():
        if asked.only in (None, name):
            status = run_stage(name, commands)
            if status != 0:
                return status
    if asked.only is not None:
        return 0
    folders = existing(*(f"tests/{name}" for name in TESTS))
    command = [sys.executable, "-m", "pytest", "-p", "scripts.stage_times", *folders]
    command += [f"--maxfail={FAILURES_MAX}", "-n", asked.workers, "--dist", "worksteal", *others]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
