"""`ChildProcess`: a process that runs one of our modules and exchanges frames with us.

Any thread may end it; one thread at a time uses each of its channels. A separate thread starts the
process and waits for its end, because Linux ends a child that called `die_with_parent` together
with the thread that started it. Every wait has a limit.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import IO

from jitney.sandbox.frames import Frames

_KILL_S_MAX = 30.0
_OUTPUT_BYTES_MAX = 8192
_LAST_LINES = 3
_LAST_CHARACTERS_MAX = 400
_FAULT = "Fatal Python error: "
"""What Python's `faulthandler` begins with."""


class ChildProcess:
    """Runs `python -m MODULE SOCKET... ARGUMENT...`, with one socket for each channel.

    Raises OSError when it cannot be started.
    """

    def __init__(
        self, module: str, *arguments: str, channel_count: int = 1, keeps_output: bool = False
    ) -> None:
        self._keeps_output = keeps_output
        self._output = bytearray()
        self._ended = threading.Event()
        self._reaping = threading.Lock()
        """Held while the number of the process may become free, or is used."""
        started: Future[subprocess.Popen[bytes]] = Future()
        try:
            # Only the child may hold its ends: when it ends they close, and we see that. On a
            # failure or Ctrl-C ours close too, and a child that has started ends.
            with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
                channels, fds = [], []
                for _ in range(channel_count):
                    own, other = socket.socketpair()
                    channels.append(Frames(ours.enter_context(own)))
                    fds.append(theirs.enter_context(other).fileno())
                self.channels = tuple(channels)
                # -P keeps the current folder off the path: it may have a file of any name.
                command = [sys.executable, "-P", "-m", module, *map(str, fds), *arguments]
                threading.Thread(
                    target=self._watch,
                    args=(command, fds, started),
                    name="child-process",
                    daemon=True,
                ).start()
                # The thread uses the child's ends until the process has started.
                theirs.callback(started.exception)
                self._process = started.result()
                ours.pop_all()
        except (OSError, subprocess.SubprocessError, RuntimeError) as error:
            raise ChildProcessError(str(error)) from error

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._ended.is_set()

    @property
    def status(self) -> int | None:
        """The exit status, as `subprocess` gives it; None while it runs."""
        return self._process.returncode

    @property
    def signal(self) -> int | None:
        """The signal that ended it; None if none did."""
        status = self._process.returncode
        return -status if status is not None and status < 0 else None

    def end(self, grace_s: float) -> None:
        """Close its channels, which tells it to end; kill it after `grace_s`."""
        self._close_channels()
        self.wait_or_kill(grace_s)

    def wait_or_kill(self, grace_s: float) -> None:
        """Wait for its end, and kill it after `grace_s`."""
        if not self._ended.wait(grace_s):
            self.kill()

    def kill(self) -> None:
        """Kill it and the processes that it forked; returns when it is gone."""
        with self._reaping:
            # After an end that was waited for, another process may have the same number.
            if self._process.returncode is None:
                _kill_group(self._process.pid)
        self._close_channels()
        self._ended.wait(_KILL_S_MAX)

    def last_lines(self) -> str:
        """The end of its output on one line; empty if there is none, or if it is not kept."""
        lines = self._split_output()[0].split("\n")
        last = [line.strip() for line in lines if line.strip()][-_LAST_LINES:]
        return " | ".join(last)[-_LAST_CHARACTERS_MAX:]

    def crashed_stack(self) -> str:
        """Where the thread was that crashed; empty if nobody knows."""
        return self._split_output()[1]

    def _split_output(self) -> tuple[str, str]:
        """What it wrote itself, and what `faulthandler` wrote in the end."""
        written, _, stack = self._output.decode("utf-8", "replace").partition(_FAULT)
        return written, stack

    def _close_channels(self) -> None:
        for channel in self.channels:
            channel.close()

    def _watch(
        self, command: list[str], fds: list[int], started: "Future[subprocess.Popen[bytes]]"
    ) -> None:
        """Start the process, and wait for its end."""
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if self._keeps_output else subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                pass_fds=fds,
                # A kill of the group also ends the processes that it forked.
                process_group=0,
            )
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(process)
        # Beside the wait: what it forked may hold its output open when it is gone.
        reader = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        if self._keeps_output:
            reader.start()
        if sys.platform == "linux":
            # Where a program ignores SIGCHLD, the system itself reaps children, and frees their
            # numbers. Then there is nothing to wait for, and nobody to kill.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
                with self._reaping:
                    # What it forked may still run, and the number is not free yet.
                    _kill_group(process.pid)
                    process.wait()
        process.wait()
        if self._keeps_output:
            reader.join(_KILL_S_MAX)
        self._ended.set()

    def _read(self, output: IO[bytes] | None) -> None:
        """Keep the end of its output."""
        assert output is not None, "It is kept"
        with output:
            while piece := os.read(output.fileno(), _OUTPUT_BYTES_MAX):
                self._output += piece
                del self._output[:-_OUTPUT_BYTES_MAX]


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
