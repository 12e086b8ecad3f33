"""Fetches models of the hub by name, with `huggingface_hub`, into the hub's shared cache.

Only this module and `hub_cache` import that library. On import, the library reads HF_TOKEN,
HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE. Files are fetched over HTTP, not with the library's own
download: that loses its data when it is interrupted, but here a later call resumes. A file enters
the shared cache only if its digest is right. Any thread. If several processes fetch at once, one
does it and the others wait. Every failure is a ModelError of one sentence.

Tests: tests/e2e/test_hub.py, test_hub_mistakes.py and test_hub_heads.py.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from httpx2 import HTTPError
from huggingface_hub import HfApi, constants, errors, get_session, hf_hub_download, hf_hub_url
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, tqdm  # type: ignore[attr-defined]

from jitney.errors import ModelError
from jitney.models import hub_cache, notes
from jitney.models.embedded import Progress
from jitney.models.files import check_room, disk_errors, make_once, publish, sha256_of
from jitney.models.hub_head import BYTES_MAX, Check, RemoteFile, fetch_head, folder_for_head
from jitney.models.hub_reference import CONFIG, Reference, choose_model, models_among

ASK_S_MAX = 20.0
READ_S_MAX = 60.0
IDLE_TRIES_MAX = 2
"""A broken connection is opened again at once. After this many tries without a byte it fails."""
REASON_CHARACTERS_MAX = 200
MIB = 2**20
WEIGHTS_SUFFIXES = (".gguf", ".safetensors")
_HUB = f"the hub at {constants.ENDPOINT}"

_BytesReport = Callable[[int], None]
"""Called with the bytes of a file that have arrived."""

_log = logging.getLogger("jitney")


class Unreachable(ModelError):
    """The hub cannot be reached now; the cached model may still serve. `why` is a clause."""

    def __init__(self, reference: Reference, why: str, advice: str) -> None:
        here = "neither a file here nor" if reference.quant is None else "not"
        super().__init__(
            f"{reference} is {here} in the hub's cache ({constants.HF_HUB_CACHE}), and {why}; "
            f"{advice}."
        )
        self.why = why


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a repository. A file without a digest is small and stored in git itself."""

    name: str
    size: int
    sha256: str | None
    commit: str

    @property
    def is_resumable(self) -> bool:
        """Whether a fetch can resume; the hub does not serve the largest files over HTTP."""
        return self.sha256 is not None and self.size <= constants.MAX_HTTP_DOWNLOAD_SIZE


def find_or_fetch(reference: Reference, cache: Path, progress: Progress, check: Check) -> Path:
    """The model in the hub's cache, without using the network; fetches it if it is missing."""
    path = hub_cache.find(reference)
    return fetch(reference, cache, progress, check) if path is None else _checked(path, cache)


def fetch(reference: Reference, cache: Path, progress: Progress, check: Check) -> Path:
    """The newest version of the model; the cached version if the hub cannot be reached.

    `check` may refuse it by its head, before its weights are fetched.
    """
    try:
        files = _repository_files(reference)
    except Unreachable as error:
        path = hub_cache.find(reference)
        if path is None:
            raise
        _log.warning("The cached version of %s is used, because %s", reference, error.why)
    else:
        chosen = choose_model(reference, models_among(files))
        wanted = [files[name] for name in chosen.files]
        _check_head(reference, wanted, cache, check)
        path = _fetch(reference, wanted, cache, progress)
        path = path.parent if chosen.is_folder else path
        _log.info("%s is %s", reference, path)
    return _checked(path, cache)


@contextmanager
def head(reference: Reference, cache: Path) -> Iterator[Path | None]:
    """The head of the newest version of the model, until the end of the block.

    None, and a line in the log, where the hub cannot be reached or does not send it.
    """
    try:
        files = _repository_files(reference)
    except Unreachable as error:
        _log.warning("%s", error)
        yield None
        return
    chosen = choose_model(reference, models_among(files))
    with _head(reference, [files[name] for name in chosen.files], cache) as found:
        yield found


@contextmanager
def _head(reference: Reference, files: list[_File], cache: Path) -> Iterator[Path | None]:
    remote = [RemoteFile(each.name, _url(reference, each), each.size) for each in files]
    with folder_for_head(cache) as folder:
        with _hub_errors(reference):
            failure = fetch_head(remote, folder)
        if failure is not None:
            _log.warning("What %s needs is not known before it is fetched: %s", reference, failure)
        path = folder if files[0].name == CONFIG else folder / Path(files[0].name).name
        yield path if failure is None else None


