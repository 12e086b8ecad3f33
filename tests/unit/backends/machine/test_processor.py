"""What the system says of the processor."""

import platform
from pathlib import Path

import pytest

from jitney.backends.machine.processor import Processor, read_processor

ARM = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"
SYSCTL = """#!/bin/sh
test "$1" = -n || exit 1
case "$2" in
machdep.cpu.brand_string) echo "{name}" ;;
machdep.cpu.features) {features} ;;
*) exit 1 ;;
esac
"""


def place_sysctl(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Make this the only program that is found."""
    folder.mkdir()
    (folder / "sysctl").write_text(script)
    (folder / "sysctl").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_the_processor_is_named_by_its_first_core(cpuinfo: Path) -> None:
    """Guards the key of what is remembered: another processor has another speed."""
    core = "processor : {}\nmodel name\t: Fast {}\ncpu MHz : 1{}\nflags\t\t: fpu avx2\n\n"
    cpuinfo.write_text("".join(core.format(number, number, number) for number in range(2)))
    assert read_processor() == Processor("Fast 0", "fpu avx2")


def test_a_processor_without_a_name_goes_by_its_numbers(cpuinfo: Path) -> None:
    """Guards the same key on ARM, where Linux has no name for a processor."""
    cpuinfo.write_text(ARM)
    assert read_processor() == Processor("0x41 0xd0c", "fp asimd")
    cpuinfo.write_text("processor : 0\n")
    assert read_processor() == Processor(platform.machine(), "")


@pytest.mark.usefixtures("cpuinfo")
@pytest.mark.parametrize(
    ("features", "processor"),
    [("exit 1", Processor("Fast 9", "")), ('echo "FPU AVX2"', Processor("Fast 9", "fpu avx2"))],
    ids=["arm", "intel"],
)
def test_without_the_file_a_program_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, features: str, processor: Processor
) -> None:
    """Guards the key on macOS, which has no such file."""
    script = SYSCTL.format(name="Fast 9", features=features)
    place_sysctl(tmp_path / "bin", monkeypatch, script)
    assert read_processor() == processor


@pytest.mark.usefixtures("cpuinfo")
def test_without_file_and_program_the_architecture_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the key elsewhere: at least two kinds of processors are never taken for one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_processor() == Processor(platform.machine(), "")
    assert platform.machine()


@pytest.mark.parametrize(
    ("instructions", "has"),
    [("fpu avx512_bf16", True), ("fpu amx_bf16", True), ("fpu avx512f", False), ("", False)],
)
def test_bfloat16_is_native_where_the_processor_says_so(instructions: str, has: bool) -> None:
    """Guards the default precision: emulated it would only be slower."""
    assert Processor("any", instructions).has_bfloat16 is has
