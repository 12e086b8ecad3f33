"""Runs many seeds and adds up what they visited."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation.marks import unreached
from tests.simulation.simulator import Report, run

REGRESSIONS = Path(__file__).parent / "regression_seeds.txt"


@dataclass(slots=True)
class Sweep:
    """The sums over the seeds that ran."""

    seeds: int = 0
    requests: int = 0
    turns: int = 0
    tokens: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    failures: list[Report] = field(default_factory=list)

    def add(self, report: Report) -> None:
        """Count one run."""
        self.seeds += 1
        self.requests += report.requests
        self.turns += report.turns
        self.tokens += report.tokens
        self.counters += report.counters
        self.marks += report.marks
        if report.failure is not None:
            self.failures.append(report)

    @property
    def unreached(self) -> list[str]:
        """Counters and marks that stayed at zero."""
        return unreached(self.counters, self.marks)


def regression_seeds() -> list[int]:
    """Seeds that once failed; everything after a # is a remark."""
    lines = REGRESSIONS.read_text(encoding="utf-8").splitlines()
    return [int(line.split("#")[0]) for line in lines if line.split("#")[0].strip()]


def sweep(seeds: Iterable[int], progress: Callable[[Sweep], None] | None = None) -> Sweep:
    """Run them all; `progress` hears of every one."""
    total = Sweep()
    for seed in seeds:
        total.add(run(seed))
        if progress is not None:
            progress(total)
    return total


def describe(report: Report) -> str:
    """A failed run: the seed, the turn, the checker and its sentence, and how to see it again."""
    failure = report.failure
    assert failure is not None, "it did not fail"
    return (
        f"seed {report.seed}, turn {failure.turn}, {failure.checker}: {failure.sentence}\n"
        f"  python -m tests.simulation --seed {report.seed} --trace"
    )
