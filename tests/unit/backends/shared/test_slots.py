"""Rows of a pass in which all is computed alike."""

import pytest

from jitney.backends.shared.slots import is_lone, rows_missing
from jitney.core.batch import Entry


@pytest.mark.parametrize(
    ("rows", "group", "missing"), [(1, 1, 0), (1, 4, 3), (4, 4, 0), (5, 4, 3), (15, 16, 1)]
)
def test_rows_fill_whole_groups(rows: int, group: int, missing: int) -> None:
    """Guards the padding: one row too few is another kernel."""
    assert rows_missing(rows, group) == missing


@pytest.mark.parametrize(
    ("start", "count", "lone"), [(0, 1, False), (5, 1, True), (5, 2, False), (9, 1, True)]
)
def test_a_single_token_of_a_prompt_is_lone_unless_it_is_the_first(
    start: int, count: int, lone: bool
) -> None:
    """Guards prompts whose last token comes by itself, as behind a cached prefix."""
    assert is_lone(Entry(0, start, tuple(range(count)), wants_token=True), 10) is lone


def test_a_generated_token_is_not_lone() -> None:
    """Guards decodes: they are computed one by one whenever they are computed."""
    assert not is_lone(Entry(0, 10, (1,), wants_token=True), 10)
