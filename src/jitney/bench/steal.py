"""How much of the processors' time the host of a virtual machine gave to other machines.

It may be half of it in one run and nothing in the next. So a result tells it.
"""

from dataclasses import replace
from pathlib import Path

from jitney.bench.report import Result

STAT = Path("/proc/stat")
STOLEN_COLUMN = 7
"""After user, nice, system, idle, waiting, and two kinds of interrupts. What follows is counted
under user and nice already."""

SHARE_TOLD = 0.05


class StealWatch:
    """Counts from its making."""

    def __init__(self, stat: Path = STAT) -> None:
        self._stat = stat
        self._before = self._read()

    def share(self) -> float | None:
        """The share of the time of all cores since; None where the system does not say."""
        now = self._read()
        if now is None or self._before is None:
            return None
        stolen, whole = (after - before for after, before in zip(now, self._before, strict=True))
        return stolen / whole if whole > 0 else 0.0

    def _read(self) -> tuple[int, int] | None:
        """Stolen time and all time, in the system's unit."""
        try:
            words = self._stat.read_text(encoding="ascii", errors="replace").split("\n", 1)[0]
            columns = [int(word) for word in words.split()[1 : STOLEN_COLUMN + 2]]
            return columns[STOLEN_COLUMN], sum(columns)
        except (OSError, ValueError, IndexError):
            return None


def with_steal(result: Result, share: float | None) -> Result:
    """The result with the share, and a note if it is large."""
    notes = result.notes
    if share is not None and share >= SHARE_TOLD:
        notes += (
            f"Other machines on the same host took {100 * share:.0f} % of the processors' time "
            "meanwhile, so these figures are too low and uneven; measure again at another time.",
        )
    return replace(result, notes=notes, figures={"stolen_share": share, **result.figures})
