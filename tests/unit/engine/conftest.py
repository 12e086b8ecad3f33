"""Fixtures of the engine's tests: a backend, and started engines over it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.engine import Engine
from tests.unit.engine.worlds import MODEL_LEN_MAX, FaultyBackend


@pytest.fixture
def backend() -> FaultyBackend:
    """A backend that does as it should until told otherwise."""
    return FaultyBackend()


@pytest.fixture
def make_engine(backend: FaultyBackend) -> Iterator[Callable[..., Engine]]:
    """Started engines, closed when the test is over."""
    engines: list[Engine] = []

    # Any: whatever SchedulerSettings takes
    def make(**settings: Any) -> Engine:
        engine = Engine(backend, SchedulerSettings(**{"model_len_max": MODEL_LEN_MAX, **settings}))
        engines.append(engine)
        engine.start()
        return engine

    yield make
    backend.gate.set()
    for engine in engines:
        engine.close(drain_s=0)
