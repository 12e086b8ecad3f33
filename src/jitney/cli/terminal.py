"""Writes a model's text to standard output; on a terminal it is made safe and wrapped at words.

It also asks people questions that are answered with y or n.

Main thread.
"""

import re
import shutil
import sys

from rich.cells import cell_len

from jitney.text.printable import printable

_PARTS = re.compile(r"\n|[^\S\n]+|[^\s]+")
COLUMNS_MIN = 20


def columns() -> int:
    """The columns of the terminal minus one, so that a full line does not wrap by itself."""
    return max(shutil.get_terminal_size().columns - 1, COLUMNS_MIN)


class Wrapper:
    """Breaks lines between words. It holds a word back until the word is complete."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._column = 0
        self._space = ""
        self._word = ""

    def feed(self, text: str) -> str:
        """What can be written now."""
        written = []
        for part in _PARTS.findall(text):
            if part == "\n":
                written += [self._take_word(), "\n"]
                self._column, self._space = 0, ""
            elif part.isspace():
                written.append(self._take_word())
                self._space += part
            else:
                self._word += part
                # A very long word (such as an address) must not be held back for ever.
                if cell_len(self._word) >= self._width:
                    written.append(self._take_word())
        return "".join(written)

    def end(self) -> str:
        """The word that was held back."""
        return self._take_word()

    def _take_word(self) -> str:
        word, space = self._word, self._space
        if not word:
            return ""
        self._word = self._space = ""
        width = cell_len(space) + cell_len(word)
        # Without a space before it, it is the rest of a very long word.
        if space and self._column + width > self._width:
            at_start = self._column == 0
            self._column = cell_len(word)
            return word if at_start else "\n" + word
        self._column += width
        return space + word


class AnswerWriter:
    """Writes one answer to standard output while it is made; for a program, without changes."""

    def __init__(self) -> None:
        self._wrapper = Wrapper(columns()) if sys.stdout.isatty() else None
        self._has_written = False

    def write(self, text: str) -> None:
        """Add to the answer."""
        if self._wrapper is not None:
            text = self._wrapper.feed(printable(text))
        self._has_written |= bool(text)
        write(text)

    def end(self) -> None:
        """Write the word that was held back, and end the line."""
        write(("" if self._wrapper is None else self._wrapper.end()) + "\n")

    def break_off(self) -> None:
        """End the line if it has text: what follows is not part of the answer."""
        write("\n" if self._has_written else "")


def agrees(question: str) -> bool:
    """Ask on standard error; whether the answer on standard input is yes."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def write(text: str) -> None:
    """Write text to standard output and flush."""
    sys.stdout.write(text)
    sys.stdout.flush()
