"""A pytest plugin of `scripts.check`: which file a worker gets next, times, and what was not tried.

A file stays on one worker, so that its tests share what they start; the longest files begin first,
so that none is left alone at the end. Times are those of all workers together.
"""

import gc
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any  # Any: xdist has no types

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

SLOWEST_COUNT = 15

FIRST = (
    "tests/e2e/cluster/test_ray_data.py",
    "tests/e2e/batches/test_restarts.py",
    "tests/e2e/test_text_equality.py",
    "tests/e2e/test_torch.py",
    "tests/e2e/test_families.py",
    "tests/e2e/page/test_page.py",
    "tests/e2e/cluster/test_on_ray.py",
    "tests/simulation/test_seeds.py",
    "tests/unit/backends/torch/kernels/test_gpu_backend.py",
    "tests/unit/backends/torch/kernels/test_triton_ops.py",
    "tests/conformance/test_memory.py",
    "tests/e2e/server/test_thinking.py",
    "tests/e2e/batches/test_batch_run.py",
    "tests/e2e/test_cli_model.py",
    "tests/unit/text/test_renderer.py",
    "tests/e2e/server/test_service.py",
    "tests/e2e/server/test_unread.py",
    "tests/unit/lab/plan/test_recommend.py",
    "tests/e2e/test_openvino_mistakes.py",
    "tests/simulation/fleet/test_fleet_seeds.py",
    "tests/unit/cluster/test_fleet.py",
    "tests/e2e/page/test_fleet_page.py",
    "tests/style/test_tidy.py",
    "tests/e2e/server/test_rows_constraints.py",
    "tests/unit/backends/process/test_client.py",
)
"""The files that take longest, the longest first, as the lines at the end of a run have them. Two
Rays are not started at once, beside the types: Ray gives a start 30 seconds."""

SPREAD = ("tests/simulation/",)
"""Where the tests of a file share nothing, so that each may run on any worker."""

TOGETHER = {"tests/e2e/cluster/test_serve_app.py": "tests/e2e/cluster/test_ray_data.py"}
"""Files that share what another one starts: one Ray."""

WAYS = {
    "chromium": "install chromium (apt-get install chromium)",
    "matplotlib": "pip install matplotlib",
    "xllamacpp": "pip install xllamacpp",
    "embedded model": "make setup, with a network",
    "jitney_llama": "make llama",
    "openvino": "run it on a processor that OpenVINO knows (most of x86)",
    "too busy": "run it when the machine has less to do",
    "Ray": "run it with a Python that Ray has a package for",
}
"""How to try what was skipped, by a word of the reason."""


def stage_of(file: str) -> str:
    """The folder under tests/ that a file belongs to."""
    parts = Path(file).parts
    return parts[1] if len(parts) > 2 else "other"


def rank(file: str) -> int:
    """When the tests of a file begin: the longest first, then those end to end, then the others."""
    if file in FIRST:
        return FIRST.index(file)
    return len(FIRST) + (not file.startswith("tests/e2e/"))


class StageTimes:
    """Adds up the durations of one session."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.counts: Counter[str] = Counter()
        self.untried: Counter[tuple[str, str]] = Counter()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The same order on every worker; within a file it stays as it is."""
        items.sort(key=lambda item: rank(item.nodeid.partition("::")[0]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Every phase of every test counts towards its file's time."""
        file = report.nodeid.partition("::")[0]
        self.seconds[file] += report.duration
        self.counts[file] += report.when == "call"
        if report.skipped and isinstance(report.longrepr, tuple):
            self.untried[file, report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Lines about folders, files and reasons, and one that says what to do about them."""
        write = terminalreporter.write_line
        for stage in dict.fromkeys(map(stage_of, self.seconds)):
            files = [file for file in self.seconds if stage_of(file) == stage]
            seconds = sum(self.seconds[file] for file in files)
            count = sum(self.counts[file] for file in files)
            write(f"{stage:<12} {seconds:8.1f} s {count:6d} tests")
        slowest = sorted(self.seconds.items(), key=lambda each: -each[1])[:SLOWEST_COUNT]
        for file, seconds in slowest:
            write(f"{file:<50} {seconds:8.1f} s {self.counts[file]:4d} tests")
        for line in untried_lines(self.untried):
            write(line)


def untried_lines(untried: Counter[tuple[str, str]]) -> list[str]:
    """A line for each reason, and a last one with the ways to try what was not tried."""
    if not untried:
        return ["Everything was tried."]
    lines = []
    for reason in sorted({reason for _, reason in untried}):
        files = {file: count for (file, why), count in untried.items() if why == reason}
        listed = ", ".join(f"{file} ({count})" for file, count in sorted(files.items()))
        lines.append(f"not tried here: {reason}: {listed}")
    ways: Counter[str] = Counter()
    for (_, reason), count in untried.items():
        way = next((way for word, way in WAYS.items() if word in reason), "")
        ways[way] += count
    others = ways.pop("", 0)
    parts = [f"{count}: {way}" for way, count in ways.items()]
    parts += [f"{others}: do not apply to this machine or backend"] * (others > 0)
    return [
        *lines,
        f"{untried.total()} tests were not tried here. To try them: {'; '.join(parts)}.",
    ]


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """Hands out files, and the tests of some files one by one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if nodeid.startswith(SPREAD) else TOGETHER.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    """Called by xdist; None leaves the choice to it."""
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest when it loads the plugin."""
    # Thousands of tests stay in memory: looking through them for garbage takes a tenth of the time.
    gc.disable()
    config.pluginmanager.register(StageTimes(), "stage_times")


def pytest_collection_finish() -> None:
    """Called by pytest when it knows all tests."""
    gc.freeze()
    gc.enable()
