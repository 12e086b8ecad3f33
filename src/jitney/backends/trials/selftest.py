"""Whether a backend works on this machine: seen in a child process, and remembered.

The child is `selftest_run`. Native code that crashes, refuses or computes wrongly is found there
and not by the first caller. What a backend is told, and what its failures mean, stands in the
`usable` module of its own package. Called at start-up, from any thread; one process tries at a
time, and the others take what it found.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any  # Any: settings are plain values until a backend has checked them

from jitney.backends.machine.processor import read_processor
from jitney.backends.trials import measure, probes
from jitney.version import version

TRY_S_MAX = 120.0
EXIT_REFUSED = 3
EXIT_NO_ROOM = 4
REASON_CHARACTERS_MAX = 300
METHOD = 1
"""Part of what a verdict is remembered by; another way to try needs another number."""
LOCK = "selftest.lock"
"""Not that of measurements, which may take long."""
_CHILD = "jitney.backends.trials.selftest_run"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was seen: no failure where the backend works, else why it does not, as a clause."""

    failure: str | None
    signal: int | None = None
    """What ended the trial, where it was a signal."""
    is_lasting: bool = True
    """Whether it would surely end the same way again; lack of memory, for one, may pass."""


def verdict(
    name: str, numbers: Mapping[str, Any], distributions: tuple[str, ...], cache: Path
) -> Verdict:
    """Whether the backend works here with these numbers, from memory or by trial."""
    facts = [
        ["selftest", METHOD, version(), name, sorted(numbers.items())],
        probes.builds(distributions),
        asdict(read_processor()),
    ]
    memory = measure.memory_path(cache, facts)
    found = _recall(memory)
    if found is not None:
        return found
    with measure.undisturbed(cache, LOCK):
        # Another process may have tried while this one waited.
        found = _recall(memory) or _try(name, numbers)
        if found.is_lasting:
            answer = {"failure": found.failure, "signal": found.signal}
            probes.keep(memory, answer, None, distributions)
    return found


def _recall(memory: Path) -> Verdict | None:
    try:
        kept = json.loads(memory.read_text(encoding="utf-8"))
        failure, number = kept["failure"], kept["signal"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(failure, str | None) or not isinstance(number, int | None):
        return None
    return Verdict(failure, number)


def _try(name: str, numbers: Mapping[str, Any]) -> Verdict:
    given = json.dumps({"backend": name, "numbers": dict(numbers), "parent": os.getpid()})
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", _CHILD],
            input=given.encode(),
            capture_output=True,
            timeout=TRY_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Verdict(f"it did not end a trial within {TRY_S_MAX:.0f} s", is_lasting=False)
    except OSError as error:
        return Verdict(f"its trial could not be started: {error.strerror}", is_lasting=False)
    return _read(child)


def _read(child: "subprocess.CompletedProcess[bytes]") -> Verdict:
    status = child.returncode
    if status == 0:
        return Verdict(None)
    if status == -signal.SIGKILL:
        failure = "its trial was killed, probably for lack of memory"
        return Verdict(failure, signal.SIGKILL, is_lasting=False)
    if status < 0:
        return Verdict(f"it crashed ({signal.Signals(-status).name})", -status)
    output = child.stdout if status in (EXIT_REFUSED, EXIT_NO_ROOM) else child.stderr
    lines = output.decode("utf-8", "replace").strip().splitlines()
    told = (lines[-1] if lines else f"it ended with status {status}")[:REASON_CHARACTERS_MAX]
    return Verdict(told.rstrip("."), is_lasting=status == EXIT_REFUSED)
