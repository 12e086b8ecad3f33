"""What the command says while it works; whether it can write is checked before."""

from pathlib import Path

import pytest

from jitney.errors import SetupError
from jitney_lab.cli import plan_output
from jitney_lab.cli.plan_output import check_output, progress_lines
from jitney_lab.cli.plan_verb import PlanOptions


def test_a_folder_is_tried_and_not_left_behind(tmp_path: Path) -> None:
    check_output(PlanOptions(output=tmp_path / "a" / "b", save_cost=tmp_path / "cost.json"))
    assert list(tmp_path.rglob("*")) == []


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(SetupError, match="there is a file where a folder should be"):
        check_output(PlanOptions(output=file))
    with pytest.raises(SetupError, match="The cost cannot be written to"):
        check_output(PlanOptions(save_cost=tmp_path / "none" / "cost.json"))
    with pytest.raises(SetupError, match="is a folder; give a file"):
        check_output(PlanOptions(save_cost=tmp_path))


def test_progress_is_said_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = progress_lines(lambda: now[0])
    for done in range(4):
        now[0] = done * plan_output.PROGRESS_S * 0.6
        progress(done, 9)
    assert capsys.readouterr().err == "jitney: simulated 2 of 9 cases\n"
