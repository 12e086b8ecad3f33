"""What jitney's own cache folder holds: the embedded model, conversions, and what is of no use.

Models of the hub are in `hub_cache`. Whatever another process holds locked is left alone. Any
thread.
"""

import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jitney.models import cache as model_cache
from jitney.models import embedded, marks
from jitney.models.files import disk_errors, locked_if_free

EMBEDDED, CONVERTED = "embedded", "converted"
_FOLDERS = ("models", "probes", "marks/used", "marks/checked")
_OF_PROCESS = re.compile(r".+\.([0-9]+)\.partial")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A model on this machine."""

    name: str
    kind: str
    path: Path
    size: int
    used_at: datetime | None
    source: str | None = None
    """What it was converted from."""
    state: str = model_cache.SourceState.READY.value


def stored(cache: Path) -> list[Stored]:
    """The embedded model, if it is there, and every conversion."""
    found = [_conversion(cache, folder) for folder in model_cache.folders(cache)]
    path = embedded.path_in(cache)
    if path.exists():
        used_at = marks.last_use(cache, path, [path])
        size = size_of(path)
        found.insert(
            0, Stored(name=embedded.NAME, kind=EMBEDDED, path=path, size=size, used_at=used_at)
        )
    return found


def remove(model: Stored) -> bool:
    """Remove one of the stored; false when another process is making it. Raises ModelError."""
    with disk_errors(f"{model.path} could not be removed"):
        if model.kind == CONVERTED:
            return remove_if_free(model_cache.lock_of(model.path), model.path) > 0
        lock = model.path.with_suffix(".lock")
        return remove_if_free(lock, model.path, model.path.with_suffix(".sha256")) > 0


def prune(cache: Path, kinds: Collection[str]) -> int:
    """Remove conversions of no use, leftovers and notes; the bytes that are free now.

    Conversions of other kinds than the given are of no use. Raises OSError.
    """
    freed = 0
    for folder in model_cache.folders(cache):
        is_ready = model_cache.source_state(folder) is model_cache.SourceState.READY
        if not is_ready or folder.suffix.removeprefix(".") not in kinds:
            freed += remove_if_free(model_cache.lock_of(folder), folder)
    for path in _leftovers(cache):
        freed += remove_if_free(path.with_suffix(".lock"), path)
    for folder in (cache / each for each in _FOLDERS):
        for path in list(folder.glob("*.partial")):
            owner = _OF_PROCESS.fullmatch(path.name)
            if owner is not None and not _is_alive(int(owner[1])):
                freed += _remove(path)
    for note in marks.notes(cache):
        if not note.about.exists():
            freed += _remove(note.file)
    for lock in _locks(cache):
        remove_if_free(lock)
    return freed


def remove_if_free(lock: Path, *paths: Path) -> int:
    """Remove what a lock protects, and the lock; the bytes that are free now, 0 if it is held."""
    with locked_if_free(lock) as is_held:
        if not is_held:
            return 0
        freed = sum(_remove(path) for path in paths)
        # Only who holds a lock may remove it.
        return freed + _remove(lock)


def size_of(path: Path) -> int:
    """Bytes of a file, or of a folder and what is in it."""
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    total = 0
    for each in files:
        with suppress(FileNotFoundError):
            total += each.stat().st_size if each.is_file() else 0
    return total


def _conversion(cache: Path, folder: Path) -> Stored:
    files = [each for each in folder.iterdir() if each.name != model_cache.RECORD_NAME]
    return Stored(
        name=folder.name,
        kind=CONVERTED,
        path=folder,
        size=size_of(folder),
        used_at=marks.last_use(cache, folder, files),
        source=model_cache.source_of(folder),
        state=model_cache.source_state(folder).value,
    )


def _leftovers(cache: Path) -> Iterator[Path]:
    """What processes that died were making; the lock of each has its name but for the end."""
    yield from (cache / "converted").glob("*.partial")
    yield from (cache / "models").glob("*.download")
    for path in (cache / "models").glob("*.partial"):
        if _OF_PROCESS.fullmatch(path.name) is None:
            yield path


def _locks(cache: Path) -> list[Path]:
    """Files of locks, by the names that we give them: the folder may be shared with others."""
    own = [embedded.path_in(cache).with_suffix(".lock"), *(cache / "probes").glob("*.lock")]
    found = [each for each in own if each.exists()]
    return [*found, *(cache / "converted").glob("*.lock"), *(cache / "hub").glob("*.lock")]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _remove(path: Path) -> int:
    """Remove a file or a folder; the bytes that are free now. Raises OSError."""
    size = size_of(path)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return size
