"""The trial run: good models are remembered, every kind of death is a sentence."""

from pathlib import Path

import pytest

from tests.backends_for_tests import skip_reason

if reason := skip_reason("llamacpp"):
    pytest.skip(reason, allow_module_level=True)

from jitney.backends.llamacpp import kernels
from jitney.backends.llamacpp.kind import KIND, safe_values
from jitney.config import Settings
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
    path.write_text(f'#!/bin/sh\necho start >> "{log}"\ngiven=$(cat)\n{script}\n')
    path.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(path))
    return log


def usable(model: Path, cache: Path) -> bool:
    """Whether its fastest kernels run here."""
    return kernels.are_usable(model, cache, KIND.distributions())


def test_a_good_model_runs_in_the_child(tmp_path: Path, model: Path) -> None:
    """The trial really loads and computes."""
    assert usable(model, tmp_path / "cache")


def test_the_answer_is_remembered(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One trial for each model, not one for each start; another one when the file changes."""
    log = fake_child(tmp_path, monkeypatch, "exit 0")
    for _ in range(3):
        assert usable(model, tmp_path / "cache")
    assert log.read_text() == "start\n"
    write_tiny_gguf(model, seed=2)
    usable(model, tmp_path / "cache")
    assert log.read_text() == "start\n" * 2


def test_an_illegal_instruction_turns_kernels_off(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A badly compiled library still serves, slower, and says how to rebuild it."""
    script = """case "$given" in *'"extra_kernels": false'*) exit 0;; *) kill -ILL $$;; esac"""
    log = fake_child(tmp_path, monkeypatch, script)
    for _ in range(2):
        assert not usable(model, tmp_path / "cache")
    assert log.read_text() == "start\n" * 2


def test_that_kernels_are_off_is_said_with_what_to_do(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards people against a slow server that does not say why."""
    script = """case "$given" in *'"extra_kernels": false'*) exit 0;; *) kill -ILL $$;; esac"""
    fake_child(tmp_path, monkeypatch, script)
    settings = Settings(model=model, cache_dir=tmp_path / "cache")
    assert safe_values({"model": str(model)}, settings)["extra_kernels"] is False
    assert "clang" in caplog.text


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
        usable(model, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_a_truncated_model_is_refused_by_the_real_child(tmp_path: Path, model: Path) -> None:
    """The sentence of the child arrives here."""
    model.write_bytes(model.read_bytes()[:20_000])
    with pytest.raises(ModelError, match="could not be loaded"):
        usable(model, tmp_path / "cache")


def test_weights_that_are_not_numbers_are_refused(tmp_path: Path, model: Path) -> None:
    """Such a model loads, and fails at every token."""
    content = model.read_bytes()
    model.write_bytes(content[:-20_000] + b"\xff" * 20_000)
    with pytest.raises(ModelError, match="weights are damaged"):
        usable(model, tmp_path / "cache")


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    """Its size and time are part of what is remembered."""
    with pytest.raises(ModelError, match="cannot be read"):
        usable(tmp_path / "none.gguf", tmp_path / "cache")


def test_a_cache_that_cannot_be_written_only_costs_time(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only home must not keep anybody from running a model."""
    fake_child(tmp_path, monkeypatch, "exit 0")
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert usable(model, tmp_path / "cache")
