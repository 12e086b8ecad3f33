"""`ContentFile`: the content of one file on its way to the disk. Any thread but the event loop's.

It is there from its first byte on, for its user only, and is held open: in a folder that was moved
away meanwhile, a second file of the same name would lack what the first has.

Tests: tests/unit/server/batches/test_output.py and tests/e2e/batches/test_uploads.py.
"""

import hashlib
from contextlib import suppress
from io import FileIO
from os import O_CREAT, O_EXCL, O_WRONLY
from os import open as open_descriptor
from pathlib import Path


class ContentFile:
    """A file that is written once, from its beginning. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._digest = hashlib.sha256()
        self.bytes = 0

    @property
    def sha256(self) -> str:
        """The digest of what was written."""
        return self._digest.hexdigest()

    def write(self, content: bytes) -> None:
        """Write all of it."""
        if self._file is None:
            # Without a buffer: what a full disk refused must not be tried again by `close`.
            self._file = FileIO(
                open_descriptor(self._path, O_WRONLY | O_CREAT | O_EXCL, 0o600), "wb"
            )
        rest = memoryview(content)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._digest.update(content)
        self.bytes += len(content)

    def close(self) -> None:
        """It is complete."""
        if self._file is not None:
            self._file.close()

    def discard(self) -> None:
        """Remove it. What is away now is removed at the next start."""
        self.close()
        with suppress(OSError):
            self._path.unlink()
