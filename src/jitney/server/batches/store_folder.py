"""The folder of a store: who may look into it, and what a start does with what it finds.

The store's thread. `jobs.sqlite` and the folder of content carry the same mark. A start refuses a
folder that belongs to another database, and one whose content is away: whoever forgot to mount a
volume, or restored an older database, loses nothing. Names that jitney does not give are never
touched. Content that the database does not know is put aside; only what was never complete goes.
"""

import logging
import os
import re
import shutil
import stat
from collections.abc import Collection
from contextlib import suppress
from errno import ENOENT
from io import BufferedReader
from pathlib import Path

from jitney.errors import ConfigError
from jitney.models.files import write_text
from jitney.server.batches.database import LOCK, NAME

FILES = "files"
ASIDE = "aside"
"""A folder beside the content: what the database does not know."""
MARK = "store"
"""A file beside the content: it has the mark of the database that knows it."""
PARTIAL = ".partial"
"""The ending of content that no row is noted for yet."""

_CONTENT = re.compile(r"file-[0-9a-f]{32}")
_PARTIAL = re.compile(r"(file-)?[0-9a-f]{32}\.partial")
_FOUND_ON_VOLUMES = "lost+found"
_OWN = frozenset({NAME, f"{NAME}-wal", f"{NAME}-shm", f"{NAME}-journal", LOCK, FILES})
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ELSEWHERE = "or give another folder (--jobs-dir of serve, --output of batch run)"

_log = logging.getLogger("jitney.server.batches")


