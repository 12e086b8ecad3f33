"""Writes lines of the log and of standard output on a thread of its own. Any thread may call.

A caller never waits and never fails, even if nobody reads the pipe, the terminal is paused or gone,
or the disk is full. Lines without room are dropped and counted. One line reports their number, once
all lines before them are written. It does not use Python's own stream, because that has a lock that
the interpreter needs when it ends.
"""

import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable

from jitney.server import limits

STDOUT, STDERR = 1, 2


class LineWriter:
    """One file, and the lines that wait for it; `report` makes the line about dropped ones."""

    def __init__(self, file: int, report: Callable[[int], str]) -> None:
        self._file = file
        self._report = report
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._held_bytes = 0
        """What waits, and what is being written."""
        self._is_full = False
        self._hurried = threading.Event()
        """Set at the end, when somebody waits for the last lines."""
        self.dropped_count = 0
        """Lines that were never written."""
        self._reported_count = 0
        # A daemon: the process must not wait for a reader that does not read.
        threading.Thread(target=self._run, name="jitney-lines", daemon=True).start()

    def put(self, line: str) -> None:
        """Write a line soon, if there is room for it."""
        content = _bytes_of(line)
        with self._changed:
            # One gap, and one line about it: after the first dropped line, all are dropped until
            # nothing waits.
            if self._is_full or self._held_bytes + len(content) > limits.LOG_BYTES_MAX:
                # With nothing to wait for, only this line is too long.
                self._is_full = self._held_bytes > 0
                self.dropped_count += 1
                return
            self._lines.append(content)
            self._held_bytes += len(content)
            if len(self._lines) == 1:
                self._changed.notify_all()

    def wait_written(self, seconds: float) -> None:
        """Wait until all lines are written, for so long at most."""
        self._hurried.set()
        with self._changed:
            self._changed.wait_for(lambda: self._held_bytes == 0, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
            # To wake this thread for each line would take longer than to write the line.
            self._hurried.wait(limits.LOG_GATHER_S)
            with self._changed:
                content, line_count = b"".join(self._lines), len(self._lines)
                self._lines.clear()
            is_written = self._write(content)
            with self._changed:
                if not is_written:
                    self.dropped_count += line_count
                self._end_gap()
                unreported_count = self.dropped_count - self._reported_count
                is_due = is_written and unreported_count > 0 and not self._lines
            if is_due and self._write(_bytes_of(self._report(unreported_count))):
                self._reported_count += unreported_count
            with self._changed:
                self._held_bytes -= len(content)
                self._end_gap()
                self._changed.notify_all()

    def _end_gap(self) -> None:
        """Take lines again if none waits. Its caller has the lock."""
        if not self._lines:
            self._is_full = False

    def _write(self, content: bytes) -> bool:
        """Write all of it, and wait for the reader as long as it takes. False if that failed."""
        rest = memoryview(content)
        while rest:
            try:
                rest = rest[os.write(self._file, rest) :]
            except BlockingIOError:
                # Another process has made the same file non-blocking.
                select.select([], [self._file], [])
            except OSError:
                return False
        return True


class LogWriter(logging.Handler):
    """Handles records of the log. The interpreter flushes it at its end."""

    def __init__(self, file: int = STDERR) -> None:
        super().__init__()
        self.lines = LineWriter(file, self._report)

    def emit(self, record: logging.LogRecord) -> None:
        """Take one record."""
        try:
            self.lines.put(self.format(record))
        except Exception:  # As the standard library does it: a bad record is no failure of ours.
            self.handleError(record)

    def flush(self) -> None:
        """Wait a moment until all lines are written."""
        self.lines.wait_written(limits.LOG_END_S_MAX)

    def _report(self, count: int) -> str:
        message = "%d lines of the log were dropped: they found no room"
        name, level = "jitney.server", logging.WARNING
        return self.format(logging.LogRecord(name, level, "", 0, message, (count,), None))


def _bytes_of(line: str) -> bytes:
    return line.encode("utf-8", "backslashreplace") + b"\n"
