"""Compiles llama.cpp for this machine into a wheel, `jitney_llama`, with its best compiler.

Called by `scripts.set_up` where nothing prebuilt fits, or by hand, from the root of the repository:
.venv/bin/python -m scripts.build_llama [--every-level] [--force] [--plan]

The source is the one inside llama-cpp-python. Only the library is compiled, in large units, by
Ninja. `--every-level` makes kernels for every level of the architecture, chosen as it runs: one
wheel for every machine of a kind. Wheels are kept in jitney's cache folder under a key made of
everything that shaped them: version, compiler, flags, what it takes this CPU to be.

CC and CXX choose another compiler; CMAKE_ARGS is added to our own arguments and is part of the key.
"""

import argparse
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from jitney.backends.llamacpp.capi import INTERFACE
from jitney.backends.llamacpp.wheel import install_wheel, write_wheel
from jitney.config import cache_folder
from scripts.compile_log import watch

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
PROBE_S_MAX = 60
CLANG_SAFE = 17
CLANG_BEST = 19
AMX_OFF = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
CMAKE_ARGS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON"),
    # A few large files compile three times as fast as many small ones.
    *("-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=20"),
    *(f"-DLLAMA_BUILD_{part}=OFF" for part in ("COMMON", "TOOLS", "EXAMPLES", "TESTS", "SERVER")),
    # Its own threads behave alike whatever the compiler, and need no library of that.
    "-DGGML_OPENMP=OFF",
    # Files as a wheel holds them: no links, and found beside each other.
    *("-DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON"),
    f"-DCMAKE_INSTALL_RPATH={'@loader_path' if sys.platform == 'darwin' else '$ORIGIN'}",
)
LIBRARIES = ("libllama.", "libggml")
PROGRAM = "#include <vector>\nint main() { return (int)std::vector<int>(1)[0]; }\n"
ADVICE = (
    "clang 17 or newer makes it 1.5 to 4 times faster on recent Intel servers. On Debian and "
    "Ubuntu: apt-get install clang-19, then: make llama ARGS=--compile"
)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A pair of compilers that compile and link a small program, and what they must be told."""

    family: str
    major: int
    cc: str
    cxx: str
    version: str

    @property
    def is_safe(self) -> bool:
        """Whether its AMX code works. GCC 12 loses the tile configuration; newer is not known."""
        return not is_x86() or (self.family == "clang" and self.major >= CLANG_SAFE)

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags for C and C++. All three are needed: the first alone does not compile."""
        return () if self.is_safe else AMX_OFF

    def cmake_args(self, *, every_level: bool = False) -> tuple[str, ...]:
        """Arguments for CMake: the library alone, for this processor or with kernels beside it."""
        levels = ("-DGGML_NATIVE=OFF", "-DGGML_BACKEND_DL=ON", "-DGGML_CPU_ALL_VARIANTS=ON")
        return (*CMAKE_ARGS, *(levels if every_level else ("-DGGML_NATIVE=ON",)))


def is_x86() -> bool:
    """Whether AMX can be a question at all."""
    return platform.machine().lower() in ("x86_64", "amd64")


def output_of(command: list[str], given: str = "") -> str | None:
    """What a command prints, or None when it fails."""
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=PROBE_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def probe(cc: str, cxx: str) -> Compiler | None:
    """The compiler behind two names, if both are there and can build a program."""
    text = output_of([cc, "--version"])
    if text is None or shutil.which(cxx) is None:
        return None
    version = text.splitlines()[0].strip() if text.strip() else ""
    macros = output_of([cc, "-E", "-dM", "-x", "c", "-"]) or ""
    found = dict(re.findall(r"^#define (__clang_major__|__GNUC__) (\d+)$", macros, re.M))
    family = "clang" if "__clang_major__" in found else "gcc"
    major = int(found.get("__clang_major__" if family == "clang" else "__GNUC__", 0))
    with tempfile.TemporaryDirectory() as folder:
        program = [cxx, "-x", "c++", "-", "-o", str(Path(folder) / "program")]
        if not major or output_of(program, PROGRAM) is None:
            return None
    return Compiler(family, major, cc, cxx, version)


