"""Converted models, made once and kept in the cache folder.

Any number of processes may ask for the same one at once: one makes it, the others wait and take
it. A conversion is a folder that has its final name only when it is whole; in it stands a record
of what it was made from and what it must be, and one that disagrees with its record is made again.
"""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from jitney.models.files import check_room, disk_errors, locked, publish, sha256_of, sync
from jitney.models.gguf import read_header

RECORD_BYTES_MAX = 65_536
RECORD_NAME = "record.json"
_MARGIN_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """One way to convert a model."""

    kind: str
    """What the result is called; a later version that gives another result needs another name."""
    files: tuple[str, ...]
    """What is kept of the folder that `make` was given."""
    bytes_per_weight: float
    """Room that the result takes."""
    make: Callable[[Path, Path], None]
    """Writes the files of a source into an empty folder. Raises ModelError or OSError."""


@dataclass(frozen=True, slots=True)
class _Stamp:
    """A file's size and time of change: equal stamps mean an untouched file."""

    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> "_Stamp":
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class _Result:
    """A file as it must be."""

    stamp: _Stamp
    sha256: str


@dataclass(frozen=True, slots=True)
class _Record:
    """What stands beside converted files."""

    source: str
    source_stamp: _Stamp
    results: dict[str, _Result]


class SourceState(StrEnum):
    """How the source of a conversion is now."""

    READY = "ready"
    CHANGED = "its source has changed"
    GONE = "its source is gone"


def folders(cache: Path) -> list[Path]:
    """The conversions that are finished."""
    return sorted(record.parent for record in (cache / "converted").glob(f"*/{RECORD_NAME}"))


def source_of(folder: Path) -> str | None:
    """What a conversion was made from; None where it does not say."""
    record = _read_record(folder / RECORD_NAME)
    return None if record is None else record.source


def source_state(folder: Path) -> SourceState:
    """Whether a conversion can still be used."""
    record = _read_record(folder / RECORD_NAME)
    try:
        if record is None or _Stamp.of(Path(record.source)) != record.source_stamp:
            return SourceState.CHANGED
    except OSError:
        return SourceState.GONE
    return SourceState.READY


def lock_of(folder: Path) -> Path:
    """What is held while a conversion is made."""
    return folder.with_name(f"{folder.name}.lock")


def converted(cache: Path, source: Path, conversion: Conversion) -> Path:
    """The folder of `source` converted, from the cache; made there when it is missing.

    Raises ModelError when the source is bad, or the cache is full or not writable.
    """
    header = read_header(source)
    # In the hub's cache a file has a name of its own, and its content lies under its digest.
    stem, source = source.stem, source.resolve()
    parent = cache / "converted"
    key = hashlib.sha256(str(source).encode()).hexdigest()[:12]
    target = parent / f"{stem}-{key}.{conversion.kind}"
    with disk_errors(f"{target} could not be made"):
        if _is_current(target, source, conversion):
            return target
        parent.mkdir(parents=True, exist_ok=True)
        with locked(lock_of(target)):
            if not _is_current(target, source, conversion):
                wanted = int(header.parameter_count * conversion.bytes_per_weight) + _MARGIN_BYTES
                check_room(target, wanted)
                _make(target, source, conversion)
    return target


def _is_current(target: Path, source: Path, conversion: Conversion) -> bool:
    record = _read_record(target / RECORD_NAME)
    if record is None or record.source_stamp != _Stamp.of(source):
        return False
    return set(record.results) == set(conversion.files) and all(
        _is_intact(target / name, result) for name, result in record.results.items()
    )


def _is_intact(path: Path, result: _Result) -> bool:
    try:
        stamp = _Stamp.of(path)
    except FileNotFoundError:
        return False
    if stamp == result.stamp:
        return True
    # Same size, other time: a copy that kept the bytes is good, anything else is damage.
    return stamp.size == result.stamp.size and sha256_of(path) == result.sha256


def _make(target: Path, source: Path, conversion: Conversion) -> None:
    # Under the lock, so a leftover of this name is that of a process which died.
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        before = _Stamp.of(source)
        conversion.make(source, partial)
        results = {name: _keep(partial / name) for name in conversion.files}
        for path in partial.iterdir():
            if path.name not in results:
                path.unlink()
        record = _Record(str(source), before, results)
        (partial / RECORD_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(record)))
        sync(partial / RECORD_NAME)
        shutil.rmtree(target, ignore_errors=True)
        publish(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _keep(path: Path) -> _Result:
    sync(path)
    return _Result(_Stamp.of(path), sha256_of(path))


def _read_record(path: Path) -> _Record | None:
    """The record, or None when there is none that can be understood."""
    try:
        if path.stat().st_size > RECORD_BYTES_MAX:
            return None
        return msgspec.json.decode(path.read_bytes(), type=_Record)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
