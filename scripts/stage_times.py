"""A pytest plugin: times per folder of tests, and an end after the first folder with failures."""

from collections.abc import Generator
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

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Every phase of every test counts towards its folder's time."""
        stage = stage_of(ROOT / report.nodeid.partition("::")[0])
        self.seconds[stage] = self.seconds.get(stage, 0.0) + report.duration
        self.counts[stage] = self.counts.get(stage, 0) + (report.when == "call")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """A stage that failed is finished, and no other one is begun."""
        ran = yield
        if nextitem is not None and item.session.testsfailed:
            stage = stage_of(item.path)
            if stage_of(nextitem.path) != stage:
                item.session.shouldfail = f"the stage {stage} failed; later ones were not run"
        return ran

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line per stage, above pytest's closing line."""
        for stage, seconds in self.seconds.items():
            terminalreporter.write_line(
                f"{stage:<12} {seconds:8.1f} s {self.counts[stage]:6d} tests"
            )


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest when it loads the plugin."""
    config.pluginmanager.register(StageTimes(), "stage_times")
