"""The lines on real pipes: in order, within its bound, and every line written or counted."""

import contextlib
import logging
import os
from collections.abc import Iterator

import pytest

from jitney.server import limits
from jitney.server.http.line_writer import LineWriter, LogWriter

WAIT_S = 100.0
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


def fill(writer: int) -> int:
    """Write until nothing more fits; how many bytes."""
    filled_bytes = 0
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            filled_bytes += os.write(writer, b"x" * 4096)
    return filled_bytes


def drain(reader: int, count: int) -> None:
    """Read so many bytes."""
    while count:
        count -= len(os.read(reader, count))


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
        filled_bytes = fill(writer)
        os.set_blocking(writer, blocks)
        lines = LineWriter(writer, "{} were dropped".format)
        for number in range(100):
            lines.put(f"{number:03} {LINE}")
        assert lines.dropped_count == 91, "nine fit"
        drain(reader, filled_bytes)
        *kept, told = read(reader, 10)
        assert told == "91 were dropped"
        assert [line[:3] for line in kept] == [f"{number:03}" for number in range(9)]
        lines.put("after")
        assert read(reader, 1) == ["after"]
        lines.wait_written(WAIT_S)


def test_a_line_that_never_fits_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the log after one enormous line that came while nothing waited."""
    monkeypatch.setattr(limits, "LOG_BYTES_MAX", 100)
    with pipe() as (reader, writer):
        lines = LineWriter(writer, "{} were dropped".format)
        lines.put(LINE)
        assert lines.dropped_count == 1
        lines.put("after")
        assert read(reader, 2) == ["after", "1 were dropped"]
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
        # The first line waits until the others have come, however late they do.
        filled_bytes = fill(writer)
        log = LogWriter(writer)
        log.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        for text in ("short", LINE, "lost"):
            log.handle(logging.makeLogRecord({"msg": text, "levelname": "INFO"}))
        drain(reader, filled_bytes)
        log.flush()
        first, second = read(reader, 2)
        assert first == "INFO short"
        assert second == "WARNING 2 lines of the log were dropped: they found no room"
        assert log.lines.dropped_count == 2
