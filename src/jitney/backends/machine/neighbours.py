"""How many threads leave room for whatever else runs on this machine.

Threads that wait for each other by spinning lose far more than their share to a busy neighbour:
while one of them is off its core, the others burn theirs. So no more of them are used than there
are cores left over, and half as many as before where they do not get the cores that they want.
Called before and after each pass, by the thread that computes; costs two small reads four
times a second. Where the system does not say who is busy, the answer is always the same.
"""

import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from jitney.backends.machine.cores import allowed_cores, allowed_numbers

STAT = Path("/proc/stat")
PARENT = "/proc/{}/stat"
SAMPLE_S = 0.25
SPARE = 0.4
"""So much of a core is used by a system and by our own clients at all times. A process that wants a
whole core gets at least half of one that a thread of ours spins on, so it is seen."""
SHARED = 0.75
"""Threads that get less than this of the time they want share their cores with others."""
MARGIN = 0.2
"""So that a load at the very border does not change the number of threads four times a second."""
_BUSY_COLUMNS = (1, 2, 3, 6, 7)
"""User, nice, system, interrupts. Niceness counts within a session only, on most systems."""

Clock = Callable[[], float]


def own_s() -> float:
    """Seconds of all cores that this process has used so far."""
    used = os.times()
    return used.user + used.system


def parent_s() -> float:
    """The same of the process that started this one; 0 where the system does not say.

    A backend in a process of its own serves that one: it is not a neighbour.
    """
    try:
        text = PARENT.format(os.getppid())
        # Behind the name, which may hold anything.
        words = Path(text).read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


class Neighbours:
    """Counts the cores that others use, over the time between two looks."""

    def __init__(
        self,
        threads_max: int,
        *,
        stat: Path = STAT,
        clock: Clock = perf_counter,
        own: Clock = own_s,
        parent: Clock = parent_s,
    ) -> None:
        self._threads_max = threads_max
        self._stat = stat
        self._clock = clock
        self._own = own
        self._parent = parent
        self._cores = allowed_cores()
        self._allowed = frozenset(f"cpu{number}" for number in allowed_numbers())
        self._threads = threads_max
        self._seen: tuple[float, float] | None = None
        self._wanted_s = 0.0
        self._own_before = own()
        self.threads()

    def threads(self) -> int:
        """As many threads as there are cores left over, and at least one."""
        now = self._clock()
        if self._threads_max == 1 or (self._seen is not None and now - self._seen[0] < SAMPLE_S):
            return self._threads
        others = self._others_s()
        if others is None:
            return self._threads
        if self._seen is not None:
            share = (others - self._seen[1]) / (now - self._seen[0])
            fitting = self._fitting(self._cores - share + SPARE)
            self._threads = max(1, self._threads // 2) if self._is_short() else fitting
        self._seen = (now, others)
        self._wanted_s = 0.0
        self._own_before = self._own()
        return self._threads

    def computed(self, seconds: float) -> None:
        """A pass took so long: its threads wanted their cores for all of that time."""
        self._wanted_s += seconds * self._threads

    def _is_short(self) -> bool:
        """Whether the threads got much less than they wanted since the last look."""
        got = self._own() - self._own_before
        return self._wanted_s >= SAMPLE_S / 2 and got < SHARED * self._wanted_s

    def _fitting(self, cores: float) -> int:
        """Threads for so many cores; one more than before only where it fits with a margin."""
        fitting = max(1, min(self._threads_max, int(cores)))
        if fitting > self._threads:
            fitting = max(self._threads, min(self._threads_max, int(cores - MARGIN)))
        return fitting

    def _others_s(self) -> float | None:
        """Seconds of all cores that other processes have used so far."""
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
        return ticks / os.sysconf("SC_CLK_TCK") - self._own() - self._parent()

    def _is_allowed(self, name: str) -> bool:
        # The line of all cores together is named without a number.
        return name in self._allowed if self._allowed else name[:3] == "cpu" and name != "cpu"