def candidates() -> list[tuple[str, str]]:
    """Names worth probing: what the user chose, or every clang and gcc on the PATH."""
    if os.environ.get("CC") or os.environ.get("CXX"):
        cc = os.environ.get("CC") or os.environ["CXX"].replace("++", "")
        return [(cc, os.environ.get("CXX") or _plus_plus(cc))]
    names = {"clang", "gcc", "cc"}
    for folder in map(Path, os.get_exec_path()):
        if folder.is_dir():
            names |= {p.name for p in folder.iterdir() if re.fullmatch(r"(clang|gcc)-\d+", p.name)}
    return [(name, _plus_plus(name)) for name in sorted(names) if shutil.which(name)]


def _plus_plus(cc: str) -> str:
    folder, name = os.path.split(cc)
    for plain, plus in (("clang", "clang++"), ("gcc", "g++"), ("cc", "c++")):
        if name.startswith(plain):
            return os.path.join(folder, plus + name.removeprefix(plain))
    return cc


def choose() -> Compiler:
    """The best compiler: a safe clang, the one known best first; else any, with AMX off."""
    found = [each for each in (probe(*pair) for pair in candidates()) if each is not None]
    if not found:
        raise SystemExit(
            "No working C++ compiler was found, and llama.cpp has to be compiled. On Debian and "
            "Ubuntu: apt-get install clang-19; on macOS: xcode-select --install. Then: make llama"
        )
    return max(
        found,
        key=lambda each: (
            each.is_safe,
            each.family == "clang" and each.major == CLANG_BEST,
            each.family == "clang",
            each.major,
        ),
    )


def pinned_version() -> str:
    """The version of llama-cpp-python in the constraints."""
    text = CONSTRAINTS.read_text(encoding="utf-8")
    matched = re.search(r"^llama[-_]cpp[-_]python==(\S+)", text, re.M | re.I)
    if matched is None:
        raise SystemExit("constraints.txt names no version of llama-cpp-python.")
    return matched[1]


def wheel_key(compiler: Compiler, version: str, *, every_level: bool = False) -> str:
    """A name for everything that shapes the wheel. Native code is made for one kind of CPU."""
    native = None
    for option in () if every_level else ("-march=native", "-mcpu=native"):
        native = native or output_of([compiler.cc, option, "-E", "-dM", "-x", "c", "-"])
    shape = (
        compiler.version,
        *compiler.flags,
        *compiler.cmake_args(every_level=every_level),
        os.environ.get("CMAKE_ARGS", ""),
        native or platform.processor(),
        platform.system(),
        platform.machine(),
        *platform.libc_ver(),
    )
    digest = hashlib.sha256("\n".join(map(str, shape)).encode()).hexdigest()[:8]
    kind = "levels" if every_level else "native"
    return f"{version}.{compiler.family}{compiler.major}.{kind}.{digest}"


