"""The bar of long commands."""

import io

import pytest
from rich.console import Console

from jitney.cli.progress_bar import progress_bar


def test_a_bar_says_what_and_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal has no bar
    screen = io.StringIO()
    with progress_bar(Console(file=screen, force_terminal=True, width=80)) as bar:
        bar.update(bar.add_task("lines", total=10), completed=3)
    assert "lines" in screen.getvalue()
    assert "3/10" in screen.getvalue()


def test_a_file_gets_nothing() -> None:
    """Guards logs: each run left an empty line."""
    file = io.StringIO()
    with progress_bar(Console(file=file, force_terminal=False)) as bar:
        bar.update(bar.add_task("lines", total=10), completed=3)
    assert file.getvalue() == ""
