"""The page of settings: it is what the source makes, and has every setting."""

from pathlib import Path

from jitney.config import known_serve_settings, known_settings
from scripts.config_page import config_reference

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "config.md"


def test_the_committed_page_is_what_the_source_makes() -> None:
    """Guards the page against growing old; `make docs` writes it."""
    assert PAGE.read_text(encoding="utf-8") == config_reference()


def test_every_setting_is_on_the_page() -> None:
    """Guards a new field: its row, under its group."""
    page = config_reference()
    for known in (*known_settings(), *known_serve_settings()):
        assert f"| `{known.name}` |" in page
