"""Runs the system's own programs, for facts that no file has. Any thread.

Tests: tests/unit/backends/machine/test_processor.py.
"""

import subprocess

_ANSWER_S_MAX = 10.0


def output_of(*command: str) -> str:
    """The output of the program; empty where it is missing, fails or does not end."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_ANSWER_S_MAX,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""
