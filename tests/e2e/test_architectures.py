"""The trial behind the page of families: a checkpoint is grown, and asked through the engine."""

from pathlib import Path

import pytest

from tests.backends_for_tests import skip_reason

if reason := skip_reason("llamacpp", threads=1):
    pytest.skip(reason, allow_module_level=True)

from tests.architectures import tried


def test_an_architecture_is_grown_and_seen_to_run(tmp_path: Path) -> None:
    """Guards the page: windows, experts and sinks of a family that has no recipe here."""
    found = tried("gpt-oss", tmp_path)
    assert not found.reason
    assert (found.has_window, found.are_equal, found.is_reused) == (True, True, True)


def test_an_architecture_that_nobody_knows_is_not_seen_to_run(tmp_path: Path) -> None:
    """Guards the page: what the library refuses is told with its reason."""
    assert "unknown model architecture" in tried("gpt-1", tmp_path).reason
