"""A pytest plugin: times per folder of tests, and what could not be tried on this machine, and why.

With several workers the times are those of all of them together.
"""

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def stage_of(path: Path) -> str:
    """The folder under tests/ that a file belongs to."""
    inside = path.relative_to(ROOT / "tests").parts if path.is_relative_to(ROOT / "tests") else ()
    return inside[0] if len(inside) > 1 else "other"


class StageTimes:
    """Adds up the durations of one session."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self.untried: Counter[tuple[str, str]] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Every phase of every test counts towards its folder's time."""
        stage = stage_of(ROOT / report.nodeid.partition("::")[0])
        self.seconds[stage] = self.seconds.get(stage, 0.0) + report.duration
        self.counts[stage] = self.counts.get(stage, 0) + (report.when == "call")
        if report.skipped and isinstance(report.longrepr, tuple):
            file = report.nodeid.partition("::")[0]
            self.untried[file, report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """A line per stage and per reason of what was not tried, above pytest's closing line."""
        for stage, seconds in self.seconds.items():
            terminalreporter.write_line(
                f"{stage:<12} {seconds:8.1f} s {self.counts[stage]:6d} tests"
            )
        for reason in sorted({reason for _, reason in self.untried}):
            files = {file: count for (file, why), count in self.untried.items() if why == reason}
            told = ", ".join(f"{file} ({count})" for file, count in sorted(files.items()))
            terminalreporter.write_line(f"not tried here: {reason}: {told}")


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest when it loads the plugin."""
    config.pluginmanager.register(StageTimes(), "stage_times")
