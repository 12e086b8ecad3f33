"""The share of time that a host gave to others, and how a result tells it."""

from dataclasses import replace
from pathlib import Path

import pytest

from jitney_lab.bench import steal
from jitney_lab.bench.report import Result
from jitney_lab.bench.steal import TRIES_MAX, CalmParts, StealWatch, with_steal

RESULT = Result(name="x", title="X", columns=("a",), rows=(), notes=("first",), figures={"n": 1})


@pytest.fixture
def stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that stands for the system's. Parts of any length count."""
    monkeypatch.setattr(steal, "STAT", tmp_path / "stat")
    monkeypatch.setattr(steal, "PART_S_MIN", 0.0)
    return steal.STAT


def test_the_share_counts_from_the_beginning_of_the_watch(stat: Path) -> None:
    # The ninth number is counted under user already.
    stat.write_text("cpu  100 0 50 800 20 1 2 400 90 0\ncpu0 1 1 1 1 1 1 1 1\n")
    watch = StealWatch()
    assert watch.share() == 0.0
    stat.write_text("cpu  160 0 50 805 20 1 2 435 150 0\ncpu0 1 1 1 1 1 1 1 1\n")
    assert watch.share() == pytest.approx(0.35)


@pytest.mark.parametrize("text", [None, "", "cpu 1 2 3\n", "intr of another kind\n"])
def test_it_is_unknown_where_the_system_does_not_say(stat: Path, text: str | None) -> None:
    if text is not None:
        stat.write_text(text)
    assert StealWatch().share() is None


def test_a_large_share_is_told() -> None:
    told = with_steal(RESULT, 0.354)
    assert told.figures == {"stolen_share": 0.354, "n": 1}
    assert told.notes[0] == "first"
    assert "35 %" in told.notes[1]
    assert with_steal(RESULT, 0.01).notes == RESULT.notes
    assert with_steal(RESULT, None).figures["stolen_share"] is None


class Host:
    """A file as the system's, and parts of a measurement during which others take a share of the
    time."""

    def __init__(self, stat: Path, shares: list[int]) -> None:
        self.stat = stat
        self._shares = shares
        self._busy = self._stolen = 1000
        self._write()

    def part(self) -> int:
        share = self._shares.pop(0)
        self._busy += 100 - share
        self._stolen += share
        self._write()
        return share

    def _write(self) -> None:
        self.stat.write_text(f"cpu  {self._busy} 0 0 0 0 0 0 {self._stolen} 0 0\n")


def test_a_calm_part_is_measured_once(stat: Path) -> None:
    said: list[str] = []
    host = Host(stat, [1, 2])
    calm = CalmParts(said.append)
    assert [calm.measure(host.part), calm.measure(host.part)] == [1, 2]
    assert said == []
    assert calm.share is not None
    assert 0.01 <= calm.share <= 0.02


def test_a_disturbed_part_is_measured_again_and_the_calmest_counts(stat: Path) -> None:
    """Guards figures of a busy host, and that they are not chosen by what they say."""
    said: list[str] = []
    host = Host(stat, [60, 30, 40, 99])
    calm = CalmParts(said.append)
    assert calm.measure(host.part) == 30
    assert len(said) == TRIES_MAX - 1
    assert "60 %" in said[0]
    told = with_steal(replace(RESULT, figures={"stolen_share": calm.share}), 0.01)
    assert told.figures["stolen_share"] == pytest.approx(0.3)
    assert "30 %" in told.notes[-1]


def test_a_busy_host_does_not_double_the_time(stat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards `make bench`: repetitions have a part of its time, and end with it."""
    monkeypatch.setattr(steal, "AGAIN_S", 0.0)
    host = Host(stat, [60, 30, 40])
    calm = CalmParts(lambda said: None)
    assert calm.measure(host.part) == 60


def test_parts_are_measured_once_where_the_system_does_not_say(stat: Path) -> None:
    calm = CalmParts(lambda said: None)
    assert calm.measure(lambda: 7) == 7
    assert calm.share is None
