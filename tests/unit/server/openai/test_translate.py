"""Tests of `jitney.server.openai.translate`: scopes and priorities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.core.request import Priority
from jitney.server.openai.translate import allowed_priority, cache_scope


@given(st.text(), st.text(), st.text(), st.text())
def test_scopes_are_equal_only_for_equal_pairs(a: str, b: str, c: str, d: str) -> None:
    """Guards tenants: no salt can be chosen that looks like another key's."""
    assert (cache_scope(a, b) == cache_scope(c, d)) == ((a, b) == (c, d))
    assert len(cache_scope(a, b)) <= 64


@pytest.mark.parametrize(
    ("given_as", "priority"),
    [
        (None, Priority.NORMAL),
        ("low", Priority.LOW),
        ("critical", Priority.CRITICAL),
        (0, Priority.NORMAL),
        (-1, Priority.HIGH),
        (-2, Priority.CRITICAL),
        (-100, Priority.CRITICAL),
        (1, Priority.LOW),
        (100, Priority.LOW),
    ],
)
def test_priorities_by_name_and_by_vllms_numbers(
    given_as: str | int | None, priority: Priority
) -> None:
    """Guards the sign: to vLLM the lower number is served first."""
    assert allowed_priority(given_as, None) is priority
