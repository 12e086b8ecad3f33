"""Fixtures of the server's tests."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of asynchronous tests."""
    return "asyncio"
