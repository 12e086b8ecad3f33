"""Whether a model fits: refused before memory is taken, with a number that would fit."""

import os
from pathlib import Path

import pytest

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
def meminfo(tmp_path: Path) -> Path:
    """A machine with 2 GiB free."""
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 9999999 kB\nMemFree: 5 kB\nMemAvailable:    2097152 kB\n")
    return path


def test_available_is_what_can_be_taken(meminfo: Path) -> None:
    """Free memory leaves out the page cache, which is there to be taken."""
    assert available_bytes(meminfo) == 2 * GIB


def test_weights_that_fit_pass(meminfo: Path) -> None:
    """A check that refuses everything would also pass the next test."""
    check_weights(Path("m.gguf"), GIB, meminfo)
    check_memory(1000, 1 << 20, 0, meminfo)


def test_weights_that_do_not_fit_are_refused(meminfo: Path) -> None:
    """Otherwise the kernel kills the process while it loads."""
    with pytest.raises(ModelError, match=r"3\.0 GiB of weights and 2\.0 GiB"):
        check_weights(Path("m.gguf"), 3 * GIB, meminfo)


def test_the_advice_fits(meminfo: Path) -> None:
    """The number told to the user must be one that is not refused again."""
    with pytest.raises(ModelError, match="at most 1792"):
        check_memory(4000, 1 << 20, 200 << 20, meminfo)
    check_memory(1792, 1 << 20, 200 << 20, meminfo)


def test_where_no_file_tells_a_program_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards macOS, which has no such file."""
    (tmp_path / "vm_stat").write_text(f"#!/bin/sh\ncat <<END\n{VM_STAT}END\n")
    (tmp_path / "vm_stat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert available_bytes(tmp_path / "none") == (1000 + 300 + 20) * 16384
    (tmp_path / "odd").write_text("MemAvailable: lots\n")
    assert available_bytes(tmp_path / "odd") == (1000 + 300 + 20) * 16384


def test_where_nothing_tells_what_is_free_the_whole_memory_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the user: what fits the machine may fit, and what does not never will."""
    monkeypatch.setenv("PATH", str(tmp_path))
    whole_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert available_bytes(tmp_path / "none") == whole_bytes
    check_weights(Path("m.gguf"), whole_bytes, tmp_path / "none")
    with pytest.raises(ModelError, match="of weights"):
        check_weights(Path("m.gguf"), whole_bytes + 1, tmp_path / "none")


def test_unknown_memory_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards systems that tell nothing at all: they still run models."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "sysconf_names", {"SC_PAGE_SIZE": os.sysconf_names["SC_PAGE_SIZE"]})
    check_weights(Path("m.gguf"), 2**60, tmp_path / "none")
    check_memory(2**31, 2**30, 0, tmp_path / "none")
    (tmp_path / "odd").write_text("MemAvailable: lots\n")
    assert available_bytes(tmp_path / "odd") is None