def pip(*arguments: str) -> list[str]:
    """A pip command of this interpreter; -P keeps the current folder off its path."""
    return [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", *arguments]


def build(compiler: Compiler, key: str, folder: Path, *, every_level: bool = False) -> Path:
    """Compile the wheel into `folder`, where it appears only when it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    minutes = "10 to 20" if every_level else "2 to 5"
    print(
        f"Compiling llama.cpp with {compiler.version}: once for this machine, {minutes} minutes "
        "on two cores (2 min 43 s was measured with GCC 12).",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        source = fetch_source(scratch)
        if every_level:
            leave_out(source, unknown_levels(compiler))
        tools = build_tools(scratch)
        target = scratch / "build"
        configure = [tools["cmake"], "-S", str(source), "-B", str(target), "-G", "Ninja"]
        configure += [f"-DCMAKE_MAKE_PROGRAM={tools['ninja']}"]
        configure += compiler.cmake_args(every_level=every_level)
        configure += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        log = folder / f"jitney_llama-{key}.log"
        compile_all = [tools["cmake"], "--build", str(target), "--target", "llama"]
        for command in (configure, compile_all):
            if watch(command, environment_of(compiler), log) != 0:
                raise SystemExit(f"llama.cpp could not be compiled. The whole log: {log}")
        files = {
            path.name: path.read_bytes()
            for path in sorted((target / "bin").iterdir())
            if path.name.startswith(LIBRARIES) and not path.is_symlink()
        }
        files["LICENSE"] = (source / "LICENSE").read_bytes()
        return write_wheel(folder, files, f"{INTERFACE}.0+compiled.{key}")


def environment_of(compiler: Compiler) -> dict[str, str]:
    """The environment in which CMake runs."""
    return os.environ | {
        "CC": compiler.cc,
        "CXX": compiler.cxx,
        "CFLAGS": " ".join((os.environ.get("CFLAGS", ""), *compiler.flags)).strip(),
        "CXXFLAGS": " ".join((os.environ.get("CXXFLAGS", ""), *compiler.flags)).strip(),
    }


def fetch_source(scratch: Path) -> Path:
    """The source of llama.cpp, out of llama-cpp-python's."""
    wanted = ("--no-deps", "--no-binary", "llama-cpp-python", "--quiet", "--dest", str(scratch))
    subprocess.run(pip("download", *wanted, f"llama-cpp-python=={pinned_version()}"), check=True)
    archives = sorted(scratch.glob("llama_cpp_python-*.tar.gz"))
    if not archives:
        raise SystemExit("pip brought no source of llama-cpp-python.")
    with tarfile.open(archives[0]) as tar:
        # Early releases of Python 3.11 have no filter; whoever compiles a source trusts it anyway.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(scratch)
    return archives[0].with_name(archives[0].name.removesuffix(".tar.gz")) / "vendor" / "llama.cpp"


def build_tools(scratch: Path) -> dict[str, str]:
    """CMake and Ninja: those of the machine, or brought by pip for the moment."""
    target = scratch / "tools"
    # The launchers beside the packages are for another environment: these are the programs.
    brought = {"cmake": target / "cmake/data/bin/cmake", "ninja": target / "bin/ninja"}
    tools = {name: shutil.which(name) for name in brought}
    missing = [name for name, path in tools.items() if path is None]
    if missing:
        subprocess.run(pip("install", "--quiet", "--target", str(target), *missing), check=True)
    return {name: path or str(brought[name]) for name, path in tools.items()}


def unknown_levels(compiler: Compiler) -> tuple[str, ...]:
    """Levels, by the names of the build, whose code this compiler cannot make, or not rightly."""
    if is_x86():
        return () if compiler.is_safe else ("sapphirerapids",)
    latest = [compiler.cc, "-march=armv9.2-a+sme", "-E", "-x", "c", "-"]
    return () if output_of(latest) is not None else ("armv9.2_1", "armv9.2_2")


def leave_out(source: Path, levels: tuple[str, ...]) -> None:
    """Take levels out of the build, in our copy of the source."""
    lists = source / "ggml" / "src" / "CMakeLists.txt"
    lines = lists.read_text(encoding="utf-8").splitlines(keepends=True)
    starts = tuple(f"ggml_add_cpu_backend_variant({level} " for level in levels)
    kept = [line for line in lines if not line.strip().startswith(starts)]
    lists.write_text("".join(kept), encoding="utf-8")


def main() -> None:
    """Choose, say so, build unless the wheel is there, install."""
    parser = argparse.ArgumentParser(description="Compile and install llama.cpp.")
    parser.add_argument("--every-level", action="store_true", help="kernels for every processor")
    parser.add_argument("--force", action="store_true", help="compile even if a wheel is there")
    parser.add_argument("--plan", action="store_true", help="say what would be done, and stop")
    asked = parser.parse_args()
    add(force=asked.force, every_level=asked.every_level, plans=asked.plan)


def add(*, force: bool = False, every_level: bool = False, plans: bool = False) -> None:
    """Put a compiled llama.cpp into this environment."""
    compiler = choose()
    key = wheel_key(compiler, pinned_version(), every_level=every_level)
    folder = cache_folder(os.environ) / "wheels"
    amx = "" if compiler.is_safe else ", without AMX, which it is not known to compile rightly"
    print(f"llama.cpp: compiler {compiler.version}{amx}; wheel {key}", flush=True)
    if not compiler.is_safe:
        print(ADVICE, flush=True)
    kept = sorted(folder.glob(f"jitney_llama-*+compiled.{key}-*.whl"))
    if plans:
        print("wheel is there" if kept else "wheel is to be compiled")
        return
    is_kept = bool(kept) and not force
    wheel = kept[0] if is_kept else build(compiler, key, folder, every_level=every_level)
    install_wheel(wheel)
    print("llama.cpp: installed", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("Stopped; nothing was installed.") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"This command failed: {shlex.join(map(str, error.cmd))}") from None
