"""The one thread that uses the store: `StoreThread`. Event loop.

SQLite waits for the disk, and the event loop must not. All calls are done in order.

Tests: tests/unit/server/batches/test_runner.py.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from jitney.server.batches.batch_input import HeldInput
from jitney.server.batches.store import JobStore

Made = TypeVar("Made")


class StoreThread:
    """A store and its thread. `open` comes first."""

    def __init__(self, folder: Path, held: Mapping[str, HeldInput] | None = None) -> None:
        self.folder = folder
        self._held = held
        self._store: JobStore | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jitney-jobs")

    @property
    def is_open(self) -> bool:
        """Whether calls are taken."""
        return self._store is not None

    @property
    def store(self) -> JobStore:
        """The store, for paths. Its tables belong to the thread."""
        assert self._store is not None, "The store is open"
        return self._store

    def open(self) -> None:
        """Open the store, and wait for it. Any thread. Raises ConfigError and DiskTrouble."""
        if self._store is None:
            self._store = self._thread.submit(JobStore, self.folder, self._held).result()

    async def call(self, use: Callable[[JobStore], Made]) -> Made:
        """What `use` makes of the store. Raises DiskTrouble."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, use, self.store)

    def close(self) -> None:
        """Close the store after all calls. Any thread; no event loop is needed."""
        if self._store is not None:
            self._thread.submit(self._store.close).result()
            self._store = None
        self._thread.shutdown()
