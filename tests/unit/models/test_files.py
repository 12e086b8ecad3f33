"""Locks that other processes hold, and files that are on the disk."""

import fcntl
import logging
import os
import threading
from pathlib import Path

import pytest

from jitney.models import files


def test_whoever_waits_for_another_process_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a silence of minutes: the other one converts, and only that one says so."""
    monkeypatch.setattr(files, "LOCK_POLL_S", 0.01)
    reported = threading.Event()
    lock = tmp_path / "model.lock"

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reported.set()

    listener = Listener()
    logging.getLogger("jitney").addHandler(listener)

    def hold() -> None:
        with files.locked(lock):
            held.set()
            reported.wait(30)

    held = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)
    with files.locked(lock, wait_s=30):
        assert "Another process holds model.lock; waiting for it" in caplog.text
    holder.join(30)
    logging.getLogger("jitney").removeHandler(listener)


@pytest.mark.parametrize(
    ("command", "is_whole"),
    [(None, False), (fcntl.F_GETFD, True), (-1, False)],
    ids=["linux", "macos", "a file system that cannot"],
)
def test_what_was_written_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: int | None, *, is_whole: bool
) -> None:
    """Guards a power cut: macOS has a call of its own for it, which not every disk there knows."""
    synced: list[int] = []
    monkeypatch.delattr(fcntl, "F_FULLFSYNC", raising=False)
    if command is not None:
        monkeypatch.setattr(fcntl, "F_FULLFSYNC", command, raising=False)
    monkeypatch.setattr(os, "fsync", synced.append)
    files.sync(tmp_path)
    assert len(synced) == (0 if is_whole else 1)
