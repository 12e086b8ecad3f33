"""Tests of `scripts.build_llama`: which compiler is taken, and what it is told.

The compilers are small shell programs that answer as real ones do, on a PATH of their own.
"""

import platform
from pathlib import Path

import pytest

from scripts import build_llama

AMX_OFF = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH, on a machine where AMX is a question."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return tmp_path


def add(folder: Path, family: str, major: int, *, suffix: str = "", works: bool = True) -> None:
    macro = "__clang_major__" if family == "clang" else "__GNUC__"
    program = (
        "#!/bin/sh\n"
        'case "$*" in\n'
        f'  --version) echo "{family} version {major}.0" ;;\n'
        f'  *-dM*) echo "#define {macro} {major}" ;;\n'
        f"  *) exit {0 if works else 1} ;;\n"
        "esac\n"
    )
    pair = ("clang", "clang++") if family == "clang" else ("gcc", "g++")
    for name in pair:
        file = folder / (name + suffix)
        file.write_text(program, encoding="utf-8")
        file.chmod(0o755)


def test_gcc_alone_is_told_to_leave_amx_out(folder: Path) -> None:
    """Guards against the illegal instruction: one flag of three does not even compile."""
    add(folder, "gcc", 12)
    compiler = build_llama.choose()
    assert (compiler.family, compiler.major, compiler.flags) == ("gcc", 12, AMX_OFF)


def test_a_recent_clang_is_taken_before_gcc_with_amx_on(folder: Path) -> None:
    """Guards the speed: the compiler alone is worth 1.5 to 4 times."""
    add(folder, "gcc", 14)
    add(folder, "clang", 18, suffix="-18")
    compiler = build_llama.choose()
    assert (compiler.cc, compiler.cxx, compiler.flags) == ("clang-18", "clang++-18", ())
    assert "-DGGML_NATIVE=ON" in compiler.cmake_args()


def test_the_clang_that_is_known_best_is_taken_before_a_newer_one(folder: Path) -> None:
    """Guards against a release that nobody has tried here."""
    for major in (18, 19, 25):
        add(folder, "clang", major, suffix=f"-{major}")
    assert build_llama.choose().cc == "clang-19"


def test_an_old_clang_builds_without_amx(folder: Path) -> None:
    """Guards the boundary: 17 is the first that is trusted with it."""
    add(folder, "clang", 16)
    assert build_llama.choose().flags == AMX_OFF
    add(folder, "clang", 17)
    assert build_llama.choose().flags == ()


def test_other_processors_get_no_flags_of_intel(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards ARM machines, whose compilers refuse these flags."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    add(folder, "gcc", 12)
    assert build_llama.choose().flags == ()


def test_a_compiler_that_cannot_link_is_passed_over(folder: Path) -> None:
    """Guards a clang without a C++ library, which would fail minutes later."""
    add(folder, "clang", 19, suffix="-19", works=False)
    add(folder, "gcc", 12)
    assert build_llama.choose().family == "gcc"


def test_a_chosen_compiler_is_respected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards CC: a person who set it means it."""
    add(folder, "clang", 19, suffix="-19")
    add(folder, "gcc", 13, suffix="-13")
    monkeypatch.setenv("CC", "gcc-13")
    compiler = build_llama.choose()
    assert (compiler.cc, compiler.cxx) == ("gcc-13", "g++-13")


def test_no_compiler_is_one_sentence_with_advice(folder: Path) -> None:
    """Guards the first minute of a newcomer against a traceback."""
    with pytest.raises(SystemExit, match=r"No working C\+\+ compiler was found.*clang-19"):
        build_llama.choose()


def test_the_key_of_a_wheel_follows_what_shapes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the cache: a wheel of another compiler or other arguments must not be taken."""
    add(folder, "gcc", 12)
    first = build_llama.choose()
    keys = {build_llama.wheel_key(first, "1.0"), build_llama.wheel_key(first, "2.0")}
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=ON")
    keys.add(build_llama.wheel_key(first, "1.0"))
    add(folder, "clang", 19)
    keys.add(build_llama.wheel_key(build_llama.choose(), "1.0"))
    assert len(keys) == 4
    assert build_llama.wheel_key(first, "1.0") in keys


def test_levels_that_a_compiler_gets_wrong_are_left_out(folder: Path) -> None:
    """Guards a wheel for every processor: GCC's code for AMX would stop the best of them."""
    add(folder, "gcc", 12)
    assert build_llama.unknown_levels(build_llama.choose()) == ("sapphirerapids",)
    add(folder, "clang", 19, suffix="-19")
    assert build_llama.unknown_levels(build_llama.choose()) == ()


def test_levels_are_taken_out_of_the_copy_and_nothing_else(tmp_path: Path) -> None:
    """Guards the edit: one line for each level, and names that begin alike stay."""
    lists = tmp_path / "ggml" / "src" / "CMakeLists.txt"
    lists.parent.mkdir(parents=True)
    lines = [
        "    ggml_add_cpu_backend_variant(armv9.2_1    SVE SME)\n",
        "    ggml_add_cpu_backend_variant(armv9.2_10   SVE)\n",
        "    ggml_add_cpu_backend_variant(armv8.0_1)\n",
    ]
    lists.write_text("".join(lines), encoding="utf-8")
    build_llama.leave_out(tmp_path, ("armv9.2_1", "armv9.2_2"))
    assert lists.read_text(encoding="utf-8") == "".join(lines[1:])


def test_a_wheel_for_every_level_is_another_one(folder: Path) -> None:
    """Guards the cache: a wheel for this processor alone must not be published as one for all."""
    add(folder, "clang", 19, suffix="-19")
    compiler = build_llama.choose()
    keys = {build_llama.wheel_key(compiler, "1.0", every_level=each) for each in (True, False)}
    assert len(keys) == 2


def test_native_code_is_never_loaded_as_a_plugin(folder: Path) -> None:
    """Guards x86-64, where llama.cpp's build refuses the two together."""
    add(folder, "gcc", 12)
    compiler = build_llama.choose()
    for every_level in (False, True):
        given = compiler.cmake_args(every_level=every_level)
        assert ("-DGGML_NATIVE=ON" in given) != ("-DGGML_BACKEND_DL=ON" in given)
