"""Tests of `benchmarks.tuning`: its lines are settings, its page has its tables, its sums hold."""

import threading
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

import pytest

from benchmarks import tuning
from benchmarks.tuning import SECTIONS, Age, Figures, Line, Load, Watch, age_at, measure, table_head
from jitney.config import resolve
from jitney.records import Record

WAIT_S = 60.0
WATCHED_S = 99.0
PAGE = Path(__file__).parents[3] / "docs" / "tuning.md"
LINES = [line for section in SECTIONS.values() for line in section.lines]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_every_line_can_be_set(line: Line) -> None:
    """Guards a run of minutes against a line that is refused in the middle of it."""
    resolved = resolve(line.settings, None, {}, given_as="argument")
    assert {name: resolved.sources[name] for name in line.settings} == {
        name: f"argument {name}" for name in line.settings
    }


def test_the_page_has_every_section() -> None:
    """Guards the page: a table that is printed has a place there."""
    text = PAGE.read_text(encoding="utf-8")
    assert [each.title for each in SECTIONS.values() if f"\n## {each.title}\n" not in text] == []


def test_what_has_not_ended_is_at_least_as_old_as_it_is() -> None:
    """Guards the percentiles: leaving the slowest out would make a slow setting look quick."""
    ages = [Age(1.0), Age(2.0), Age(9.0, is_over=False)]
    assert [str(age_at(ages, share)) for share in (0.0, 0.5, 0.95)] == ["1.00", "2.00", ">9.00"]
    assert str(age_at([], 0.5)) == "nan"
    watch = Watch(ended=[Age(1.0), Age(2.0)], begun={"old": 1.0, "young": 9.5}, at=10.0)
    assert [str(each) for each in watch.ages()] == ["1.00", "2.00", ">9.00"]


def test_a_line_is_measured_and_fits_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the way from clients to cells, on the fake backend. It watches for eight answers,
    however long they take, and not for seconds."""
    enough = threading.Event()

    class Counting(Watch):
        def take(self, record: Record) -> None:
            super().take(record)
            if len(self.ended) >= 8:
                enough.set()

    def sleep(seconds: float) -> None:
        if seconds == WATCHED_S:
            assert enough.wait(WAIT_S)

    monkeypatch.setattr(tuning, "Watch", Counting)
    monkeypatch.setattr(tuning, "time", SimpleNamespace(sleep=sleep, perf_counter=perf_counter))
    load = Load(clients=4, prompt_counts=(4, 40), completion_counts=(2, 8))
    found = measure(Line({"max_num_seqs": 2}), load, WATCHED_S, {"backend": "fake"})
    assert isinstance(found, Figures)
    assert found.tokens_per_s > 0
    assert 0 < found.batch <= 2
    assert found.latency.is_over
    assert len(found.cells) == table_head()[0].count("|") - 3
