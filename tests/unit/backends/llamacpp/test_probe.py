"""The trial run: good models are remembered, every kind of death is a sentence."""

from pathlib import Path

import pytest

from tests.backends_for_tests import skip_reason

if reason := skip_reason("llamacpp"):
    pytest.skip(reason, allow_module_level=True)

from jitney.backends.llamacpp.probe import probe_result
from jitney.errors import ModelError
from tests.models_for_tests import write_tiny_gguf


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    return path


def fake_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Let a shell script stand for the child; gives the file in which it counts its starts."""
    log = tmp_path / "starts"
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\necho start >> "{log}"\nfor last; do :; done\n{script}\n')
    path.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(path))
    return log


def test_a_good_model_runs_in_the_child(tmp_path: Path, model: Path) -> None:
    """The trial really loads and computes."""
    result = probe_result(model, tmp_path / "cache")
    assert result.extra_kernels
    assert result.warning is None


def test_the_answer_is_remembered(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One trial for each model, not one for each start; another one when the file changes."""
    log = fake_child(tmp_path, monkeypatch, "exit 0")
    for _ in range(3):
        assert probe_result(model, tmp_path / "cache").extra_kernels
    assert log.read_text() == "start\n"
    write_tiny_gguf(model, seed=2)
    probe_result(model, tmp_path / "cache")
    assert log.read_text() == "start\n" * 2


def test_an_illegal_instruction_turns_kernels_off(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A badly compiled library still serves, slower, and says how to rebuild it."""
    log = fake_child(tmp_path, monkeypatch, '[ "$last" = --plain ] && exit 0; kill -ILL $$')
    for _ in range(2):
        result = probe_result(model, tmp_path / "cache")
        assert not result.extra_kernels
        assert "clang" in (result.warning or "")
    assert log.read_text() == "start\n" * 2


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("kill -SEGV $$", "SIGSEGV"),
        ("kill -ABRT $$", "SIGABRT"),
        ("kill -ILL $$", "SIGILL"),
        ("kill -KILL $$", "lack of memory"),
        ("exit 7", "status 7"),
        ("echo the model is unwell.; exit 3", "the model is unwell"),
    ],
)
def test_every_death_is_a_sentence(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str
) -> None:
    """A crash in the child must never become one here, nor be remembered as success."""
    fake_child(tmp_path, monkeypatch, script)
    with pytest.raises(ModelError, match=told):
        probe_result(model, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_a_truncated_model_is_refused_by_the_real_child(tmp_path: Path, model: Path) -> None:
    """The sentence of the child arrives here."""
    model.write_bytes(model.read_bytes()[:20_000])
    with pytest.raises(ModelError, match="could not be loaded"):
        probe_result(model, tmp_path / "cache")


def test_weights_that_are_not_numbers_are_refused(tmp_path: Path, model: Path) -> None:
    """Such a model loads, and fails at every token."""
    content = model.read_bytes()
    model.write_bytes(content[:-20_000] + b"\xff" * 20_000)
    with pytest.raises(ModelError, match="weights are damaged"):
        probe_result(model, tmp_path / "cache")


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    """Its size and time are part of what is remembered."""
    with pytest.raises(ModelError, match="cannot be read"):
        probe_result(tmp_path / "none.gguf", tmp_path / "cache")


def test_a_cache_that_cannot_be_written_only_costs_time(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only home must not keep anybody from running a model."""
    fake_child(tmp_path, monkeypatch, "exit 0")
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert probe_result(model, tmp_path / "cache").extra_kernels
