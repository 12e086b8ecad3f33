"""Tests of `benchmarks.pictures`: every strategy and policy has one, and the page shows it."""

import inspect
from pathlib import Path

from benchmarks.pictures import POLICIES, STRATEGIES, Promises
from jitney.core.scheduler_settings import Mix, Policy, Strategy

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "strategies.md"
BYTES_MAX = 60_000


def test_every_strategy_and_policy_has_a_picture() -> None:
    """Guards the page against one that is added and not shown."""
    strategies = {setup.settings["strategy"] for setup in STRATEGIES}
    policies = {setup.settings["policy"] for setup in POLICIES}
    assert strategies == set(Strategy)
    assert policies > set(Policy)


def test_the_page_shows_every_picture() -> None:
    """Guards the page: each picture is there, is shown with its settings, and is small."""
    text = PAGE.read_text(encoding="utf-8")
    for setup in (*STRATEGIES, *POLICIES):
        assert f"](images/{setup.name}.png)" in text, setup.name
        assert (ROOT / "docs" / "images" / f"{setup.name}.png").stat().st_size < BYTES_MAX
    for word in (*Strategy, *Policy, *Mix):
        assert f"`{word}`" in text, word
    assert inspect.getsource(Promises.__init__) in text, "the policy that is shown is the one drawn"
