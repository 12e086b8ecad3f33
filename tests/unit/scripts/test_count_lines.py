"""Tests of `scripts.count_lines`: what counts as a line of code."""

from scripts.count_lines import code_lines

SOURCE = '''"""A docstring
of two lines."""

import os  # counts once

NAME = "a"
"""What it is."""


def call(
    first: str,
) -> str:
    """Also not."""
    # Nor this.
    return f"""{first}
    {os.sep}"""
'''


def test_only_code_counts() -> None:
    """Guards the budget: a comment costs nothing, and a text that is a value does."""
    assert code_lines(SOURCE) == 7
