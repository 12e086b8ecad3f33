"""What the command says while it works; whether it can write is checked before."""

from pathlib import Path

import pytest

from jitney.errors import SetupError
from jitney_lab.cli import plan_output
from jitney_lab.cli.plan_output import check_output, simulators
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


class Clock:
    """A clock that goes on by more than half of the time between two sentences at each look."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        self.at += 0.6 * plan_output.PROGRESS_S
        return self.at


def test_progress_is_said_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_output, "usable_cores", lambda: 1)
    monkeypatch.setattr(plan_output, "SystemClock", Clock)
    with simulators() as pool:
        pool.map(abs, range(4))

    said = ("1 of 4", "3 of 4")
    assert capsys.readouterr().err == "".join(f"jitney: simulated {each} cases\n" for each in said)
