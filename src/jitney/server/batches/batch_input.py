"""`HeldInput`: a file of somebody else's, read as it was at the start. The store's thread.

`jitney batch run` does not copy its input. It holds the file open, so that another file of the same
name changes nothing, and it looks after every read whether the content was edited.
"""

import hashlib
import os
from io import BufferedReader, FileIO
from pathlib import Path

from jitney.server.batches.database import DiskError


class InputChanged(DiskError):
    """The input is not what it was when its lines were noted."""


class HeldInput:
    """An input that is held open. Raises OSError where it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = FileIO(str(path))
        self._stamp = self._stamp_now()
        self.sha256 = self._digest()
        self.bytes = self._stamp[0]

    def reader(self) -> BufferedReader:
        """The content, to be read. A new one each time: a buffer would keep what was there."""
        self._file.seek(0)
        return BufferedReader(FileIO(self._file.fileno(), closefd=False))

    def check(self) -> None:
        """Raises InputChanged if the content was edited. A new date alone is no edit."""
        stamp = self._stamp_now()
        if stamp != self._stamp:
            self.check_content()
            self._stamp = stamp

    def check_content(self) -> None:
        """Read it all again, and compare. Raises InputChanged."""
        if self._digest() != self.sha256:
            raise InputChanged(f"{self.path} was edited")

    def close(self) -> None:
        """Let it go."""
        self._file.close()

    def _stamp_now(self) -> tuple[int, int, int]:
        now = os.fstat(self._file.fileno())
        return now.st_size, now.st_mtime_ns, now.st_ctime_ns

    def _digest(self) -> str:
        self._file.seek(0)
        return hashlib.file_digest(self._file, "sha256").hexdigest()
