"""What the tests of the planner share."""

import pytest


@pytest.fixture(autouse=True)
def own_search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool sets this for its processes; tests after it must not have it."""
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