def prepare(folder: Path) -> None:
    """Make the folder, for its user only. Raises ConfigError for one that is somebody else's, and
    where a file is in its place."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (FileExistsError, NotADirectoryError) as error:
        reason = f"{folder} cannot be made, because a file is in its place"
        raise ConfigError(f"{reason}; move it, {_ELSEWHERE}.") from error
    if not is_store(folder):
        _check_empty(folder, _OWN)
        if (folder / FILES).is_dir():
            _check_empty(folder / FILES)
    _check_owner(folder, is_for_root=True)
    for name in _OWN:
        if os.path.lexists(folder / name):
            _check_owner(folder / name)
    if not _others_in(folder, _OWN):
        # Where an earlier version put its store beside other things, these are not ours to close.
        restrict(folder, 0o700)
    for name in _OWN - {FILES}:
        if (folder / name).exists():
            restrict(folder / name, 0o600)


def _check_owner(path: Path, *, is_for_root: bool = False) -> None:
    """Somebody else could have laid it there for us. Root may use the folder of another user, as
    volumes have it, but nothing in it that is not its own."""
    owner, user = path.lstat().st_uid, os.geteuid()
    if owner not in (0, user) and not (is_for_root and user == 0):
        raise ConfigError(f"{path} belongs to another user; give a folder of your own.")


def is_store(folder: Path) -> bool:
    """Whether a store is in this folder."""
    return os.path.lexists(folder / NAME)


def remove_store(folder: Path) -> None:
    """Remove a folder that was a store, or what is left of it; one with other things stays."""
    if not folder.is_dir() or _others_in(folder, _OWN):
        return
    files = folder / FILES
    if not files.is_dir() or all(map(_is_own_name, _others_in(files))):
        shutil.rmtree(folder)


def restrict(path: Path, mode: int) -> None:
    """Let nobody else read or write it."""
    if path.stat().st_mode & _OTHERS:
        try:
            path.chmod(mode)
        except PermissionError:
            _log.warning("%s is open to other users of this machine, and is not ours", path)


def _others_in(folder: Path, own: frozenset[str] = frozenset()) -> set[str]:
    return {each.name for each in folder.iterdir()} - own - {_FOUND_ON_VOLUMES}


def _check_empty(folder: Path, own: frozenset[str] = frozenset()) -> None:
    others = _others_in(folder, own)
    if others:
        raise ConfigError(
            f"{folder} has something in it ({min(others)}), and there is no {NAME} that knows it; "
            f"put that back, {_ELSEWHERE}."
        )


def _is_own_name(name: str) -> bool:
    return name == MARK or bool(_CONTENT.fullmatch(name) or _PARTIAL.fullmatch(name))


class ContentFolder:
    """The folder with the content of all files. Any thread, once it is open."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILES
        self._descriptor: int | None = None

    def open(self, mark: str, known: Collection[str], *, is_new: bool) -> None:
        """Open the folder of the database that has this mark and knows these files.

        Raises ConfigError.
        """
        self._check_mark(mark, is_new=is_new)
        # Held open, its volume cannot be unmounted, and another one is told from it.
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        self._settle(known)

    def close(self) -> None:
        """Let it go."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def path_of(self, file_id: str) -> Path:
        """Where the content of a file is."""
        return self.path / file_id

    def partial_of(self, file_id: str) -> Path:
        """Where the content of a file is before its row is noted."""
        return self.path / (file_id + PARTIAL)

    def name_content(self, file_id: str) -> None:
        """The row is noted: give its content the final name.

        Without waiting for the disk, and without effect where that fails: the content is found
        under both names, and the next start does it.
        """
        with suppress(OSError):
            self.partial_of(file_id).replace(self.path_of(file_id))

    def open_content(self, file_id: str) -> BufferedReader:
        """The content of a file, to be read, whichever name it has now. Raises OSError."""
        for path in (self.path_of(file_id), self.partial_of(file_id)):
            with suppress(FileNotFoundError):
                return path.open("rb")
        return self.path_of(file_id).open("rb")

    def check_here(self) -> None:
        """Raises FileNotFoundError if another folder has its name now."""
        assert self._descriptor is not None
        if not os.path.samestat(os.fstat(self._descriptor), self.path.stat()):
            raise FileNotFoundError(ENOENT, "the folder was moved away")

    def _check_mark(self, mark: str, *, is_new: bool) -> None:
        """See that this is the folder of the database with this mark. Raises ConfigError."""
        if is_new:
            self.path.mkdir(exist_ok=True, mode=0o700)
        try:
            found = (self.path / MARK).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            if not is_new:
                raise ConfigError(
                    f"{self.path} is not the folder that {NAME} was used with (there is no "
                    f"{MARK} in it); mount its volume, put it back, {_ELSEWHERE}."
                ) from None
            write_text(self.path / MARK, f"{mark}\n")
            restrict(self.path / MARK, 0o600)
            found = mark
        if found != mark:
            raise ConfigError(
                f"{self.path} belongs to another {NAME} than the one beside it; put the right one "
                f"back, {_ELSEWHERE}."
            )
        restrict(self.path, 0o700)

    def _settle(self, known: Collection[str]) -> None:
        """Finish or remove what a process that ended had begun. Raises ConfigError.

        Content is complete before its row is noted, and gets its name after that.
        """
        there = {each.name for each in os.scandir(self.path)}
        self._check_lost({each for each in known if not there & {each, each + PARTIAL}}, known)
        strange = []
        for name in sorted(there):
            path, final = self.path / name, self.path / name.removesuffix(PARTIAL)
            if _PARTIAL.fullmatch(name) and final.name in known and final.name not in there:
                path.replace(final)
            elif _PARTIAL.fullmatch(name):
                _log.info("Removing %s, which was not complete", name)
                path.unlink()
            elif _CONTENT.fullmatch(name) and name not in known:
                strange.append(name)
        if strange:
            self._put_aside(strange)

    def _check_lost(self, lost: Collection[str], known: Collection[str]) -> None:
        if len(lost) > 1 and 2 * len(lost) >= len(known):
            raise ConfigError(
                f"{len(lost)} of {len(known)} files are gone from {self.path}; put them back, "
                f"{_ELSEWHERE}."
            )
        for name in sorted(lost):
            _log.warning("The content of %s is gone from %s", name, self.path)

    def _put_aside(self, names: list[str]) -> None:
        aside = self.path / ASIDE
        aside.mkdir(exist_ok=True, mode=0o700)
        for name in names:
            (self.path / name).replace(aside / name)
        _log.warning("%s does not know %d files; they are in %s now", NAME, len(names), aside)
