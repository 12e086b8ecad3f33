"""Builds and installs llama-cpp-python with the best compiler of this machine.

Usage, from the root of the repository:
.venv/bin/python -m scripts.build_llama [--force] [--plan]

The compiler alone is worth 1.5 to 4 times the speed on CPUs with AMX, and a bad one makes code
that dies of an illegal instruction there. pip's own cache of wheels does not know about compilers,
so wheels are kept in jitney's cache folder under a key made of everything that shaped them: the
version, the compiler, its flags, what it takes this CPU to be, and Python. A wheel whose key is
there is installed in seconds.

CC and CXX choose another compiler; CMAKE_ARGS is added to our own arguments and is part of the key.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from jitney.config import cache_folder
from scripts.compile_log import watch

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
PROBE_S_MAX = 60
CLANG_SAFE = 17
CLANG_BEST = 19
AMX_OFF = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
PROGRAM = "#include <vector>\nint main() { return (int)std::vector<int>(1)[0]; }\n"
ADVICE = (
    "clang 17 or newer makes it 1.5 to 4 times faster on recent Intel servers. On Debian and "
    "Ubuntu: apt-get install clang-19, then: make llama"
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

    @property
    def cmake_args(self) -> tuple[str, ...]:
        """Arguments for CMake. OpenMP's runtime does not come with clang."""
        threads = ("-DGGML_OPENMP=OFF",) if self.family == "clang" else ()
        return ("-DGGML_NATIVE=ON", "-DLLAVA_BUILD=OFF", *threads)


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


def wheel_key(compiler: Compiler, version: str) -> str:
    """A name for everything that shapes the wheel. Native code is made for one kind of CPU."""
    native = None
    for option in ("-march=native", "-mcpu=native"):
        native = native or output_of([compiler.cc, option, "-E", "-dM", "-x", "c", "-"])
    shape = (
        compiler.version,
        *compiler.flags,
        *compiler.cmake_args,
        os.environ.get("CMAKE_ARGS", ""),
        native or platform.processor(),
        platform.system(),
        platform.machine(),
        *platform.libc_ver(),
        sys.implementation.cache_tag,
    )
    digest = hashlib.sha256("\n".join(map(str, shape)).encode()).hexdigest()[:16]
    return f"{version}-{compiler.family}{compiler.major}-{digest}"


def pip(*arguments: str) -> list[str]:
    """A pip command of this interpreter, with our exact versions."""
    return [sys.executable, "-m", "pip", *arguments, "-c", str(CONSTRAINTS)]


def build(compiler: Compiler, version: str, folder: Path) -> None:
    """Compile the wheel into `folder`, which appears only when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    added = os.environ.get("CMAKE_ARGS", "")
    environ = os.environ | {
        "CC": compiler.cc,
        "CXX": compiler.cxx,
        "CFLAGS": " ".join((os.environ.get("CFLAGS", ""), *compiler.flags)).strip(),
        "CXXFLAGS": " ".join((os.environ.get("CXXFLAGS", ""), *compiler.flags)).strip(),
        "CMAKE_ARGS": f"{shlex.join(compiler.cmake_args)} {added}".strip(),
    }
    print(
        f"Compiling llama.cpp (llama-cpp-python {version}) with {compiler.version}: once for this "
        "machine, 4 to 8 minutes on two cores (3 min 55 s was measured with clang 19).",
        flush=True,
    )
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix="building-"))
    try:
        wanted = ("--no-deps", "--no-cache-dir", "--no-binary", "llama-cpp-python")
        source = f"llama-cpp-python=={version}"
        command = pip("wheel", "--verbose", *wanted, source, "--wheel-dir", str(scratch))
        log = folder.with_name(folder.name + ".log")
        if watch(command, environ, log) != 0:
            raise SystemExit(f"llama.cpp could not be compiled. The whole log: {log}")
        # Another process may have been first; its wheel is as good as ours.
        if not folder.is_dir():
            scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def install(folder: Path, record: Path, facts: dict[str, str]) -> None:
    """Put the wheel into this environment, see that it loads, and note what it is."""
    wheels = sorted(folder.glob("llama_cpp_python-*.whl"))
    if not wheels:
        raise SystemExit(f"There is no wheel in {folder}; remove that folder and try again.")
    again = pip("install", "-qq", "--force-reinstall", "--no-deps", str(wheels[0]))
    subprocess.run(again, check=True)
    subprocess.run(pip("install", "-qq", str(wheels[0])), check=True)
    loads = "import llama_cpp; llama_cpp.llama_backend_init()"
    subprocess.run([sys.executable, "-c", loads], check=True)
    record.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def is_installed(record: Path, facts: dict[str, str], version: str) -> bool:
    """Whether this environment holds the very build that is wanted."""
    try:
        noted = json.loads(record.read_text(encoding="utf-8"))
        return bool(noted == facts and metadata.version("llama-cpp-python") == version)
    except (OSError, ValueError, metadata.PackageNotFoundError):
        return False


def main() -> None:
    """Choose, say so, build unless the wheel is there, install."""
    parser = argparse.ArgumentParser(description="Build and install llama-cpp-python.")
    parser.add_argument("--force", action="store_true", help="compile even if a wheel is there")
    parser.add_argument("--plan", action="store_true", help="say what would be done, and stop")
    asked = parser.parse_args()
    compiler, version = choose(), pinned_version()
    key = wheel_key(compiler, version)
    folder = cache_folder(os.environ) / "wheels" / f"llama_cpp_python-{key}"
    record = Path(sys.prefix) / "llama-build.json"
    amx = "" if compiler.is_safe else ", without AMX, which it is not known to compile rightly"
    print(f"llama.cpp: compiler {compiler.version}{amx}; wheel {key}", flush=True)
    if not compiler.is_safe:
        print(ADVICE, flush=True)
    if asked.plan:
        print("wheel is there" if folder.is_dir() else "wheel is to be compiled")
        return
    facts = {"key": key, "compiler": compiler.version, "flags": " ".join(compiler.flags)}
    if asked.force:
        shutil.rmtree(folder, ignore_errors=True)
    elif is_installed(record, facts, version):
        print("llama.cpp: this build is installed", flush=True)
        return
    if not folder.is_dir():
        build(compiler, version, folder)
    install(folder, record, facts)
    print("llama.cpp: installed", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("Stopped; nothing was installed.") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"This command failed: {shlex.join(map(str, error.cmd))}") from None
