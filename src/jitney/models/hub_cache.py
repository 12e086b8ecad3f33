"""The hub's cache on this machine: finds, checks and removes models in it.

Other tools use this cache, too. `huggingface_hub` defines its folders: `blobs` has files by digest,
and `snapshots` has names that point to blobs. We keep only unfinished downloads of our own in it.
This module does not use the network. Any thread.

Tests: tests/e2e/test_hub.py.
"""

import re
from pathlib import Path

from huggingface_hub import CachedFileInfo, HFCacheInfo, constants, scan_cache_dir
from huggingface_hub.errors import CacheNotFound
from huggingface_hub.file_download import repo_folder_name

from jitney.errors import ModelError
from jitney.models import notes
from jitney.models.hub_reference import Reference, choose_model, models_among
from jitney.models.parts import parts_of

REVISION = constants.DEFAULT_REVISION
INCOMPLETE = ".jitney.incomplete"
ELSEWHERE = "set HF_HOME to another folder"
SHA256 = re.compile("[0-9a-f]{64}")


def folder_of(repository: str) -> Path:
    """The folder of a repository in the cache."""
    name = repo_folder_name(repo_id=repository, repo_type="model")
    return Path(constants.HF_HUB_CACHE) / name


def blobs_folder(repository: str) -> Path:
    """The folder with the files of a repository, by digest."""
    return folder_of(repository) / "blobs"


def find(reference: Reference) -> Path | None:
    """The model as last fetched; None if it is missing, incomplete or ambiguous."""
    folder = folder_of(reference.repository)
    try:
        commit = (folder / "refs" / REVISION).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    snapshot = folder / "snapshots" / commit
    # A broken link does not count.
    files = [each.relative_to(snapshot).as_posix() for each in snapshot.rglob("*") if each.exists()]
    try:
        chosen = choose_model(reference, models_among(files))
    except ModelError:
        return None
    return snapshot if chosen.is_folder else snapshot / chosen.files[0]


def check_digests(model: Path, cache: Path) -> None:
    """Check the digests of a model. Removes a damaged file and raises ModelError."""
    for path in sorted(model.iterdir()) if model.is_dir() else parts_of(model):
        digest = path.readlink().name if path.is_symlink() else ""
        if SHA256.fullmatch(digest) and not notes.has_digest(cache, path, digest):
            blob = path.resolve()
            path.unlink()
            blob.unlink(missing_ok=True)
            raise ModelError(
                f"{path} was damaged: its digest is not the one it was fetched under. It was "
                "removed; run it again to fetch it again."
            )


def files_by_model() -> dict[str, list[CachedFileInfo]]:
    """The files of every GGUF model in the cache, of all revisions, the newest first."""
    scanned = _scanned()
    models: dict[str, list[CachedFileInfo]] = {}
    for repository in () if scanned is None else scanned.repos:
        if repository.repo_type != "model":
            continue
        for revision in sorted(repository.revisions, key=lambda each: REVISION not in each.refs):
            files = {
                each.file_path.relative_to(revision.snapshot_path).as_posix(): each
                for each in revision.files
            }
            found = models_among(files)
            labels = [each.label for each in found]
            for model in found:
                # Two models with the same quant are named by their files.
                is_alone = labels.count(model.label) == 1
                name = f":{model.label}" if is_alone else f"/{model.files[0]}"
                known = models.setdefault(repository.repo_id + name, [])
                known += [files[each] for each in model.files]
    return models


def remove(name: str) -> None:
    """Remove a model from the cache, with the library's own method."""
    scanned = _scanned()
    if scanned is not None:
        scanned.delete_files(*files_by_model().get(name, ())).execute()


def unfinished_files() -> list[Path]:
    """The files of our interrupted fetches. Each name begins with the digest."""
    return sorted(Path(constants.HF_HUB_CACHE).glob(f"*/blobs/*{INCOMPLETE}"))


def _scanned() -> HFCacheInfo | None:
    try:
        return scan_cache_dir(constants.HF_HUB_CACHE)
    except (CacheNotFound, ValueError):
        return None  # Nothing was ever fetched.
