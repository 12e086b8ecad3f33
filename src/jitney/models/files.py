"""Files that appear complete or not at all, and locks that end with their process.

The cache of models uses this. Any thread, any number of processes. Every wait has a limit.
`disk_errors` turns failures of the disk into ModelError.
"""

import errno
import fcntl
import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from jitney.errors import ModelError

LOCK_WAIT_S = 900.0
LOCK_POLL_S = 0.1
NOTICE_POLLS = 10
SMALL_BYTES_MAX = 65_536
"""Our own records and notes are smaller."""
ELSEWHERE = "choose another cache folder (--cache-dir)"

_log = logging.getLogger("jitney")


@dataclass(frozen=True, slots=True)
class Stamp:
    """The size and change time of a file: equal stamps mean an unchanged file."""

    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> "Stamp":
        """The stamp of a file now. Raises OSError."""
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns)


def make_once(lock: Path, is_there: Callable[[], bool], make: Callable[[], None]) -> None:
    """Make something if it is not there. One process makes it, and the others wait."""
    if is_there():
        return
    lock.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock):
        if not is_there():
            make()


@contextmanager
def locked(path: Path, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Hold the lock file `path`. Waits at most `wait_s` for another holder.

    The file stays afterwards. Only the holder may remove it; waiting processes then wait for the
    new file of the same name.
    """
    for poll in range(max(1, int(wait_s / LOCK_POLL_S))):
        with path.open("ab") as file:
            if _try_lock(file, path):
                yield
                return
        if poll == NOTICE_POLLS:
            _log.warning("Another process holds %s; waiting for it", path.name)
        threading.Event().wait(LOCK_POLL_S)
    raise ModelError(
        f"Another process has held {path} for {wait_s:g} s; wait for it to end, or end it."
    )


@contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock file `path` if it is free, without waiting. Gives whether it is held.

    Raises OSError if the file cannot be made.
    """
    with path.open("ab") as file:
        yield _try_lock(file, path)


def _try_lock(file: BinaryIO, path: Path) -> bool:
    """Take the lock if it is free. A lock on a removed file does not count."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def check_room(target: Path, needed_bytes: int, elsewhere: str = ELSEWHERE) -> None:
    """Raise ModelError if the disk has not enough space."""
    free = shutil.disk_usage(target.parent).free
    if free < needed_bytes:
        raise ModelError(
            f"{target} needs about {needed_bytes >> 20} MiB and {free >> 20} MiB are free; "
            f"make room, or {elsewhere}."
        )


@contextmanager
def disk_errors(what: str, elsewhere: str = ELSEWHERE) -> Iterator[None]:
    """Turn an OSError inside into a ModelError. `what` is the sentence before the reason."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            reason = f"the disk is full; make room, or {elsewhere}"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            reason = f"the folder is not writable; {elsewhere}"
        elif error.errno in (errno.ENOTDIR, errno.EEXIST):
            reason = f"there is a file where a folder should be; {elsewhere}"
        else:
            reason = error.strerror or type(error).__name__
        raise ModelError(f"{what}: {reason}.") from error


def publish(partial: Path, target: Path) -> None:
    """Give a finished file or folder its final name. It is complete even after a power cut.

    The files in a folder must be synced before.
    """
    sync(partial)
    partial.replace(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _sync_open(descriptor)
    finally:
        os.close(descriptor)


def _sync_open(descriptor: int) -> None:
    # On macOS the usual call does not wait until the drive has written its own memory.
    whole = getattr(fcntl, "F_FULLFSYNC", None)
    if whole is not None:
        try:
            fcntl.fcntl(descriptor, whole)
            return
        except OSError as error:
            _log.debug("The file system cannot do a full sync: %s", error.strerror)
    os.fsync(descriptor)


def write_text(target: Path, text: str) -> None:
    """Write a complete small file; several processes may do this at once."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        publish(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def read_small(path: Path) -> bytes:
    """The content of a small file. Raises OSError, or ValueError for a file that is not small."""
    with path.open("rb") as file:
        content = file.read(SMALL_BYTES_MAX + 1)
    if len(content) > SMALL_BYTES_MAX:
        raise ValueError(f"{path} is larger than {SMALL_BYTES_MAX} bytes")
    return content


def sha256_of(path: Path) -> str:
    """The digest of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bytes_under(path: Path) -> int:
    """The bytes of a file, or of all files in a folder. Other processes may move files."""
    total = 0
    for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
        with suppress(FileNotFoundError):
            total += each.stat().st_size if each.is_file() else 0
    return total
