"""One run of the backend's process: its three channels, and the error that says how it ended.

Made by `jitney.backends.process.client`. Any thread may end it; each channel is used by one thread
at a time.
"""

import os
import signal

from jitney.backends.process.messages import Channel
from jitney.errors import BackendCrashed
from jitney.sandbox.child_process import ChildProcess

_MODULE = "jitney.backends.process.worker"
_GRACE_S = 2.0

_ILLEGAL_INSTRUCTION = (
    ": this build of llama.cpp uses processor instructions that its compiler got wrong here"
)
_FALLS_BACK = (
    "; it goes on with plain kernels, which are slower, until "
    '`make llama ARGS="--compile --force"` builds it anew.'
)
_REBUILD = '; `make llama ARGS="--compile --force"` builds it anew.'


class WorkerProcess:
    """A process that runs `jitney.backends.process.worker`, and the three channels to it."""

    def __init__(self) -> None:
        try:
            self.process = ChildProcess(
                _MODULE, str(os.getpid()), channel_count=3, keeps_output=True
            )
        except OSError as error:
            raise BackendCrashed(f"the backend process could not be started ({error}).") from error
        self.batches, self.texts, self.constraints = map(Channel, self.process.channels)

    def end(self) -> None:
        """Ask it to go by closing its channels, then insist; returns when it is gone."""
        self.process.end(_GRACE_S)

    def crash(self, *, can_fall_back: bool) -> BackendCrashed:
        """The error that says how the process ended. It is killed first, if it still lives."""
        self.process.wait_or_kill(_GRACE_S)
        number, last_lines = self.process.signal, self.process.last_lines()
        why = f"; the last it wrote was: {last_lines}" if last_lines else "."
        if number is None:
            return BackendCrashed(
                f"the backend process ended by itself (status {self.process.status}){why}"
            )
        if number == signal.SIGKILL:
            why = "; the system does that when memory runs out."
        elif number == signal.SIGILL:
            why = _ILLEGAL_INSTRUCTION + (_FALLS_BACK if can_fall_back else _REBUILD)
        return BackendCrashed(f"the backend process was killed (signal {number}){why}", number)
