"""One run of the backend's process: started, spoken to, ended, and its last words kept.

Made by `jitney.backends.process.client`. Any thread may end it; each channel is used by one thread
at a time. The process is started by the thread that reads its output, because the kernel ends it
with the thread that started it, and that one lives as long as it does.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from typing import IO

from jitney.backends.process.messages import Channel
from jitney.errors import BackendCrashed
from jitney.sandbox.frames import Frames

_GRACE_S = 2.0
_KILL_S_MAX = 30.0
_OUTPUT_BYTES_MAX = 8192
_LAST_LINES = 3
_LAST_CHARACTERS_MAX = 400

_ILLEGAL_INSTRUCTION = (
    ": this build of llama.cpp uses processor instructions that its compiler got wrong here"
)
_FALLS_BACK = (
    "; it goes on with plain kernels, which are slower, until "
    '`make llama ARGS="--compile --force"` builds it anew.'
)
_REBUILD = '; `make llama ARGS="--compile --force"` builds it anew.'


class Child:
    """A process that runs `jitney.backends.process.worker`, and the three channels to it."""

    def __init__(self) -> None:
        pairs = [socket.socketpair() for _ in range(3)]
        self.batches, self.texts, self.constraints = (Channel(Frames(ours)) for ours, _ in pairs)
        self._output = bytearray()
        self._started = threading.Event()
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._start_error: OSError | subprocess.SubprocessError | None = None
        watcher = threading.Thread(
            target=self._watch,
            args=([each for _, each in pairs],),
            name="backend-output",
            daemon=True,
        )
        watcher.start()
        self._started.wait()
        if self._start_error is not None:
            self._close_channels()
            raise BackendCrashed(
                f"the backend process could not be started ({self._start_error})."
            ) from self._start_error

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self._process is not None, "a child without a process is never handed out"
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._ended.is_set()

    @property
    def signal(self) -> int | None:
        """The signal that ended the process, when it is gone and one did."""
        status = None if self._process is None else self._process.returncode
        return -status if status is not None and status < 0 else None

    def end(self) -> None:
        """Ask it to go by closing its channels, then insist; returns when it is gone."""
        self._close_channels()
        if not self._ended.wait(_GRACE_S):
            self.kill()

    def kill(self) -> None:
        """End it at once; returns when it is gone."""
        assert self._process is not None, "a child without a process is never handed out"
        self._process.kill()
        self._close_channels()
        self._ended.wait(_KILL_S_MAX)

    def crash(self, *, can_fall_back: bool) -> BackendCrashed:
        """The error that says how the process ended. It is ended first, if it still lives."""
        if not self._ended.wait(_GRACE_S):
            self.kill()
        assert self._process is not None, "a child without a process is never handed out"
        number = self.signal
        if number is None:
            return BackendCrashed(
                "the backend process ended by itself "
                f"(status {self._process.returncode}){self._last_words()}"
            )
        if number == signal.SIGKILL:
            why = "; the system does that when memory runs out."
        elif number == signal.SIGILL:
            why = _ILLEGAL_INSTRUCTION + (_FALLS_BACK if can_fall_back else _REBUILD)
        else:
            why = self._last_words()
        return BackendCrashed(f"the backend process was killed (signal {number}){why}", number)

    def _close_channels(self) -> None:
        for channel in (self.batches, self.texts, self.constraints):
            channel.close()

    def _last_words(self) -> str:
        lines = self._output.decode("utf-8", "replace").split("\n")
        words = " | ".join([line.strip() for line in lines if line.strip()][-_LAST_LINES:])
        if not words:
            return "."
        return f"; the last it wrote was: {words[-_LAST_CHARACTERS_MAX:]}"

    def _watch(self, ends: list[socket.socket]) -> None:
        """Start the process, keep the end of what it writes, and see it off."""
        fds = [end.fileno() for end in ends]
        # -P keeps the current folder off the path: a file there may have any module's name.
        command = [sys.executable, "-P", "-m", "jitney.backends.process.worker"]
        try:
            self._process = subprocess.Popen(
                [*command, *map(str, fds), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=fds,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._start_error = error
        finally:
            # Only the process may hold these ends: their closing is how its end is seen.
            for end in ends:
                end.close()
            self._started.set()
        if self._process is not None:
            assert self._process.stdout is not None, "its output was asked for"
            with self._process.stdout as output:
                self._keep_output(output)
            self._process.wait()
        self._ended.set()

    def _keep_output(self, output: IO[bytes]) -> None:
        while piece := os.read(output.fileno(), _OUTPUT_BYTES_MAX):
            self._output += piece
            del self._output[:-_OUTPUT_BYTES_MAX]