def _check_head(reference: Reference, files: list[_File], cache: Path, check: Check) -> None:
    """Have a large model checked of which nothing was fetched yet."""
    blobs = hub_cache.blobs_folder(reference.repository)
    weights = [each for each in files if each.name.endswith(WEIGHTS_SUFFIXES)]
    if sum(each.size for each in files) <= BYTES_MAX:
        return
    with disk_errors(f"{blobs} could not be read"):
        if any(_bytes_on_disk(blobs, each) for each in weights):
            return
    with _head(reference, files, cache) as found:
        if found is not None:
            check(found, str(reference))


def _url(reference: Reference, file: _File) -> str:
    return hf_hub_url(reference.repository, file.name, revision=file.commit)


def _checked(path: Path, cache: Path) -> Path:
    with disk_errors(f"{path} could not be checked", hub_cache.ELSEWHERE):
        hub_cache.check_digests(path, cache)
    return path


def _repository_files(reference: Reference) -> dict[str, _File]:
    with _hub_errors(reference):
        found = HfApi().model_info(
            reference.repository,
            revision=hub_cache.REVISION,
            files_metadata=True,
            timeout=ASK_S_MAX,
        )
    commit = found.sha or hub_cache.REVISION
    listed = [each for each in found.siblings or () if _is_plain(each.rfilename)]
    return {each.rfilename: _file(each, commit) for each in listed}


def _is_plain(name: str) -> bool:
    """Whether a name is printable and stays inside the repository."""
    parts = name.split("/")
    return name.isprintable() and "\\" not in name and not {"", ".", ".."} & set(parts)


def _file(sibling: RepoSibling, commit: str) -> _File:
    # The digest becomes a file name here, so it must be a valid digest.
    if sibling.lfs is None or not hub_cache.SHA256.fullmatch(sibling.lfs.sha256):
        return _File(sibling.rfilename, sibling.size or 0, None, commit)
    return _File(sibling.rfilename, sibling.lfs.size, sibling.lfs.sha256, commit)


def _fetch(reference: Reference, files: list[_File], cache: Path, progress: Progress) -> Path:
    blobs = hub_cache.blobs_folder(reference.repository)
    total = max(sum(each.size for each in files), 1)
    before = 0
    paths = []
    with disk_errors(f"{cache / 'hub'} could not be made"):
        (cache / "hub").mkdir(parents=True, exist_ok=True)
    with disk_errors(f"{reference} could not be fetched", hub_cache.ELSEWHERE):
        blobs.mkdir(parents=True, exist_ok=True)
        needed_bytes = sum(each.size - _bytes_on_disk(blobs, each) for each in files)
        check_room(blobs / (files[0].sha256 or files[0].name), needed_bytes, hub_cache.ELSEWHERE)
        if needed_bytes:
            _log.warning("%s is being fetched: %.1f MiB", reference, needed_bytes / MIB)
        for each in files:
            report = partial(_report, progress, before, total)
            if each.is_resumable:
                _fetch_blob(reference, each, cache, report)
            with _hub_errors(reference):
                # This links the blob into the cache, or fetches a file that cannot resume.
                paths.append(
                    hf_hub_download(
                        reference.repository,
                        each.name,
                        revision=hub_cache.REVISION,
                        tqdm_class=_Silent,
                    )
                )
            report(each.size)
            before += each.size
    return Path(paths[0])


def _report(progress: Progress, before: int, total: int, done: int) -> None:
    """Report `done` bytes of a file, after `before` bytes of earlier files."""
    progress(min(before + done, total), total)


def _bytes_on_disk(blobs: Path, file: _File) -> int:
    """The bytes of a file that are already on the disk."""
    for path in (blobs / f"{file.sha256}", blobs / f"{file.sha256}{hub_cache.INCOMPLETE}"):
        if path.exists():
            return min(path.stat().st_size, file.size)
    return 0


def _fetch_blob(reference: Reference, file: _File, cache: Path, report: _BytesReport) -> None:
    """Put a file into the cache under its digest, as the library does."""
    assert file.sha256 is not None, "A file without a digest cannot resume."
    blob = hub_cache.blobs_folder(reference.repository) / file.sha256

    def make() -> None:
        # The library's own tools know files with this ending as unfinished downloads.
        unfinished = blob.with_name(blob.name + hub_cache.INCOMPLETE)
        with _hub_errors(reference):
            _download(reference, file, unfinished, report)
        if unfinished.stat().st_size != file.size or sha256_of(unfinished) != file.sha256:
            unfinished.unlink()
            raise ModelError(
                f"{file.name} of {reference.repository} did not arrive as the hub describes it "
                f"(sha256 {blob.name[:12]}...), and was removed; fetch it again, or check the "
                "proxies between this machine and the hub."
            )
        publish(unfinished, blob)
        notes.note_checked(cache, blob)

    make_once(cache / "hub" / f"{file.sha256}.lock", blob.exists, make)


