"""The lines on real pipes: in order, within its bound, and every line written or counted."""

import contextlib
import logging
import os
import re
from collections.abc import Iterator

import pytest

from jitney.server import limits
from jitney.server.http.line_writer import LineWriter, LogWriter

WAIT_S = 20.0
LINE = "x" * 999


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends, the reader's first."""
    reader, writer = os.pipe()
    try:
        yield reader, writer
    finally:
        for each in (reader, writer):
            with contextlib.suppress(OSError):
                os.close(each)


def read(reader: int, count: int) -> list[str]:
    """So many lines."""
    content = b""
    while content.count(b"\n") < count:
        content += os.read(reader, 65_536)
    return content.decode().splitlines()


@pytest.mark.parametrize("blocks", [True, False])
def test_lines_are_written_in_order_or_counted(
    monkeypatch: pytest.MonkeyPatch, blocks: bool
) -> None:
    """Guards readers who are late, also where somebody else had the pipe not wait: one gap, of
    which they are told once, and after which they miss nothing."""
    monkeypatch.setattr(limits, "LOG_BYTES_MAX", 10_000)
    with pipe() as (reader, writer):
        os.set_blocking(writer, False)
        filled_bytes = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                filled_bytes += os.write(writer, b"x" * 4096)
        os.set_blocking(writer, blocks)
        lines = LineWriter(writer, "{} were dropped".format)
        for number in range(100):
            lines.put(f"{number:03} {LINE}")
        assert lines.dropped_count == 91, "nine fit"
        while filled_bytes:
            filled_bytes -= len(os.read(reader, filled_bytes))
        *kept, told = read(reader, 10)
        assert told == "91 were dropped"
        assert [line[:3] for line in kept] == [f"{number:03}" for number in range(9)]
        lines.put("after")
        assert read(reader, 1) == ["after"]
        lines.wait_written(WAIT_S)


def test_what_cannot_be_written_is_counted_and_told_when_it_can_be_again() -> None:
    """Guards the log of a disk that was full for a while."""
    with pipe() as (reader, writer), pipe() as (elsewhere, broken):
        os.close(elsewhere)
        file = os.dup(broken)
        lines = LineWriter(file, "{} were dropped".format)
        for _ in range(3):
            lines.put("lost")
            lines.wait_written(WAIT_S)
        assert lines.dropped_count == 3
        os.dup2(writer, file)
        lines.put("back")
        assert read(reader, 2) == ["back", "3 were dropped"]


def test_records_have_their_form_and_so_has_the_line_about_those_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards those who parse the log; and its end: what waits is written by a flush."""
    monkeypatch.setattr(limits, "LOG_BYTES_MAX", 100)
    with pipe() as (reader, writer):
        log = LogWriter(writer)
        log.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        for text in ("short", LINE, "lost"):
            log.handle(logging.makeLogRecord({"msg": text, "levelname": "INFO"}))
        log.flush()
        first, second = read(reader, 2)
        assert first == "INFO short"
        told = re.fullmatch(
            r"WARNING (\d) lines of the log were dropped: they found no room", second
        )
        assert told is not None
        # The last one may have come when there was room again.
        assert log.lines.dropped_count in (1, 2)
