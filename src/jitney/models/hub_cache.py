"""The hub's cache on this machine: what is in it, whether it is whole, and taking out of it.

It is shared with other tools and laid out by `huggingface_hub`: `blobs` by digest, and `snapshots`
of names that point at them. Nothing of our own is kept in it but the beginnings of files that are
being fetched. Asks nobody on the network. Any thread.
"""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import (
    CachedFileInfo,
    CachedRepoInfo,
    HFCacheInfo,
    constants,
    scan_cache_dir,
)
from huggingface_hub.errors import CacheNotFound
from huggingface_hub.file_download import repo_folder_name

from jitney.errors import ModelError
from jitney.models import marks
from jitney.models.files import sha256_of
from jitney.models.names import Reference, choices, choose
from jitney.models.parts import parts_of

REVISION = constants.DEFAULT_REVISION
INCOMPLETE = ".jitney.incomplete"
ELSEWHERE = "set HF_HOME to another folder"
SHA256 = re.compile("[0-9a-f]{64}")
NOTICE_BYTES = 1 << 30
"""Reading more than this takes a while, which is said."""

_log = logging.getLogger("jitney")


@dataclass(frozen=True, slots=True)
class Held:
    """A model in the cache: its name, its files of all revisions, and where the newest begins."""

    name: str
    path: Path
    files: frozenset[CachedFileInfo]
    size: int


def folder_of(repository: str) -> Path:
    """Where the cache keeps a repository."""
    name = repo_folder_name(repo_id=repository, repo_type="model")
    return Path(constants.HF_HUB_CACHE) / name


def blobs_folder(repository: str) -> Path:
    """Where the files of a repository lie, by digest."""
    return folder_of(repository) / "blobs"


def find(reference: Reference) -> Path | None:
    """The model as it was fetched last; None when it is not there whole, or not clear which."""
    folder = folder_of(reference.repository)
    try:
        commit = (folder / "refs" / REVISION).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    snapshot = folder / "snapshots" / commit
    # A link that leads nowhere is none.
    files = [each.relative_to(snapshot).as_posix() for each in _ggufs(snapshot) if each.exists()]
    try:
        return snapshot / choose(reference, choices(files)).files[0]
    except ModelError:
        return None


def check_digests(model: Path, cache: Path) -> None:
    """Look at every byte of a model once. Raises ModelError, and removes what is damaged."""
    for path in parts_of(model):
        digest = path.readlink().name if path.is_symlink() else ""
        if not SHA256.fullmatch(digest) or marks.is_checked(cache, path):
            continue
        if path.stat().st_size > NOTICE_BYTES:
            _log.warning("%s is being checked, once", path.name)
        if sha256_of(path) != digest:
            blob = path.resolve()
            path.unlink()
            blob.unlink(missing_ok=True)
            raise ModelError(
                f"{path} was damaged: its digest is not the one it was fetched under; it was "
                "removed, so run it again to fetch it anew."
            )
        marks.note_checked(cache, path)


def held() -> list[Held]:
    """Every GGUF model in the cache, by name."""
    scanned = _scanned()
    repositories = [] if scanned is None else scanned.repos
    return sorted(
        (each for found in repositories if found.repo_type == "model" for each in _held(found)),
        key=lambda each: each.name,
    )


def remove(models: list[Held]) -> int:
    """Take models out of the cache, through its own way to do so; the bytes that are free now."""
    scanned = _scanned()
    if scanned is None:
        return 0
    strategy = scanned.delete_files(*(file for each in models for file in each.files))
    strategy.execute()
    return strategy.expected_freed_size


def beginnings() -> list[Path]:
    """What is left of fetches of ours that were interrupted; the digest begins each name."""
    return sorted(Path(constants.HF_HUB_CACHE).glob(f"*/blobs/*{INCOMPLETE}"))


def _scanned() -> HFCacheInfo | None:
    try:
        return scan_cache_dir()
    except (CacheNotFound, ValueError):
        return None  # nothing was ever fetched


def _held(repository: CachedRepoInfo) -> Iterator[Held]:
    """Its models, each with its files over all revisions."""
    models: dict[str, Held] = {}
    # The revision that names lead to comes last, and so decides where a model begins.
    for revision in sorted(repository.revisions, key=lambda each: REVISION in each.refs):
        files = {
            each.file_path.relative_to(revision.snapshot_path).as_posix(): each
            for each in revision.files
        }
        found = choices(files)
        for choice in found:
            # Two models of one quant can only be told apart by their files.
            is_alone = [each.label for each in found].count(choice.label) == 1
            name = f":{choice.label}" if is_alone else f"/{choice.files[0]}"
            mine = frozenset(files[each] for each in choice.files)
            before = models[name].files if name in models else frozenset()
            everything = before | mine
            blobs = {each.blob_path: each.size_on_disk for each in everything}
            models[name] = Held(
                repository.repo_id + name,
                files[choice.files[0]].file_path,
                everything,
                sum(blobs.values()),
            )
    yield from models.values()


def _ggufs(snapshot: Path) -> Iterator[Path]:
    return (each for each in snapshot.rglob("*") if each.name.lower().endswith(".gguf"))
