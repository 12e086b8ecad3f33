"""What was tried once and is remembered: what a memory is about, and forgetting what is gone.

A memory is a file of `measure`, of `selftest` or of llama.cpp's `probe`, found by a hash; beside
its answer it says which model and which libraries it is about. Any thread.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

MEMORY_BYTES_MAX = 65_536


def builds(distributions: Iterable[str]) -> list[list[str]]:
    """Version and digest of each installed distribution: one that is built anew is another one."""
    found = []
    for name in distributions:
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            found.append([name])
            continue
        record = installed.read_text("RECORD") or ""
        found.append([name, installed.version, hashlib.sha256(record.encode()).hexdigest()])
    return found


def about(model: Path | None, distributions: Iterable[str]) -> Mapping[str, object]:
    """What to write beside an answer that was found with this model and these libraries.

    None is for what holds whatever the model.
    """
    named = None if model is None else str(model.resolve())
    return {"model": named, "libraries": builds(distributions)}


def keep(
    memory: Path, answer: Mapping[str, object], model: Path | None, distributions: Iterable[str]
) -> None:
    """Write an answer, whole or not at all, if the folder allows it."""
    partial = memory.with_suffix(f".{os.getpid()}.partial")
    with suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        kept = {**answer, **about(model, distributions)}
        partial.write_text(json.dumps(kept), encoding="utf-8")
        partial.replace(memory)


def forget(cache: Path) -> int:
    """Remove memories of models and libraries that are gone; the bytes that are free now."""
    freed = 0
    for file in list((cache / "probes").glob("*.json")):
        size = file.stat().st_size
        if size > MEMORY_BYTES_MAX or not _holds(file):
            file.unlink(missing_ok=True)
            freed += size
    return freed


def _holds(file: Path) -> bool:
    """Whether the model is there and the libraries are those that are installed now."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        libraries = kept["libraries"]
        names = [str(each[0]) for each in libraries]
        is_there = kept["model"] is None or Path(str(kept["model"])).exists()
        return is_there and bool(libraries == builds(names))
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return False
