"""One Ray for all files that need no Ray of their own. They are one group of pytest-xdist, so that
one worker runs them."""

from collections.abc import Iterator

import pytest

from tests.e2e.cluster.ray_process import SharedRay


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[SharedRay]:
    shared = SharedRay()
    yield shared
    shared.close()
