"""The file of `--save-result`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from jitney.errors import ConfigError, SetupError
from jitney_lab.cli.result_file import ResultFile
from jitney_lab.cli.serve_load_verb import ServeLoadOptions

CONTENT: dict[str, object] = {
    "label": "my run",
    "request_rate": "inf",
    "max_concurrency": 4,
    "model_id": "org/Model-1.5B",
    "date": "20260102-030405",
}


def made(options: ServeLoadOptions) -> ResultFile:
    file = ResultFile.of(options)
    assert file is not None
    return file


def test_the_name_is_that_of_vllm(tmp_path: Path) -> None:
    options = ServeLoadOptions(save_result=True, result_dir=tmp_path / "deep" / "er")
    path = made(options).write(CONTENT, {})
    assert path.parent == tmp_path / "deep" / "er"
    assert path.name == "my_run-infqps-concurrency4-Model-1.5B-20260102-030405.json"
    assert json.loads(path.read_text()) == CONTENT
    alone = {**CONTENT, "max_concurrency": None, "request_rate": None, "label": "openai"}
    assert made(options).write(alone, {}).name == "openai-traceqps-Model-1.5B-20260102-030405.json"


def test_results_are_added_as_lines_also_after_vllms(tmp_path: Path) -> None:
    options = ServeLoadOptions(
        append_result=True, result_dir=tmp_path, result_filename="all.json", save_detailed=True
    )
    (tmp_path / "all.json").write_text('{"theirs": 1}')
    for number in range(2):
        made(options).write(CONTENT, {"ttfts": [number]})
    lines = [json.loads(line) for line in (tmp_path / "all.json").read_text().splitlines()]
    assert lines == [{"theirs": 1}, {**CONTENT, "ttfts": [0]}, {**CONTENT, "ttfts": [1]}]


def test_without_save_result_there_is_none_and_its_flags_are_refused(tmp_path: Path) -> None:
    """Guards a run whose result would be lost: vLLM ignores these flags."""
    none = ServeLoadOptions()
    assert ResultFile.of(none) is None
    for given, flag in (
        (replace(none, result_dir=tmp_path), "--result-dir"),
        (replace(none, result_filename="x"), "--result-filename"),
        (replace(none, save_detailed=True), "--save-detailed"),
    ):
        with pytest.raises(ConfigError, match=f"{flag} would not be used without --save-result"):
            ResultFile.of(given)


def test_a_place_that_cannot_be_written_is_seen_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="give another one with --result-dir"):
        ResultFile.of(ServeLoadOptions(save_result=True, result_dir=tmp_path / "file" / "in"))
    with pytest.raises(ConfigError, match="is a folder"):
        ResultFile.of(ServeLoadOptions(save_result=True, result_filename=str(tmp_path)))
