"""What is said of the GPU."""

from pathlib import Path

import pytest

from jitney.backends.machine.gpu import describe_gpu, gpu_bytes


@pytest.mark.parametrize(
    ("says", "expected", "gibibytes"),
    [
        ("echo 'NVIDIA H200, 143771, 9.0'", "NVIDIA H200 (140 GiB, compute capability 9.0)", 140),
        ("echo 'NVIDIA GB10, [N/A], 12.1'", "the GPU", None),
        ("echo 'A, 1024, 9.0'; echo 'A, 1024, 9.0'", "A (1 GiB, compute capability 9.0)", 1),
        ("echo 'A, 1024, 9.0'; echo 'B, 2048, 8.0'", "the GPU", 2),
        ("exit 9", "the GPU", None),
        ("", "the GPU", None),
    ],
)
def test_a_gpu_is_named_where_its_driver_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    says: str,
    expected: str,
    gibibytes: int | None,
) -> None:
    """Guards a start on machines whose driver is broken or says less."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_gpu() == expected
    found = gpu_bytes()
    assert (found and found >> 30) == gibibytes


def test_without_a_driver_nothing_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards containers that have the GPU and not its program."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_gpu() == "the GPU"
