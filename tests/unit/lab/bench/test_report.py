"""What a result tells of itself, folders that cannot be written, and the last line of a command."""

import json
import math
import subprocess
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from jitney.backends.llamacpp import library
from jitney.config import resolve
from jitney.errors import SetupError
from jitney_lab.bench.report import PACKAGES, Result, commit, document, setup_of, spread
from jitney_lab.cli import bench_result
from jitney_lab.cli.bench_result import check_folder, finish, give_out


def test_a_spread_has_the_median_of_even_counts() -> None:
    assert spread([4.0, 1.0, 2.0, 3.0]) == "2.50 (1.00 to 4.00)"
    assert spread([1234.5], 1) == "1,234.5"


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SetupError, match=r"cannot be written .* a file .* -o"):
            check_folder(folder)


RESULT = Result(name="overhead", title="t", columns=("a",), rows=(("1",),), figures={"x": 1})


def test_the_json_line_comes_though_drawing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_result, "find_spec", lambda name: name)
    give_out(RESULT, document(RESULT, 0), tmp_path, "no_such_plots")
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[-1])["x"] == 1
    assert "No plot was drawn: ModuleNotFoundError: No module named" in shown.err
    assert json.loads((tmp_path / "overhead.json").read_text())["x"] == 1


def test_the_json_line_comes_though_the_disk_is_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError):
        finish(RESULT, 0, tmp_path / "file", {})
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["x"] == 1


def test_a_result_names_what_was_measured_and_nothing_secret(tmp_path: Path) -> None:
    flags: dict[str, object] = {
        "backend": "fake",
        "max_num_seqs": 3,
        "policy": "sjf",
        "threads": 2,
        "max_wait_ms": "none",
        "memory_limit": "2MiB",
        "cache_dir": str(tmp_path),
        "api_key": ["hidden"],
    }
    setup = setup_of(resolve(flags, None, {}))
    assert setup == {
        "model": "fake",
        "backend": "fake",
        "threads": 2,
        "settings": {
            "backend": "fake",
            "threads": 2,
            "max_num_seqs": 3,
            "memory_limit": 2**21,
            "policy": "sjf",
            "max_wait_ms": None,
        },
    }
    content = document(RESULT, 5, setup)
    assert (content["seed"], content["x"], content["model"]) == (5, 1, "fake")
    assert "hidden" not in json.dumps(content)
    assert str(tmp_path) not in json.dumps(content)


def test_a_result_names_the_llama_cpp_that_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards comparisons between builds: a result that names none can be of any."""
    assert set(library.PACKAGES.values()) <= set(PACKAGES)
    monkeypatch.setattr(metadata, "version", lambda name: f"{name} 1+compiled")
    versions = document(RESULT, 0)["versions"]
    assert versions["jitney-llama"] == "jitney-llama 1+compiled"


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True)


def test_only_a_file_that_git_tracks_has_a_commit(tmp_path: Path) -> None:
    """Guards against the commit of a project in whose folder our environment lies."""
    git(tmp_path, "init", "-q")
    ours, theirs = tmp_path / "ours.py", tmp_path / "theirs.py"
    ours.write_text("")
    git(tmp_path, "add", "ours.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    theirs.write_text("")
    found = commit(ours)
    assert found is not None
    assert commit(theirs) is None
    ours.write_text("changed")
    assert commit(ours) == f"{found}-dirty"


def test_a_result_is_json_that_every_reader_takes() -> None:
    figures: dict[str, object] = {"x": math.inf, "y": {2: np.float64(0.5)}, "z": (RESULT,)}
    content = document(replace(RESULT, figures=figures), 0)
    assert (content["x"], content["y"], content["z"][0]["name"]) == (None, {"2": 0.5}, "overhead")
    assert json.loads(json.dumps(content, allow_nan=False)) == content
