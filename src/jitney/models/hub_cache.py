"""The hub's cache on this machine: what is in it, whether it is whole, and taking out of it.

It is shared with other tools and laid out by `huggingface_hub`: `blobs` by digest, and `snapshots`
of names that point at them. Nothing of our own is kept in it but the beginnings of files that are
being fetched. Asks nobody on the network. Any thread.

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
    files = [each.relative_to(snapshot).as_posix() for each in snapshot.rglob("*") if each.exists()]
    try:
        return snapshot / choose_model(reference, models_among(files)).files[0]
    except ModelError:
        return None


def check_digests(model: Path, cache: Path) -> None:
    """Look at every byte of a model once. Raises ModelError, and removes what is damaged."""
    for path in parts_of(model):
        digest = path.readlink().name if path.is_symlink() else ""
        if SHA256.fullmatch(digest) and not notes.has_digest(cache, path, digest):
            blob = path.resolve()
            path.unlink()
            blob.unlink(missing_ok=True)
            raise ModelError(
                f"{path} was damaged: its digest is not the one it was fetched under; it was "
                "removed, so run it again to fetch it anew."
            )


def files_by_model() -> dict[str, list[CachedFileInfo]]:
    """The files of every GGUF model in the cache, of all revisions; the newest begins the list."""
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
                # Two models of one quant can only be told apart by their files.
                is_alone = labels.count(model.label) == 1
                name = f":{model.label}" if is_alone else f"/{model.files[0]}"
                known = models.setdefault(repository.repo_id + name, [])
                known += [files[each] for each in model.files]
    return models


def remove(name: str) -> None:
    """Take a model out of the cache, through the library's own way to do so."""
    scanned = _scanned()
    if scanned is not None:
        scanned.delete_files(*files_by_model().get(name, ())).execute()


def unfinished_files() -> list[Path]:
    """What is left of fetches of ours that were interrupted; the digest begins each name."""
    return sorted(Path(constants.HF_HUB_CACHE).glob(f"*/blobs/*{INCOMPLETE}"))


def _scanned() -> HFCacheInfo | None:
    try:
        return scan_cache_dir()
    except (CacheNotFound, ValueError):
        return None  # nothing was ever fetched
