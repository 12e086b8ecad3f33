"""Output of the system's own programs, for what stands in no file. Any thread.

Tests: tests/unit/backends/machine/test_processor.py.
"""

import subprocess

_ANSWER_S_MAX = 10.0


def output_of(*command: str) -> str:
    """What the program prints; nothing where it is missing, refuses or does not end."""
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
