"""Whether a model fits: refused before memory is taken, with a number that would fit."""

from pathlib import Path

import pytest

from jitney.backends.room import available_bytes, check_memory, check_weights
from jitney.errors import ModelError

GIB = 2**30


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


def test_unknown_memory_refuses_nothing(tmp_path: Path) -> None:
    """Systems without that file still run models."""
    check_weights(Path("m.gguf"), 2**60, tmp_path / "none")
    check_memory(2**31, 2**30, 0, tmp_path / "none")
    (tmp_path / "odd").write_text("MemAvailable: lots\n")
    assert available_bytes(tmp_path / "odd") is None
