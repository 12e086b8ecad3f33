"""A tiny model for the tests of llama.cpp, and a script in the place of Python."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a tiny model. Nobody changes it."""
    models = pytest.importorskip("tests.models_for_tests", reason="needs the gguf package")
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    models.write_tiny_gguf(path)
    return path


@pytest.fixture
def stand_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets a shell script stand for Python."""

    def stand_in(script: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(path))

    return stand_in
