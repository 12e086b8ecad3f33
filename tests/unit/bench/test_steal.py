"""The share of time that a host gave to others, and how a result tells it."""

from pathlib import Path

import pytest

from jitney.bench.report import Result
from jitney.bench.steal import StealWatch, with_steal

RESULT = Result(name="x", title="X", columns=("a",), rows=(), notes=("first",), figures={"n": 1})


def test_the_share_counts_from_the_beginning_of_the_watch(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    # The ninth number is counted under user already.
    stat.write_text("cpu  100 0 50 800 20 1 2 400 90 0\ncpu0 1 1 1 1 1 1 1 1\n")
    watch = StealWatch(stat)
    assert watch.share() == 0.0
    stat.write_text("cpu  160 0 50 805 20 1 2 435 150 0\ncpu0 1 1 1 1 1 1 1 1\n")
    assert watch.share() == pytest.approx(0.35)


@pytest.mark.parametrize("text", [None, "", "cpu 1 2 3\n", "intr of another kind\n"])
def test_it_is_unknown_where_the_system_does_not_say(tmp_path: Path, text: str | None) -> None:
    stat = tmp_path / "stat"
    if text is not None:
        stat.write_text(text)
    assert StealWatch(stat).share() is None


def test_a_large_share_is_told() -> None:
    told = with_steal(RESULT, 0.354)
    assert told.figures == {"stolen_share": 0.354, "n": 1}
    assert told.notes[0] == "first"
    assert "35 %" in told.notes[1]
    assert with_steal(RESULT, 0.01).notes == RESULT.notes
    assert with_steal(RESULT, None).figures["stolen_share"] is None
