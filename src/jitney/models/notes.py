"""Small notes about models, in jitney's cache folder: when one was used, what was checked.

A note is about a path and contains that path. It may be lost at any time: then a file is checked
again, or the file system gives its last use. Any thread, any number of processes.
"""

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from jitney.models.files import Stamp, read_small, sha256_of, write_text

FOLDER = "marks"
"""In the cache folder. The name stays, so that notes of earlier versions are found."""
NOTICE_BYTES = 1 << 30
"""Reading more than this takes a while, so it is logged."""
_USED, _CHECKED = "used", "checked"

_log = logging.getLogger("jitney")


def note_use(cache: Path, path: Path) -> None:
    """Remember that a model is used now, if the folder allows it."""
    with suppress(OSError):
        _write(cache, _USED, path, "")


def last_use(cache: Path, path: Path, files: Iterable[Path]) -> datetime | None:
    """When a model was used last. Without a note: when its files were last read."""
    seconds = 0.0
    try:
        seconds = _place(cache, _USED, path).stat().st_mtime
    except OSError:
        with suppress(OSError):
            seconds = max((each.stat().st_atime for each in files), default=0.0)
    return datetime.fromtimestamp(seconds, tz=UTC) if seconds else None


def note_checked(cache: Path, path: Path) -> None:
    """Remember that the digest of a file, in its present state, was checked."""
    with suppress(OSError):
        _write(cache, _CHECKED, path, _stamp(path))


def has_digest(cache: Path, path: Path, sha256: str) -> bool:
    """Whether a file has this digest. Reads the file only the first time. Raises OSError."""
    if is_checked(cache, path):
        return True
    if path.stat().st_size > NOTICE_BYTES:
        _log.warning("%s is being checked; this happens once", path.name)
    if sha256_of(path) != sha256:
        return False
    note_checked(cache, path)
    return True


def is_checked(cache: Path, path: Path) -> bool:
    """Whether the digest was checked and the file has not changed since."""
    try:
        note = read_small(_place(cache, _CHECKED, path)).decode()
        _, _, stamp = note.partition("\n")
        return stamp.strip() == _stamp(path)
    except (OSError, ValueError):
        return False


def all_notes(cache: Path) -> Iterator[tuple[Path, Path]]:
    """Every note that can be read: its file, and the path that it is about."""
    for file in sorted((cache / FOLDER).glob("*/*.txt")):
        with suppress(OSError, ValueError):
            about, _, _ = read_small(file).decode("utf-8").partition("\n")
            yield file, Path(about)


def _write(cache: Path, kind: str, path: Path, text: str) -> None:
    place = _place(cache, kind, path)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_text(place, f"{path.resolve()}\n{text}\n")


def _place(cache: Path, kind: str, path: Path) -> Path:
    # A blob in the hub's cache may have several names.
    key = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:24]
    return cache / FOLDER / kind / f"{key}.txt"


def _stamp(path: Path) -> str:
    stamp = Stamp.of(path)
    return f"{stamp.size} {stamp.changed_ns}"
