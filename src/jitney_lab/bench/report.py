"""Results for people and programs: a table, a JSON file, and one JSON line at the end.

Every result names the machine, the versions, the commit, the seed, the model, the settings and the
load, so that it can be repeated.
"""

import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any  # Any: JSON values

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from jitney.backends.kind import version_of
from jitney.backends.machine.cores import usable_cores
from jitney.backends.machine.processor import read_processor
from jitney.config import Resolved, known_settings
from jitney.loading.compose import name_of
from jitney.models.files import disk_errors

PACKAGES = (
    *("jitney", "numpy", "jitney-llama", "llama-cpp-python", "openvino", "openvino-genai"),
    *("xllamacpp", "torch", "transformers", "vllm"),
)
"""What computes, ours and that of peers. `jitney-llama` is the llama.cpp of `make llama`."""

NOT_LISTED = ("model", "cache_dir")
"""Settings that are not listed: the model has a place of its own, and a folder of the user says
nothing of speed."""

ARM_PARTS = {
    "0x41 0xd0c": "Neoverse N1",
    "0x41 0xd40": "Neoverse V1",
    "0x41 0xd49": "Neoverse N2",
    "0x41 0xd4f": "Neoverse V2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one benchmark found. `rows` are a table; `figures` is everything, for programs."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    figures: dict[str, object]


def machine() -> dict[str, object]:
    """The processor, the cores that we may use, system and Python."""
    return {
        "processor": _named(read_processor().name),
        "architecture": platform.machine(),
        "cores": usable_cores(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _named(processor: str) -> str:
    """The name of the processor; ARM's say only the numbers of maker and part."""
    maker_and_part = " ".join(processor.split()[:2])
    return ARM_PARTS.get(maker_and_part, processor)


def versions() -> dict[str, str]:
    """The versions of the packages that matter and are installed."""
    found = {name: version_of(name) for name in PACKAGES}
    return {name: version for name, version in found.items() if version is not None}


def commit(file: Path = Path(__file__)) -> str | None:
    """The commit of the source tree that holds a file, with -dirty if anything in it was changed.

    None for an installed package, also where its environment lies in a tree of something else.
    """
    if _git(file, "ls-files", "--error-unmatch", "--", file.name) is None:
        return None
    return _git(file, "describe", "--always", "--dirty")


def _git(file: Path, *words: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(file.parent), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def setup_of(resolved: Resolved, unused: Collection[str] = frozenset()) -> dict[str, object]:
    """What was measured: the model, the backend, the threads and the settings that were given and
    used.

    A benchmark that knows which backend `auto` chose has its name in its figures.
    """
    settings = resolved.settings
    secret = (each.name for each in known_settings() if each.is_secret)
    hidden = {*secret, *NOT_LISTED, *unused}
    return {
        "model": name_of(settings),
        "backend": settings.backend,
        "threads": settings.threads or usable_cores(),
        "settings": {name: value for name, value in resolved.given().items() if name not in hidden},
    }


def document(
    result: Result, seed: int, setup: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """The content of the JSON file: the facts, then `setup`, then the figures. The last counts.

    All of it are JSON values. NaN and infinity, for which JSON has no word, are None.
    """
    content = {
        "benchmark": result.name,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        **(setup or {}),
        **result.figures,
    }
    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(content, enc_hook=_json_value))
    return values


def _json_value(value: object) -> object:
    """Numbers of numpy, and the words for what JSON has no form for."""
    return value.item() if isinstance(value, np.generic) else str(value)


def show(result: Result) -> None:
    """Print the table and the notes; tabs instead of a table where nobody looks."""
    if not sys.stdout.isatty():
        for row in (result.columns, *result.rows):
            sys.stdout.write("\t".join(row) + "\n")
    else:
        table = Table(title=result.title, title_justify="left")
        for number, column in enumerate(result.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in result.rows:
            table.add_row(*row)
        Console(highlight=False).print(table)
    for note in result.notes:
        sys.stdout.write(note + "\n")


def write_json(content: dict[str, Any], folder: Path) -> Path:
    """Write the file NAME.json into a folder, which is made if necessary. Raises a SetupError."""
    path = folder / f"{content['benchmark']}.json"
    with written_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def written_to(path: Path, flag: str = "-o") -> AbstractContextManager[None]:
    """Turn what the disk refuses into a SetupError that names the flag of the place."""
    return disk_errors(f"The result cannot be written to {path}", f"give another one with {flag}")


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, with the smallest and the largest."""
    middle = statistics.median(values)
    if len(values) == 1:
        return f"{middle:,.{digits}f}"
    return f"{middle:,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"
