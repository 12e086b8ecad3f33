"""The program on a pseudoterminal: what it draws, and what keys do to it."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jitney import LLM, SamplingParams
from jitney.cli.main import main
from jitney.cli.watch import LivePrompt

WAIT_S = 120.0
LOST_S = 60.0
CONTROL_C, CONTROL_D = b"\x03", b"\x04"
PROMPT = "\n> "
CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b\][^\x07]*\x07|[\x01\x02]")


class Terminal:
    """One end of a pseudoterminal with a program at the other."""

    def __init__(self, end: int, process: subprocess.Popen[bytes]) -> None:
        self._end = end
        self._process = process
        self._seen = 0
        self.raw = ""

    @property
    def text(self) -> str:
        """All that was written so far, without colours and cursor movements."""
        return CODES.sub("", self.raw).replace("\r\n", "\n")

    def press(self, keys: bytes) -> None:
        os.write(self._end, keys)

    def expect(self, *marks: str) -> None:
        """Read until each mark has been written, in order and after those of earlier calls."""
        for mark in marks:
            while mark not in self.text[self._seen :]:
                assert self._read(), f"{mark!r} never came: {self.text[self._seen :]}"
            self._seen = self.text.index(mark, self._seen) + len(mark)

    def interrupt(self, mark: str | None = None) -> None:
        """Press Ctrl-C until the mark comes, or the program ends.

        A signal that arrives just before the program waits for a key does not wake it; the next
        one does, and the two count as one.
        """
        for _ in range(5):
            self.press(CONTROL_C)
            if self._comes(mark):
                return
        pytest.fail(f"five interrupts did nothing: {self.text[-2000:]}")

    def _comes(self, mark: str | None) -> bool:
        """Whether the mark, or the end, comes before a long silence."""
        while mark is None or mark not in self.text[self._seen :]:
            if not select.select([self._end], [], [], LOST_S)[0]:
                return False
            if not self._read():
                return mark is None
        return True

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        return self._process.wait(WAIT_S)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._end], [], [], WAIT_S)
        assert ready, f"nothing came for {WAIT_S} s: {self.text[-2000:]}"
        try:
            content = os.read(self._end, 65_536)
        except OSError:
            # Linux says so when the other end is closed.
            return False
        self.raw += content.decode(errors="replace")
        return bool(content)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def on_terminal(*words: str, columns: int = 80, rows: int = 24) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JITNEY_")}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        kept.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "jitney", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=kept | {"TERM": "xterm-256color", "LANG": "C.UTF-8"},
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait(WAIT_S)
        os.close(ours)


@pytest.mark.parametrize(("columns", "rows"), [(120, 40), (80, 24), (60, 20)])
def test_the_demo_draws_panes_and_a_status_bar_and_ends(columns: int, rows: int) -> None:
    """Guards the live view: every prompt, the four lines below, and a summary on every size."""
    with on_terminal("demo", "--backend", "fake", columns=columns, rows=rows) as terminal:
        assert terminal.end() == 0
        text = terminal.text
    assert "\x1b[" in terminal.raw
    assert ("╭" in text) == (columns >= 80)
    last = text[text.rindex("slots") - 2 * columns * rows :]
    for message in ("A letter home", "running", "of 16,384 tokens", "prefill tokens", "queue"):
        assert message in last
    assert "8 answers" in text.split("speed")[-1]


def test_a_few_prompts_are_watched_and_then_written_out() -> None:
    """Guards `run` on a terminal: after the live view the answers stand there whole."""
    given = ("run", "--backend", "fake", "--greedy", "--max-tokens", "8", "one", "two")
    with on_terminal(*given) as terminal:
        assert terminal.end() == 0
    assert "slots" in terminal.text
    after = terminal.text.split("speed")[-1]
    assert after.index("[1] one") < after.index("[2] two")


def test_what_was_answered_stays_after_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards an answer that was complete while another went on: the board took it with it."""

    def stopped(llm: LLM, watched: list[LivePrompt], *_: object, **__: object) -> None:
        watched[1].outcome = llm.generate("two", SamplingParams(temperature=0, max_tokens=8))[0]
        raise KeyboardInterrupt

    monkeypatch.setattr("jitney.cli.run.watch", stopped)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["run", "--backend", "fake", "one", "two"]) == 130
    written = capsys.readouterr().out
    assert "[2] two" in written
    assert "[1]" not in written


def test_keys_of_a_chat() -> None:
    """Guards the prompt: Ctrl-C alone does not leave, Ctrl-D does, and neither is a failure."""
    with on_terminal("chat", "--backend", "fake", "--max-tokens", "8") as terminal:
        terminal.expect("/help", PROMPT)
        terminal.press(b"hello\r")
        terminal.expect("context", PROMPT)
        terminal.interrupt("Ctrl-C again leaves")
        terminal.expect("leaves", PROMPT)
        terminal.press(b"again\r")
        terminal.expect("context", PROMPT)
        terminal.press(CONTROL_D)
        assert terminal.end() == 0
    assert "Traceback" not in terminal.text


def test_the_second_interrupt_leaves_a_chat() -> None:
    """Guards the way out for those who know no other."""
    with on_terminal("chat", "--backend", "fake") as terminal:
        terminal.expect("/help", PROMPT)
        terminal.interrupt("Ctrl-C again leaves")
        terminal.expect("leaves", PROMPT)
        terminal.interrupt()
        assert terminal.end() == 0
    assert "Traceback" not in terminal.text


def test_an_interrupt_leaves_the_demo_quietly() -> None:
    """Guards Ctrl-C while it paints: the usual code, the cursor back, and no traceback."""
    # A group that never fills waits, so that the demo is still there when the key is pressed.
    given = ("demo", "--backend", "fake", "--strategy", "dynamic", "--max-wait-ms", "60000")
    with on_terminal(*given) as terminal:
        terminal.expect("slots")
        terminal.press(CONTROL_C)
        assert terminal.end() == 130
    assert "Traceback" not in terminal.text
    assert terminal.raw.rindex("\x1b[?25h") > terminal.raw.rindex("\x1b[?25l")
