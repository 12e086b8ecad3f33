"""Fixtures of tests of batches over HTTP: a server with jobs, and OpenAI's own client of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.e2e.batches.batch_client import client_of
from tests.e2e.server.harness import Running, World, running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(World(jobs_dir=tmp_path / "jobs")) as made:
        yield made


@pytest.fixture
def client(server: Running) -> Iterator[OpenAI]:
    with client_of(server) as made:
        yield made
