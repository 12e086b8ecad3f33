"""Converted models, made once and kept in the cache folder.

Any number of processes may ask for the same one at once: one makes it, the others wait and take
it. A file has its final name only when it is whole; beside it stands a record of what it was made
from and what it must be, and a file that disagrees with its record is made again.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from jitney.errors import ModelError
from jitney.models.files import disk_errors, locked, publish, sha256_of, write_text
from jitney.models.gguf import read_header

RECORD_BYTES_MAX = 65_536
_Q8_BYTES, _Q8_WEIGHTS = 34, 32
_MARGIN_BYTES = 64 << 20


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
class _Record:
    """What stands beside a converted file."""

    source: str
    source_stamp: _Stamp
    result_stamp: _Stamp
    result_sha256: str


def converted(cache: Path, source: Path, quantize: Callable[[Path, Path], None]) -> Path:
    """`source` as Q8_0, from the cache folder; made there by `quantize` when it is missing.

    Raises ModelError when the source is bad, or the folder is full or not writable.
    """
    header = read_header(source)
    source = source.resolve()
    folder = cache / "converted"
    key = hashlib.sha256(str(source).encode()).hexdigest()[:12]
    target = folder / f"{source.stem}-{key}.Q8_0.gguf"
    with disk_errors(f"{target} could not be made"):
        if _is_current(target, source):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        with locked(target.with_suffix(".lock")):
            if not _is_current(target, source):
                wanted = header.parameter_count // _Q8_WEIGHTS * _Q8_BYTES + _MARGIN_BYTES
                _make(target, source, wanted, quantize)
    return target


def _record_path(target: Path) -> Path:
    return target.with_suffix(".json")


def _is_current(target: Path, source: Path) -> bool:
    record = _read_record(_record_path(target))
    if record is None or record.source_stamp != _Stamp.of(source):
        return False
    try:
        stamp = _Stamp.of(target)
    except FileNotFoundError:
        return False
    if stamp == record.result_stamp:
        return True
    # Same size, other time: a copy that kept the bytes is good, anything else is damage.
    return stamp.size == record.result_stamp.size and sha256_of(target) == record.result_sha256


def _make(
    target: Path, source: Path, wanted_bytes: int, quantize: Callable[[Path, Path], None]
) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < wanted_bytes:
        raise ModelError(
            f"{target} needs about {wanted_bytes >> 20} MiB and {free >> 20} MiB are free; "
            "make room, or choose another cache folder."
        )
    # Under the lock, so a leftover of this name is that of a process which died.
    partial = target.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    before = _Stamp.of(source)
    try:
        quantize(source, partial)
        read_header(partial)
        digest = sha256_of(partial)
        publish(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    record = _Record(str(source), before, _Stamp.of(target), digest)
    write_text(_record_path(target), json.dumps(asdict(record), indent=1))


def _read_record(path: Path) -> _Record | None:
    """The record, or None when there is none that can be understood."""
    try:
        if path.stat().st_size > RECORD_BYTES_MAX:
            return None
        fields = json.loads(path.read_text(encoding="utf-8"))
        return _Record(
            str(fields["source"]),
            _Stamp(**fields["source_stamp"]),
            _Stamp(**fields["result_stamp"]),
            str(fields["result_sha256"]),
        )
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
