"""The models on this machine: lists and removes them, and finds the ones that are not needed.

There are three kinds: the embedded model and conversions, in jitney's own cache folder, and models
of the hub, in the hub's cache. Without the hub's library, that cache is ignored. Files that another
process has locked are left alone. Any thread.
"""

import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jitney.errors import MissingDependency
from jitney.models import conversions, embedded, notes
from jitney.models.files import bytes_under, disk_errors, locked_if_free
from jitney.models.hub_reference import CONFIG, hub_module

EMBEDDED, HUB, CONVERTED = "embedded", "hub", "converted"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model on this machine."""

    name: str
    kind: str
    path: Path
    size: int
    used_at: datetime | None
    source: str | None = None
    """The source of a conversion."""
    state: str = conversions.READY


def stored_models(cache: Path) -> list[StoredModel]:
    """The embedded model if it is there, the models of the hub, and every conversion."""
    converted = [_conversion(cache, folder) for folder in conversions.folders(cache)]
    return [*_embedded(cache), *_hub_models(cache), *converted]


def remove(model: StoredModel) -> bool:
    """Remove a model. Returns false if another process is making it. Raises ModelError."""
    if model.kind == HUB:
        hub_module("hub_cache").remove(model.name)
        return True
    with disk_errors(f"{model.path} could not be removed"):
        if model.kind == CONVERTED:
            return _remove_if_free(conversions.lock_of(model.path), model.path) > 0
        return _remove_if_free(model.path.with_suffix(".lock"), model.path) > 0


def prune(cache: Path, kinds: Collection[str]) -> int:
    """Remove useless conversions, leftovers and notes. Returns the bytes that were freed.

    A conversion is useless if its kind is not in `kinds`, or its source has changed or is gone.
    Raises OSError.
    """
    freed = 0
    for folder in conversions.folders(cache):
        _, state = conversions.source_of(folder)
        if state != conversions.READY or folder.suffix.removeprefix(".") not in kinds:
            freed += _remove_if_free(conversions.lock_of(folder), folder)
    freed += sum(_remove_if_free(lock, path) for lock, path in _leftovers(cache))
    for file, about in notes.all_notes(cache):
        if not about.exists():
            freed += _remove(file)
    for lock in _locks(cache):
        _remove_if_free(lock)
    return freed


def _embedded(cache: Path) -> Iterator[StoredModel]:
    path = embedded.path_in(cache)
    if path.exists():
        used_at = notes.last_use(cache, path, [path])
        yield StoredModel(embedded.NAME, EMBEDDED, path, bytes_under(path), used_at)


def _hub_models(cache: Path) -> Iterator[StoredModel]:
    with suppress(MissingDependency):
        for name, files in sorted(hub_module("hub_cache").files_by_model().items()):
            first = files[0].file_path
            path = first.parent if first.name == CONFIG else first
            # Two revisions may share a blob.
            size = sum({each.blob_path: each.size_on_disk for each in files}.values())
            yield StoredModel(name, HUB, path, size, notes.last_use(cache, path, [path]))


def _conversion(cache: Path, folder: Path) -> StoredModel:
    files = [each for each in folder.iterdir() if each.name != conversions.RECORD_NAME]
    used_at = notes.last_use(cache, folder, files)
    source, state = conversions.source_of(folder)
    return StoredModel(folder.name, CONVERTED, folder, bytes_under(folder), used_at, source, state)


def _leftovers(cache: Path) -> Iterator[tuple[Path, Path]]:
    """Unfinished files of processes that died, each with its lock."""
    with suppress(MissingDependency):
        for path in hub_module("hub_cache").unfinished_files():
            lock = cache / "hub" / f"{path.name.partition('.')[0]}.lock"
            lock.parent.mkdir(parents=True, exist_ok=True)
            yield lock, path
    for pattern in ("converted/*.partial", "models/*.partial", "models/*.download"):
        for path in cache.glob(pattern):
            yield path.with_suffix(".lock"), path


def _locks(cache: Path) -> list[Path]:
    """The lock files, by our own names: other programs may use the folder too."""
    found = [
        lock for each in ("probes", "converted", "hub") for lock in cache.glob(f"{each}/*.lock")
    ]
    own = embedded.lock_in(cache)
    return [own, *found] if own.exists() else found


def _remove_if_free(lock: Path, *paths: Path) -> int:
    """Remove the paths and their lock. Returns the bytes freed; 0 if another holds the lock."""
    with locked_if_free(lock) as is_held:
        if not is_held:
            return 0
        freed = sum(_remove(path) for path in paths)
        # Only the holder of a lock may remove it.
        return freed + _remove(lock)


def _remove(path: Path) -> int:
    """Remove a file or a folder. Returns the bytes that were freed. Raises OSError."""
    size = bytes_under(path)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return size
