"""Whether a model fits: refused before memory is taken, with a number that would fit."""

from pathlib import Path

import pytest

from jitney.backends.machine import free_memory
from jitney.backends.machine.free_memory import available_bytes, check_memory, check_weights
from jitney.errors import ModelError

GIB = 2**30
VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                                1000.
Pages active:                             50000.
Pages inactive:                             300.
Pages speculative:                           20.
Pages throttled:                              0.
Pages wired down:                         70000.
Pages purgeable:                            900.
"""


@pytest.fixture
def meminfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 2 GiB free."""
    path = tmp_path / "meminfo"
    monkeypatch.setattr(free_memory, "MEMINFO", path)
    path.write_text("MemTotal: 9999999 kB\nMemFree: 5 kB\nMemAvailable:    2097152 kB\n")
    return path


@pytest.mark.usefixtures("meminfo")
def test_available_is_what_can_be_taken() -> None:
    """Free memory leaves out the page cache, which is there to be taken."""
    assert available_bytes() == 2 * GIB


@pytest.mark.usefixtures("meminfo")
def test_weights_that_fit_pass() -> None:
    """A check that refuses everything would also pass the next test."""
    check_weights(Path("m.gguf"), GIB)
    check_memory(1000, 1 << 20, 0)


@pytest.mark.usefixtures("meminfo")
def test_weights_that_do_not_fit_are_refused() -> None:
    """Otherwise the kernel kills the process while it loads."""
    with pytest.raises(ModelError, match=r"3\.0 GiB of weights and 2\.0 GiB"):
        check_weights(Path("m.gguf"), 3 * GIB)


@pytest.mark.usefixtures("meminfo")
def test_the_advice_fits() -> None:
    """The number told to the user must be one that is not refused again."""
    with pytest.raises(ModelError, match="at most 1792"):
        check_memory(4000, 1 << 20, 200 << 20)
    check_memory(1792, 1 << 20, 200 << 20)


def test_where_no_file_tells_a_program_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meminfo: Path
) -> None:
    """Guards macOS, which has no such file."""
    (tmp_path / "vm_stat").write_text(f"#!/bin/sh\ncat <<END\n{VM_STAT}END\n")
    (tmp_path / "vm_stat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    meminfo.unlink()
    assert available_bytes() == (1000 + 300 + 20) * 16384
    meminfo.write_text("MemAvailable: lots\n")
    assert available_bytes() == (1000 + 300 + 20) * 16384


def test_unknown_memory_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meminfo: Path
) -> None:
    """Guards systems that tell nothing at all: they still run models."""
    monkeypatch.setenv("PATH", str(tmp_path))
    meminfo.unlink()
    check_weights(Path("m.gguf"), 2**60)
    check_memory(2**31, 2**30, 0)
    meminfo.write_text("MemAvailable: lots\n")
    assert available_bytes() is None
