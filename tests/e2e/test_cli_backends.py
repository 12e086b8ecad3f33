"""`jitney backends` as people run it: what it prints, where, and what it leaves alone."""

import json
from pathlib import Path

import pytest

from jitney.backends.kinds import NAMES
from tests.backends_for_tests import needs, share_verdicts
from tests.e2e import program
from tests.e2e.test_cli_terminal import on_terminal


def jitney(*words: str | Path, cache: Path) -> program.Done:
    return program.jitney(*words, environ={"JITNEY_CACHE": str(cache)})


def test_it_lists_and_chooses_and_leaves_nothing_but_what_was_tried(tmp_path: Path) -> None:
    """Guards the question before the first start: an answer, and nothing fetched for it."""
    cache = tmp_path / "cache"
    done = jitney("backends", cache=cache)
    assert done.stderr == ""
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    for name in ("openvino ", "llamacpp ", "fake ", "model ", "chosen ", "  because "):
        assert sum(line.startswith(name) for line in lines) == 1, name
    assert all(line == line.rstrip() for line in lines)
    assert "not fetched yet" in done.stdout
    assert [path.name for path in cache.iterdir()] == ["probes"]
    found = json.loads(jitney("backends", "--json", cache=cache).stdout)
    assert [each["name"] for each in found["backends"]] == list(NAMES)
    assert found["reason"] in done.stdout
    for each in found["backends"]:
        [line] = [line for line in lines if line.startswith(f"{each['name']} ")]
        if each["name"] == "fake" or not each["installed"]:
            assert "works here" not in line
        else:
            state = "yes, it was tried" if each["works"] else f"no: {each['failure']}"
            assert line.endswith(f"{each['version']}; works here: {state}")


@pytest.mark.parametrize("columns", [80, 50])
def test_it_fits_a_terminal(columns: int) -> None:
    """Guards narrow windows: lines are broken between words, and labels stand alone."""
    with on_terminal("backends", columns=columns) as terminal:
        assert terminal.end() == 0
    lines = terminal.text.splitlines()
    assert max(len(line) for line in lines) <= columns
    assert "\x1b[" in terminal.raw
    assert any(line.startswith("  because ") for line in lines)


def test_a_bad_model_is_one_sentence(tmp_path: Path) -> None:
    """Guards a mistyped path: no list, no traceback."""
    text = tmp_path / "text.gguf"
    text.write_text("hello, I am a text\n" * 50)
    for model, found in ((tmp_path / "none.gguf", "does not exist"), (text, "not a GGUF")):
        done = jitney("backends", model, cache=tmp_path / "cache")
        program.expect_sentence(done, 1, found)


def test_it_measures_when_asked_and_knows_it_afterwards(tmp_path: Path) -> None:
    """Guards the whole way with a real model: not known, measured, remembered, used."""
    needs("llamacpp")
    needs("openvino", threads=2)
    models = pytest.importorskip("tests.models_for_tests", reason="needs the gguf package")
    model, cache = tmp_path / "tiny.gguf", share_verdicts(tmp_path / "cache")
    models.write_tiny_gguf(model)
    few = ("--max-num-seqs", "2", "--threads", "2")
    before = jitney("backends", model, *few, cache=cache)
    assert "not known yet" in before.stdout
    assert "--measure" in before.stdout
    assert [path.name for path in cache.iterdir()] == ["probes"]
    measured = jitney("backends", model, *few, "--measure", cache=cache)
    assert measured.returncode == 0, measured.stderr
    assert "2 sequences: " in measured.stdout
    assert "failed" not in measured.stdout
    assert measured.stderr.count("Measuring which backend is faster here, once") == 1
    after = jitney("backends", model, *few, cache=cache)
    assert after.stdout == measured.stdout
    assert after.stderr == ""
    given = ("--model", model, *few, "--max-tokens", "2", "--raw", "hello")
    used = jitney("run", *given, cache=cache)
    assert used.returncode == 0, used.stderr
    assert "measuring" not in used.stderr
