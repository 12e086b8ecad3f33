"""Tests of docs/continuous_batching.md: its quotes are the source, its picture is true."""

import re
from pathlib import Path

from scripts.draw_ticks import draw, simulate

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "continuous_batching.md"
LINES_MAX = 300
PART = re.compile(r"^```python\n(.*?)^```|\]\(\.\./(src/[\w/]+\.py)\)", re.MULTILINE | re.DOTALL)
"""A quote, or a link to the file that the quotes after it are from."""


def quotes() -> list[tuple[str, str]]:
    """Each quote, with the file that was named last before it."""
    found, file = [], ""
    for quote, named in PART.findall(PAGE.read_text(encoding="utf-8")):
        if named:
            file = named
        else:
            found.append((file, quote))
    return found


def test_every_quote_is_in_the_file_that_it_names() -> None:
    """Guards readers: what they learn from the page is what runs."""
    assert len(quotes()) >= 10
    strayed = [
        f"{file}: {quote.splitlines()[0]}"
        for file, quote in quotes()
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


def test_the_page_is_short() -> None:
    """Guards the promise that it is read at once."""
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= LINES_MAX
