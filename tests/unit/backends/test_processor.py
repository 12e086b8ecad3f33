"""What the system says of the processor."""

from pathlib import Path

import pytest

from jitney.backends.processor import Processor, read_processor


def test_the_processor_is_named_by_its_first_core(tmp_path: Path) -> None:
    """Guards the key of what is remembered: another processor has another speed."""
    cpuinfo = tmp_path / "cpuinfo"
    core = "processor : {}\nmodel name\t: Fast {}\ncpu MHz : 1{}\nflags\t\t: fpu avx2\n\n"
    cpuinfo.write_text("".join(core.format(number, number, number) for number in range(2)))
    assert read_processor(cpuinfo) == Processor("Fast 0", "fpu avx2")
    assert read_processor(tmp_path / "none") == Processor("", "")


@pytest.mark.parametrize(
    ("instructions", "has"),
    [("fpu avx512_bf16", True), ("fpu amx_bf16", True), ("fpu avx512f", False), ("", False)],
)
def test_bfloat16_is_native_where_the_processor_says_so(instructions: str, has: bool) -> None:
    """Guards the default precision: emulated it would only be slower."""
    assert Processor("any", instructions).has_bfloat16 is has
