"""What the system says of the processor, for the tests of backends."""

from pathlib import Path

import pytest

from jitney.backends.machine import processor


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that describes the processor; a test writes it."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "CPUINFO", path)
    return path
