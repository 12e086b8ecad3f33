"""`PrefixFolder`: the folder of stored prefixes, with files of one user only.

A file is made as `.partial` and gets its name when it is whole. Whoever writes holds the lock of
the folder, so a partial file that is found then was left by a process that ended. Only names that
jitney gives are touched. A link, a folder or a file of somebody else is not there. Any thread, and
any number of processes.

Tests: tests/unit/backends/shared/test_prefix_files.py.
"""

import mmap
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from jitney.backends.shared.prefix_record import Piece
from jitney.errors import ConfigError
from jitney.models.files import locked_if_free

ENDING = ".prefix"
PARTIAL = ".partial"
LOCK = ".lock"
_NAME = re.compile(r"[0-9a-f]{32}\.prefix")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class FileStat:
    """How large a file is, and when it was used last."""

    bytes: int
    used_ns: int


class PrefixFolder:
    """Implements `jitney.backends.shared.prefix_files.Shelf` on a disk."""

    def __init__(self, path: Path) -> None:
        """Makes the folder. Raises ConfigError where it cannot be used."""
        self._path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._keep_private()
            with self.locked():
                is_own = _is_ours((path / LOCK).stat())
        except (FileExistsError, NotADirectoryError):
            raise ConfigError(
                f"prefix_cache_dir: {path} cannot be made, because a file is in its place; move "
                "it, or give another folder."
            ) from None
        except OSError as error:
            raise ConfigError(
                f"prefix_cache_dir: {path} cannot be used ({error.strerror}); give another folder."
            ) from error
        if not is_own:
            raise ConfigError(
                f"prefix_cache_dir: files in {path} belong to another user; give a folder of your "
                "own."
            )

    def listed(self) -> dict[str, FileStat]:
        """The files that are there, by name. Raises OSError."""
        found = {}
        with os.scandir(self._path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if _NAME.fullmatch(entry.name) and _is_ours(status):
                        found[entry.name] = FileStat(status.st_size, status.st_mtime_ns)
        return found

    def read(self, name: str, bytes_max: int | None = None) -> Piece:
        """A file, or its first bytes. Raises OSError."""
        descriptor = os.open(self._path / name, _OPEN)
        with open(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not _is_ours(status):
                raise PermissionError(f"{name} is no file of ours")
            size = status.st_size if bytes_max is None else min(status.st_size, bytes_max)
            # Not filled with zeros first: gigabytes of them would hold up whoever runs batches.
            unread = content = memoryview(mmap.mmap(-1, max(size, 1)))[:size]
            while unread and (count := file.readinto(unread)):
                unread = unread[count:]
        # A file that was cut short meanwhile has no digest at its end.
        return content

    def write(self, name: str, pieces: Iterable[Piece]) -> None:
        """Make a whole file. The caller holds the lock. Raises OSError."""
        partial = self._path / (name + PARTIAL)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with open(os.open(partial, flags, 0o600), "wb", buffering=0) as file:
                for piece in pieces:
                    unwritten = memoryview(piece).cast("B")
                    while unwritten:
                        unwritten = unwritten[file.write(unwritten) :]
            partial.replace(self._path / name)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise

    def use(self, name: str) -> None:
        """Somebody used it now. Raises OSError."""
        os.utime(self._path / name, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there. Raises OSError."""
        (self._path / name).unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Hold the lock of the folder, unless somebody else does. Raises OSError."""
        with locked_if_free(self._path / LOCK) as is_held:
            if is_held:
                for each in self._path.glob(f"*{ENDING}{PARTIAL}"):
                    each.unlink(missing_ok=True)
            yield is_held

    def _keep_private(self) -> None:
        """See that it is ours, and close it to others where nothing else is in it."""
        status = self._path.stat()
        if status.st_uid not in (0, os.geteuid()):
            raise ConfigError(
                f"prefix_cache_dir: {self._path} belongs to another user; give a folder of your "
                "own."
            )
        names = [each.name.removesuffix(PARTIAL) for each in self._path.iterdir()]
        is_own = all(_NAME.fullmatch(each) or each == LOCK for each in names)
        if is_own and status.st_mode & _OTHERS and status.st_uid == os.geteuid():
            self._path.chmod(0o700)


def _is_ours(status: os.stat_result) -> bool:
    is_file = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return is_file and status.st_uid == os.geteuid()
