"""Medians of even counts, folders that cannot be written, and the last line of a command."""

import json
from pathlib import Path

import pytest

from jitney.bench import plots, report
from jitney.bench.report import Result, check_folder, spread
from jitney.cli.bench_result import finish
from jitney.errors import SetupError


def test_a_spread_has_the_median_of_even_counts() -> None:
    assert spread([4.0, 1.0, 2.0, 3.0]) == "2.50 (1.00 to 4.00)"
    assert spread([1234.5], 1) == "1,234.5"


def test_a_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SetupError, match=r"cannot be written .* a file .* -o"):
            check_folder(folder)


RESULT = Result(name="compare", title="t", columns=("a",), rows=(("1",),), figures={"x": 1})


def test_the_json_line_comes_though_drawing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")

    def draw(content: object, folder: Path) -> list[Path]:
        raise RuntimeError("no font")

    monkeypatch.setattr(plots, "draw", draw)
    finish(RESULT, 0, tmp_path)
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[-1])["x"] == 1
    assert "No plot was drawn: RuntimeError: no font" in shown.err
    assert json.loads((tmp_path / "compare.json").read_text())["x"] == 1


def test_the_json_line_comes_though_the_disk_is_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError):
        finish(RESULT, 0, tmp_path / "file")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["x"] == 1


def test_a_comparison_without_peers_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rates = {"jitney serve": {"1": [3.0, 4.0], "4": [5.0]}, "jitney": {"4": [6.0]}}
    content = {"benchmark": "compare", "machine": report.machine(), "tokens_per_s": rates}
    assert [path.suffix for path in plots.draw(content, tmp_path)] == [".png", ".svg"]
