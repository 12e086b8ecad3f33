"""A tiny model for the tests of llama.cpp."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a tiny model. Nobody changes it."""
    models = pytest.importorskip("tests.models_for_tests", reason="needs the gguf package")
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    models.write_tiny_gguf(path)
    return path
