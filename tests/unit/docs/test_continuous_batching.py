"""Tests of pages that explain code: their quotes are the source. And of one picture: it is true."""

import re
from pathlib import Path

import pytest

from scripts.draw_ticks import draw, simulate

ROOT = Path(__file__).parents[3]
PAGES = {"continuous_batching.md": (10, 300), "learn.md": (4, 200)}
"""Pages, with their least number of quotes and their most lines."""

PART = re.compile(
    r"^```python\n(.*?)^```|\]\(\.\./((?:src|examples)/[\w/]+\.py)\)", re.MULTILINE | re.DOTALL
)
"""A quote, or a link to the file that the quotes after it are from."""


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def quotes(page: str) -> list[tuple[str, str]]:
    """Each quote, with the file that was named last before it."""
    found, file = [], ""
    for quote, named in PART.findall(text_of(page)):
        if named:
            file = named
        else:
            found.append((file, quote))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_quote_is_in_the_file_that_it_names(page: str) -> None:
    """Guards readers: what they learn from the page is what runs."""
    assert len(quotes(page)) >= PAGES[page][0]
    strayed = [
        f"{file}: {quote.splitlines()[0]}"
        for file, quote in quotes(page)
        if quote not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert not strayed, "\n".join(strayed)


def test_the_picture_is_what_the_scheduler_does() -> None:
    """Guards the picture and the story beside it: `python -m scripts.draw_ticks` draws it again."""
    trace = simulate()
    assert (ROOT / "docs" / "images" / "ticks.svg").read_text(encoding="utf-8") == draw(trace)
    preempted = [place for place, (kind, _) in trace.cells.items() if kind == "preempted"]
    assert preempted == [("F", 10)]
    assert trace.cells["F", 14] == ("prefill", 11)
    assert trace.cells["E", 8] == ("prefill", 12)


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_short(page: str) -> None:
    """Guards the promise that it is read at once."""
    assert len(text_of(page).splitlines()) <= PAGES[page][1]
