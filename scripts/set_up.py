"""Adds what this machine will run models with: OpenVINO where it works, llama.cpp elsewhere.

Called by make, from the root of the repository:
.venv/bin/python -m scripts.set_up [--every | --llama] [--compile] [--force]

OpenVINO is installed by then, where it has a package; whether it works is tried. llama.cpp is taken
prebuilt where there is something that fits and works, and compiled elsewhere.
"""

import argparse
import os
import shlex
import subprocess
import time

from jitney.backends.kinds import kind_of
from jitney.backends.llamacpp import prebuilt
from jitney.config import Settings, cache_folder
from jitney.errors import SetupError
from jitney.loading import backend_failure
from scripts import build_llama


def main() -> None:
    """Say what works, and add what is missing."""
    parser = argparse.ArgumentParser(description="Add what this machine will run models with.")
    parser.add_argument("--every", action="store_true", help="every backend that can be had")
    parser.add_argument("--llama", action="store_true", help="llama.cpp, and nothing else")
    parser.add_argument("--compile", action="store_true", help="compile llama.cpp in any case")
    parser.add_argument("--force", action="store_true", help="even if it was done before")
    asked = parser.parse_args()
    if not asked.llama and _has_openvino() and not asked.every:
        return
    if _has_llama() and not (asked.compile or asked.force):
        print("llama.cpp is here and works", flush=True)
        return
    add_llama(compiles=asked.compile, force=asked.force)


def add_llama(*, compiles: bool, force: bool) -> None:
    """Put llama.cpp into this environment, and see that it works."""
    reason = "that was asked for" if compiles else _add_prebuilt()
    if reason is not None:
        print(f"llama.cpp has to be compiled: {reason.rstrip('.')}", flush=True)
        build_llama.add(force=force)
        failure = _failure()
        if failure is not None:
            raise SystemExit(f"llama.cpp was compiled and does not work here: {failure}.")


def _has_openvino() -> bool:
    """Whether OpenVINO works here, with a line that says so."""
    if kind_of("openvino").library() is None:
        print("OpenVINO has no package for this machine; models run through llama.cpp", flush=True)
        return False
    print("Trying OpenVINO on this machine (about 5 s, once)", flush=True)
    failure = backend_failure("openvino", Settings())
    if failure is None:
        print("OpenVINO works here; models run through it", flush=True)
        return True
    print(f"OpenVINO does not work here: {failure}; models run through llama.cpp", flush=True)
    return False


def _has_llama() -> bool:
    return _failure() is None


def _add_prebuilt() -> str | None:
    """Why nothing prebuilt can be used; None when it was added and works."""
    print("Adding llama.cpp, prebuilt (about 10 s)", flush=True)
    started = time.monotonic()
    try:
        version = prebuilt.add(cache_folder(os.environ))
    except SetupError as error:
        return str(error)
    failure = _failure()
    if failure is None:
        print(f"llama.cpp {version} works here ({time.monotonic() - started:.0f} s)", flush=True)
        return None
    return f"the prebuilt one does not work here: {failure}"


def _failure() -> str | None:
    return backend_failure("llamacpp", Settings(cache_dir=cache_folder(os.environ)))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("Stopped; nothing more was installed.") from None
    except SetupError as error:
        raise SystemExit(f"jitney: {error}") from None
    except OSError as error:
        told = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise SystemExit(f"A file could not be written or read ({told}).") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"This command failed: {shlex.join(map(str, error.cmd))}") from None
