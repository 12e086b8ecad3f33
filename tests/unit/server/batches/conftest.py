"""Fixtures of tests of batches: async tests run with asyncio, and what was opened is closed."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jitney.server.batches import limits
from jitney.server.batches.store import BatchStore
from tests.unit.server.batches.runner_for_tests import Bench, Script, at_once

OpenBench = Callable[..., Bench]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again soon."""
    monkeypatch.setattr(limits, "TROUBLE_S", 0.02)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BatchStore]:
    made = BatchStore(tmp_path)
    yield made
    made.close()


@pytest.fixture
def open_bench(tmp_path: Path) -> Iterator[OpenBench]:
    """Opens a runner over one folder. What is open ends before: one process owns a store."""
    benches: list[Bench] = []

    def open_next(script: Script = at_once, **options: object) -> Bench:
        for each in benches:
            each.thread.close()
        benches.append(Bench(tmp_path, script, **options))  # type: ignore[arg-type]
        return benches[-1]

    yield open_next
    for each in benches:
        each.thread.close()
