"""Runs a long build, keeps its whole output in a log, and says honestly how far it is."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

TAIL_LINES = 30
QUIET_S = 30.0
_COUNT = re.compile(r"\[(\d+)/(\d+)\]")


def watch(command: list[str], environ: Mapping[str, str], log: Path) -> int:
    """Run the command; one line tells the time and ninja's count. Its exit status."""
    count = [""]
    with log.open("w", encoding="utf-8") as whole:
        process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert process.stdout is not None, "it is a pipe"
        lines = process.stdout

        def read() -> None:
            for line in lines:
                whole.write(line)
                matched = _COUNT.search(line)
                if matched is not None:
                    count[0] = f"{matched[1]} of {matched[2]} files"

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            _tick(process, count, reader)
        except BaseException:
            # The compilers are children of children: end the whole group that we started.
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
        finally:
            reader.join(timeout=10)
            lines.close()
    if process.returncode != 0:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
        print("\n".join(tail), file=sys.stderr, flush=True)
    return process.returncode


def _tick(process: subprocess.Popen[str], count: list[str], reader: threading.Thread) -> None:
    started = time.monotonic()
    shown = started
    is_live = sys.stdout.isatty()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1.0)
        ended = process.returncode is not None
        if ended:
            # Its last lines may not have been read yet.
            reader.join(timeout=10)
        now = time.monotonic()
        minutes, seconds = divmod(int(now - started), 60)
        line = f"  {minutes}:{seconds:02d}  {count[0] or 'fetching and configuring'}"
        if is_live:
            print(f"\r{line:<60}", end="\n" if ended else "", flush=True)
        elif ended or now - shown >= QUIET_S:
            print(line, flush=True)
            shown = now
        if ended:
            return
