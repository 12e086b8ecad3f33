"""Chooses how many threads compute while other processes ("neighbours") are busy.

Threads that wait for each other by spinning lose much speed to a busy neighbour: while one of them
has no core, the others wait. So there are only as many threads as free cores. Where the threads do
not get the cores that they need, their number is halved. Called before and after each pass, by the
thread that computes. It makes two small reads four times a second. Where the system does not say
which cores are busy, the number never changes.
"""

import os
from pathlib import Path
from threading import Event
from time import perf_counter

from jitney.backends.machine.cores import allowed_cores, allowed_numbers

STAT = Path("/proc/stat")
PARENT = "/proc/{}/stat"
SAMPLE_S = 0.25
STALE_S = 2.5
"""After a longer break it is not known whether those who were busy still are."""
LOOK_S = 0.05
SPARE = 0.4
"""The share of a core that the system and our own clients always use. A busy process gets at least
half of a core on which a thread of ours spins, so it is above this."""
SHARED = 0.75
"""Threads that get less than this share of the time they need share cores with others."""
MARGIN = 0.2
"""Keeps a load at the limit from changing the number of threads four times a second."""
_BUSY_COLUMNS = (1, 2, 3, 6, 7)
"""User, nice, system, interrupts. On most systems niceness only counts within a session."""

wait_s = Event().wait


def own_s() -> float:
    """The CPU seconds that this process has used so far."""
    used = os.times()
    return used.user + used.system


def parent_s() -> float:
    """The CPU seconds of the parent process; 0 where the system does not say.

    A backend in its own process works for its parent, so the parent is not a neighbour.
    """
    try:
        text = PARENT.format(os.getppid())
        # The numbers come after the name, which may contain anything.
        words = Path(text).read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


class Neighbours:
    """Measures how many cores other processes use, between two calls of `threads`."""

    def __init__(self, threads_max: int, *, stat: Path = STAT) -> None:
        self._threads_max = threads_max
        self._stat = stat
        self._cores = allowed_cores()
        self._allowed = frozenset(f"cpu{number}" for number in allowed_numbers())
        self._threads = threads_max
        self._last: tuple[float, float] | None = None
        self._needed_s = 0.0
        self._own_before = own_s()
        self.threads()

    def threads(self) -> int:
        """As many threads as there are free cores, and at least one."""
        now = perf_counter()
        if self._threads_max == 1 or (self._last is not None and now - self._last[0] < SAMPLE_S):
            return self._threads
        others = self._others_s()
        if others is None:
            return self._threads
        if self._last is not None:
            fitting = self._fitting(self._free_cores(now, others))
            if fitting < self._threads and now - self._last[0] > STALE_S:
                # A short look costs less than a prompt on too few threads, or on too many.
                self._last = (now, others)
                wait_s(LOOK_S)
                now, others = perf_counter(), self._others_s() or others
                fitting = self._fitting(self._free_cores(now, others))
            self._threads = max(1, self._threads // 2) if self._is_short() else fitting
        self._last = (now, others)
        self._needed_s = 0.0
        self._own_before = own_s()
        return self._threads

    def computed(self, seconds: float) -> None:
        """Note that a pass took this long. Its threads needed their cores for all that time."""
        self._needed_s += seconds * self._threads

    def _free_cores(self, now: float, others: float) -> float:
        """The cores that other processes left free since the last measurement."""
        assert self._last is not None, "The caller checked"
        return self._cores - (others - self._last[1]) / (now - self._last[0]) + SPARE

    def _is_short(self) -> bool:
        """Whether the threads got much less time than they needed since the last measurement."""
        got = own_s() - self._own_before
        return self._needed_s >= SAMPLE_S / 2 and got < SHARED * self._needed_s

    def _fitting(self, cores: float) -> int:
        """Threads for this many cores. More than before only where they fit with a margin."""
        fitting = max(1, min(self._threads_max, int(cores)))
        if fitting > self._threads:
            fitting = max(self._threads, min(self._threads_max, int(cores - MARGIN)))
        return fitting

    def _others_s(self) -> float | None:
        """The CPU seconds that other processes have used so far."""
        try:
            text = self._stat.read_text(encoding="ascii", errors="replace")
            ticks = sum(
                int(words[column])
                for words in map(str.split, text.splitlines())
                if words and self._is_allowed(words[0])
                for column in _BUSY_COLUMNS
            )
        except (OSError, ValueError, IndexError):
            return None
        return ticks / os.sysconf("SC_CLK_TCK") - own_s() - parent_s()

    def _is_allowed(self, name: str) -> bool:
        # The line for all cores together has no number in its name.
        return name in self._allowed if self._allowed else name[:3] == "cpu" and name != "cpu"
