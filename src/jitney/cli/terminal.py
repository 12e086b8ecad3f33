"""Text of a model on standard output; on a terminal it is made harmless and wrapped at words.

Main thread.
"""

import re
import shutil
import sys
import unicodedata

from rich.cells import cell_len

_PARTS = re.compile(r"\n|[^\S\n]+|[^\s]+")
_DROPPED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_JOINERS = frozenset("\u200c\u200d")
COLUMNS_MIN = 20


def columns() -> int:
    """Of the terminal, less one, so that a full line does not wrap by itself."""
    return max(shutil.get_terminal_size().columns - 1, COLUMNS_MIN)


def printable(text: str) -> str:
    """Without what could move the cursor, recolour or retitle a terminal; tabs become spaces."""
    if text.isascii() and text.isprintable():
        return text
    kept = []
    for character in text.replace("\t", "    "):
        category = unicodedata.category(character)
        if character == "\n" or character in _JOINERS or category not in _DROPPED:
            kept.append(character)
    return "".join(kept)


class Wrapper:
    """Breaks lines between words. A word is held back until it is known to be whole."""

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
                # A word without an end (a long address) must not be held back for ever.
                if cell_len(self._word) >= self._width:
                    written.append(self._take_word())
        return "".join(written)

    def end(self) -> str:
        """What was held back."""
        return self._take_word()

    def _take_word(self) -> str:
        word, space = self._word, self._space
        if not word:
            return ""
        self._word = self._space = ""
        width = cell_len(space) + cell_len(word)
        # Without a space it is the rest of a word that was too long to be held back.
        if space and self._column + width > self._width:
            at_start = self._column == 0
            self._column = cell_len(word)
            return word if at_start else "\n" + word
        self._column += width
        return space + word


class AnswerWriter:
    """Writes one answer to standard output while it is made: as it is where a program reads it."""

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
        """Write what was held back, and end the line."""
        write(("" if self._wrapper is None else self._wrapper.end()) + "\n")

    def break_off(self) -> None:
        """End the line if one was begun: what follows is no part of the answer."""
        write("\n" if self._has_written else "")


def write(text: str) -> None:
    """Put text on standard output at once."""
    sys.stdout.write(text)
    sys.stdout.flush()
