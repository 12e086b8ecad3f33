"""Fixtures: a quick server with jobs for a whole module, and others as a test wants them."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.server.harness import Running, World, running

Start = Callable[[World], Running]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with quick ticks and all routes, shared by the tests of a module."""
    with running(World(jobs_dir=tmp_path_factory.mktemp("served") / "jobs")) as made:
        yield made


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers that end with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda world: stack.enter_context(running(world))
