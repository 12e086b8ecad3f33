"""Converted models, made once and kept in the cache folder.

Several processes may want the same conversion at once: one makes it, and the others wait for it. A
conversion is a folder that gets its final name only when it is complete. A record in it describes
its source and its files. A conversion that does not match its record is made again.
"""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from jitney.models import files
from jitney.models.gguf import read_header

RECORD_NAME = "record.json"
READY = "ready"
_MARGIN_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """One way to convert a model."""

    kind: str
    """The name of the result; a later version with another result needs another name."""
    files: tuple[str, ...]
    """The files to keep from the folder that `make` wrote."""
    bytes_per_weight: float
    """Disk space of the result."""
    make: Callable[[Path, Path], None]
    """Converts a source into an empty folder. Raises ModelError or OSError."""


@dataclass(frozen=True, slots=True)
class _ConversionRecord:
    """The record beside converted files."""

    source: str
    source_stamp: files.Stamp
    results: dict[str, files.Stamp]
    """The expected state of each file."""


def folders(cache: Path) -> list[Path]:
    """The finished conversions."""
    return sorted(record.parent for record in (cache / "converted").glob(f"*/{RECORD_NAME}"))


def source_of(folder: Path) -> tuple[str | None, str]:
    """The source of a conversion, None if its record cannot be read, and its state in words.

    The state is READY where the conversion can still be used.
    """
    record = _read_record(folder)
    if record is None:
        return None, "its source has changed"
    try:
        is_same = files.Stamp.of(Path(record.source)) == record.source_stamp
    except OSError:
        return record.source, "its source is gone"
    return record.source, READY if is_same else "its source has changed"


def lock_of(folder: Path) -> Path:
    """The lock of a conversion while it is made."""
    return folder.with_name(f"{folder.name}.lock")


def converted(cache: Path, source: Path, conversion: Conversion) -> Path:
    """The folder with the conversion of `source` in the cache; makes it if it is missing.

    Raises ModelError if the source is bad, or if the cache is full or not writable.
    """
    header = read_header(source)
    # In the hub's cache a file is a link, and its content is stored under its digest.
    stem, source = source.stem, source.resolve()
    key = hashlib.sha256(str(source).encode()).hexdigest()[:12]
    target = cache / "converted" / f"{stem}-{key}.{conversion.kind}"
    needed_bytes = int(header.parameter_count * conversion.bytes_per_weight) + _MARGIN_BYTES
    with files.disk_errors(f"{target} could not be made"):
        files.make_once(
            lock_of(target),
            partial(_is_current, target, source, conversion),
            partial(_make, target, source, conversion, needed_bytes),
        )
    return target


def _is_current(target: Path, source: Path, conversion: Conversion) -> bool:
    record = _read_record(target)
    if record is None or record.source_stamp != files.Stamp.of(source):
        return False
    try:
        return record.results == {name: files.Stamp.of(target / name) for name in conversion.files}
    except FileNotFoundError:
        return False


def _make(target: Path, source: Path, conversion: Conversion, needed_bytes: int) -> None:
    files.check_room(target, needed_bytes)
    # This runs under the lock, so a leftover of this name is from a process that died.
    unfinished = target.with_name(f"{target.name}.partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        before = files.Stamp.of(source)
        conversion.make(source, unfinished)
        for path in unfinished.iterdir():
            if path.name in conversion.files:
                files.sync(path)
            else:
                path.unlink()
        # Some file systems set the time of a file when it is written to the disk.
        results = {name: files.Stamp.of(unfinished / name) for name in conversion.files}
        record = unfinished / RECORD_NAME
        content = msgspec.json.encode(_ConversionRecord(str(source), before, results))
        record.write_bytes(msgspec.json.format(content))
        files.sync(record)
        shutil.rmtree(target, ignore_errors=True)
        files.publish(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _read_record(folder: Path) -> _ConversionRecord | None:
    """The record; None if it is missing or cannot be read."""
    try:
        content = files.read_small(folder / RECORD_NAME)
        return msgspec.json.decode(content, type=_ConversionRecord)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