def _download(reference: Reference, file: _File, unfinished: Path, report: _BytesReport) -> None:
    """Fetch the missing part of a file, over as many connections as needed."""
    url = _url(reference, file)
    idle = 0
    while True:
        before = unfinished.stat().st_size if unfinished.exists() else 0
        if before >= file.size:
            return
        try:
            _receive(url, unfinished, file.size, report)
        except errors.HfHubHTTPError:
            if before == 0:
                raise
            reason = "the hub refused to go on"
        except HTTPError as error:
            reason = _reason(error)
        else:
            reason = "the connection was closed"
        after = unfinished.stat().st_size if unfinished.exists() else 0
        idle = 0 if after > before else idle + 1
        if after < file.size and idle >= IDLE_TRIES_MAX:
            raise ModelError(
                f"{file.name} of {reference.repository} stopped after {after / MIB:.1f} of "
                f"{file.size / MIB:.1f} MiB ({reason}); run it again, and it continues from there."
            )


def _receive(url: str, unfinished: Path, size: int, report: _BytesReport) -> None:
    """Use one connection: append to the file, or start again if the hub starts again."""
    with unfinished.open("ab") as target:
        start = target.tell()
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        with get_session().stream("GET", url, headers=headers, timeout=READ_S_MAX) as answer:
            hf_raise_for_status(answer)
            if start and answer.status_code != 206:
                target.truncate(0)
                start = 0
            done = start
            # Write pieces as they arrive: a piece of fixed size could be lost with the connection.
            for piece in answer.iter_bytes():
                target.write(piece)
                done += len(piece)
                report(done)
                if done > size:
                    return  # The digest check will fail.


class _Silent(tqdm):
    """The library's progress bar, which shows nothing: the caller has its own."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        # Any: whatever the library gives its bars
        super().__init__(*arguments, **{**named, "disable": True})  # type: ignore[no-untyped-call]


@contextmanager
def _hub_errors(reference: Reference) -> Iterator[None]:
    """Turn errors of the library into ModelError."""
    try:
        yield
    except errors.GatedRepoError:
        raise ModelError(_gated(reference)) from None
    except errors.RepositoryNotFoundError:
        raise ModelError(_not_found(reference)) from None
    except errors.RevisionNotFoundError:
        raise ModelError(f"{reference.repository} has no revision {hub_cache.REVISION}.") from None
    except errors.LocalEntryNotFoundError:
        raise Unreachable(reference, f"{_HUB} no longer answers", "try again later") from None
    except errors.EntryNotFoundError:
        raise ModelError(f"The hub has no such file of {reference}; fetch it again.") from None
    except errors.HFValidationError:
        raise ModelError(f"{reference} is not a valid name on the hub.") from None
    except errors.OfflineModeIsEnabled:
        raise Unreachable(
            reference,
            "HF_HUB_OFFLINE forbids access to the hub",
            "unset it, or fetch the model where there is a network",
        ) from None
    except errors.HfHubHTTPError as error:
        raise _status_error(reference, error) from None
    except (HTTPError, ImportError, KeyError, TypeError, ValueError) as error:
        raise _unanswered(reference, error) from None


def _unanswered(reference: Reference, error: Exception) -> Unreachable:
    """The error for no answer, a wrong answer, or a proxy that the library cannot use."""
    if isinstance(error, HTTPError):
        why = f"{_HUB} cannot be reached ({_reason(error)})"
        return Unreachable(reference, why, "check the network, or HF_ENDPOINT")
    why = f"{_HUB} cannot be reached, or gives a wrong answer ({_reason(error)})"
    return Unreachable(reference, why, "check the proxy, or HF_ENDPOINT")


def _status_error(reference: Reference, error: errors.HfHubHTTPError) -> ModelError:
    status = error.response.status_code
    if status == 401:
        return ModelError(
            "The hub does not know the token that it got; make a new one and set HF_TOKEN to it, "
            "or unset HF_TOKEN."
        )
    if status == 403:
        return ModelError(_gated(reference))
    return Unreachable(reference, f"{_HUB} answers with status {status}", "try again later")


def _gated(reference: Reference) -> str:
    of = reference.repository
    return (
        f"{of} is gated or private: accept its licence on {constants.ENDPOINT}/{of}, and set "
        "HF_TOKEN to a token of the account that did."
    )


def _not_found(reference: Reference) -> str:
    path = f"There is no file {reference} here, and the" if reference.quant is None else "The"
    return (
        f"{path} hub has no model {reference.repository}; check the spelling, or set HF_TOKEN if "
        "it is private."
    )


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")[:REASON_CHARACTERS_MAX] or type(error).__name__
