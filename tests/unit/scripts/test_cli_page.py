"""The page of the command line: it is what the source makes."""

from pathlib import Path

from scripts.cli_page import cli_reference

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"


def test_the_committed_page_is_what_the_source_makes() -> None:
    """Guards the page against growing old; `make docs` writes it."""
    assert PAGE.read_text(encoding="utf-8") == cli_reference()
