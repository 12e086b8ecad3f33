"""The page of families: it is what was tried, and leaves no architecture out."""

import json
from pathlib import Path

from scripts.families_page import TRIED, families_page

PAGE = Path(__file__).parents[3] / "docs" / "families.md"


def test_the_committed_page_is_what_the_files_make() -> None:
    """Guards the page against growing old; `make docs` writes it."""
    assert PAGE.read_text(encoding="utf-8") == families_page()


def test_every_architecture_stands_there_once() -> None:
    """Guards who looks for a family: what did not run is named with its reason."""
    page = families_page()
    for file in TRIED.glob("*.json"):
        for name, found in json.loads(file.read_text(encoding="utf-8")).items():
            assert page.count(f"\n| `{name}` |") == 1, name
            assert found["reason"].partition(": ")[2] in page
