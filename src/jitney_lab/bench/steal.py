"""How much of the processors' time the host of a virtual machine gave to other machines.

It may be half of it in one minute and nothing in the next. So a part of a measurement that lost
much of it is measured again, and a result has the share that is left.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from jitney_lab.bench.report import Result
from jitney_lab.bench.workload import Say

FiguresT = TypeVar("FiguresT")

STAT = Path("/proc/stat")
STOLEN_COLUMN = 7
"""After user, nice, system, idle, waiting, and two kinds of interrupts. What follows is counted
under user and nice already."""

SHARE_NOTED = 0.05
TRIES_MAX = 3
AGAIN_S = 20.0
AGAIN_SHARE = 0.25
"""All repetitions together take at most so long, and this part of the time of the first tries. On a
host that stays busy more of them would only take longer."""

PART_S_MIN = 1.0
"""The system counts in hundredths of a second: of a shorter part it says little."""


class StealWatch:
    """Counts from its making."""

    def __init__(self) -> None:
        self._before = _read_stat()

    def share(self) -> float | None:
        """The share of the time of all cores since; None where the system does not say."""
        now = _read_stat()
        if now is None or self._before is None:
            return None
        stolen, whole = (after - before for after, before in zip(now, self._before, strict=True))
        return stolen / whole if whole > 0 else 0.0


class CalmParts:
    """Measures the parts of one benchmark. A disturbed part is measured again."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._stolen_s = 0.0
        self._whole_s = 0.0
        self._again_s = AGAIN_S
        """What is left for repetitions."""

    @property
    def share(self) -> float | None:
        """The share that others took of the parts that count; None where the system does not
        say."""
        return self._stolen_s / self._whole_s if self._whole_s else None

    def measure(self, part: Callable[[], FiguresT]) -> FiguresT:
        """What `part` measures. While others take too much it is tried again, TRIES_MAX times in
        all if there is time, and the calmest counts: the choice does not look at the figures."""
        tries: list[tuple[float, float, FiguresT]] = []
        while True:
            watch, started_at = StealWatch(), time.monotonic()
            measured = part()
            share, seconds = watch.share(), time.monotonic() - started_at
            if share is None or seconds < PART_S_MIN:
                return measured
            self._again_s += -seconds if tries else AGAIN_SHARE * seconds
            tries.append((share, seconds, measured))
            if share < SHARE_NOTED or len(tries) == TRIES_MAX or self._again_s < seconds:
                break
            self._say(f"others took {100 * share:.0f} % of the processors: once more")
        share, seconds, measured = min(tries, key=lambda each: each[0])
        self._stolen_s += share * seconds
        self._whole_s += seconds
        return measured


def _read_stat() -> tuple[int, int] | None:
    """Stolen time and all time, in the system's unit."""
    try:
        words = STAT.read_text(encoding="ascii", errors="replace").split("\n", 1)[0]
        columns = [int(word) for word in words.split()[1 : STOLEN_COLUMN + 2]]
        return columns[STOLEN_COLUMN], sum(columns)
    except (OSError, ValueError, IndexError):
        return None


def with_steal(result: Result, share: float | None) -> Result:
    """The result with the share, and a note if it is large.

    Where a benchmark measured disturbed parts again, the share is that of the parts that count.
    """
    notes = result.notes
    own = result.figures.get("stolen_share")
    share = own if isinstance(own, float) else share
    if share is not None and share >= SHARE_NOTED:
        notes += (
            f"Other machines on the same host took {100 * share:.0f} % of the processors' time "
            "meanwhile, so these figures are too low and uneven; measure again at another time.",
        )
    return replace(result, notes=notes, figures={"stolen_share": share, **result.figures})
