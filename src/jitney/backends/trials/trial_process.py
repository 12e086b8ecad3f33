"""Runs a trial in a child process: `ask` is for the parent, `answer` for the child.

A trial, or a conversion, loads native code, which may crash, hang or take all memory. `ask` starts
a module as a child, sends it JSON on standard input, and makes a `TrialResult` of the way it ends.
The child calls `answer`, which prints one line. Called at start-up, from any thread.

Tests: tests/unit/backends/trials/test_trial.py and test_numpy_check.py.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn  # Any: what JSON can say

import msgspec

from jitney.errors import JitneyError, NoRoom
from jitney.sandbox.die_with_parent import die_with_parent

EXIT_REFUSED = 3
EXIT_NO_ROOM = 4
NO_END = 5
"""The status for a child that could not be started, or did not end in time."""
REASON_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The answer of a child, or why there is none."""

    found: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    """A clause."""
    status: int = 0
    """The exit status; negative for a signal."""

    @property
    def would_repeat(self) -> bool:
        """Whether it would surely end the same way again. Lack of memory, for example, may pass."""
        is_crash = self.status < 0 and self.status != -signal.SIGKILL
        return is_crash or self.status in (0, EXIT_REFUSED)

    @property
    def speed(self) -> float:
        """Tokens of completions per second; 0 where there is no such figure."""
        speed = self.found.get("tokens_per_s")
        return max(speed, 0.0) if isinstance(speed, float) else 0.0


def ask(module: str, payload: Mapping[str, Any], limit_s: float) -> TrialResult:
    """Run the module as a child, for at most `limit_s` seconds."""
    text = json.dumps({**payload, "parent": os.getpid()})
    try:
        child = subprocess.run(
            # -P keeps the current folder off the path: a file there may have a module's name.
            [sys.executable, "-P", "-m", module],
            input=text.encode(),
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TrialResult(failure=f"it did not end within {limit_s:.0f} s", status=NO_END)
    except OSError as error:
        return TrialResult(failure=f"it could not be started: {error.strerror}", status=NO_END)
    # A library may have printed lines before it.
    line = _last_line(child.stdout)
    if child.returncode == 0:
        return TrialResult(found=_object(line))
    return TrialResult(
        failure=_failure(child.returncode, line, child.stderr), status=child.returncode
    )


def answer(find: Callable[[dict[str, Any]], Mapping[str, Any]]) -> NoReturn:
    """For the child: print the answer of `find`, or the message of its JitneyError."""
    payload = json.load(sys.stdin)
    # A child without a parent would only make the next trial slower.
    if not die_with_parent(payload.pop("parent")):
        os._exit(EXIT_NO_ROOM)
    try:
        text, status = json.dumps(find(payload)), 0
    except NoRoom as error:
        text, status = str(error), EXIT_NO_ROOM
    except JitneyError as error:
        text, status = str(error), EXIT_REFUSED
    sys.stdout.write(f"\n{text}\n")
    sys.stdout.flush()
    # Native libraries may hang in their clean-up, and nothing here needs it.
    os._exit(status)


def _failure(status: int, line: str, errors: bytes) -> str:
    if status == -signal.SIGKILL:
        return "it was killed, probably for lack of memory"
    if status < 0:
        return f"it crashed ({signal.Signals(-status).name})"
    if line and status in (EXIT_REFUSED, EXIT_NO_ROOM):
        return line
    reason = _last_line(errors)
    return f"it ended with status {status}" + (f": {reason}" if reason else "")


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:REASON_CHARACTERS_MAX].rstrip(".") if lines else ""


def _object(line: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}
