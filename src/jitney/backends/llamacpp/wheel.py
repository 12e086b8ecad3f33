"""Writes and installs the package `jitney_llama`: native libraries of llama.cpp as a wheel.

The package has no code of its own. pip can install it and remove it. A wheel with kernels for every
level of an architecture works on every machine of that kind. Called at set-up.
"""

import base64
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

from jitney.errors import SetupError

PROGRAM_S_MAX = 600.0
_REASON_CHARACTERS_MAX = 200
_ABOUT = '"""The libraries of llama.cpp, for jitney."""\n'


def wheel_path(folder: Path, version: str) -> Path:
    """The path of the wheel of this version for this machine."""
    return folder / f"jitney_llama-{version}-{_tag()}.whl"


def write_wheel(folder: Path, libraries: Mapping[str, bytes], version: str) -> Path:
    """Write a wheel of these files, by name. A file `LICENSE` goes into the folder for licences."""
    tag = _tag()
    metadata = f"jitney_llama-{version}.dist-info"
    files = {"jitney_llama/__init__.py": _ABOUT.encode()}
    for name, content in libraries.items():
        place = f"{metadata}/licenses" if name == "LICENSE" else "jitney_llama/lib"
        files[f"{place}/{name}"] = content
    files[f"{metadata}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: jitney-llama\nVersion: {version}\n"
        "Summary: The libraries of llama.cpp, for jitney\nLicense: MIT\n"
    ).encode()
    files[f"{metadata}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: jitney\nRoot-Is-Purelib: false\nTag: {tag}\n"
    ).encode()
    rows = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    record = f"{metadata}/RECORD"
    files[record] = "\n".join((*rows, f"{record},,\n")).encode()
    target = wheel_path(folder, version)
    partial = target.with_suffix(f".{os.getpid()}.partial")
    with zipfile.ZipFile(partial, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    partial.replace(target)
    return target


def install_wheel(wheel: Path) -> None:
    """Install the wheel for this interpreter. Raises SetupError."""
    command = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--force-reinstall", "--disable-pip-version-check", str(wheel)]
    advice = "use an environment of your own, such as one of `python3 -m venv`"
    run_program(command, f"pip could not install {wheel.name}", advice)


def run_program(
    command: list[str], failure: str, advice: str = "", *, folder: Path | None = None
) -> None:
    """Run a program that must succeed. Raises SetupError with the failure, reason and advice."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROGRAM_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{failure} ({error}).") from error
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        lines.append(f"status {done.returncode}")
        line = next((line for line in lines if "error" in line.lower()), lines[0])
        reason = line.strip().removeprefix("ERROR: ").rstrip(".")[:_REASON_CHARACTERS_MAX]
        raise SetupError(f"{failure} ({reason})" + (f"; {advice}." if advice else "."))


def _tag() -> str:
    """pip's tag for a wheel for this system and any Python."""
    name = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    # For newer systems of Apple, pip takes the major version and a zero.
    name = re.sub(r"^macosx_(1[1-9]|[2-9]\d)(_\d+)?_(?=[a-z])", r"macosx_\1_0_", name)
    return f"py3-none-{name}"


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
