"""Lines that a person types, with editing and history on a terminal; or lines from a pipe.

Main thread. History lasts as long as the program.
"""

import sys

from jitney.core import limits
from jitney.errors import InvalidRequest

try:
    # Its import gives `input` line editing; some Pythons are built without it.
    import readline
except ImportError:
    EDITS = False
else:
    EDITS = True
    readline.set_auto_history(True)

LINE_BYTES_MAX = 4 * limits.PROMPT_CHARACTERS_MAX
PROMPT = "\x01\x1b[1;36m\x02> \x01\x1b[0m\x02"
"""Bold and coloured; the marks tell readline what has no width."""

PLAIN_PROMPT = "> "


class LineReader:
    """Standard input, line by line."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty() and sys.stdout.isatty()

    def read(self) -> str | None:
        """The next line, or None at the end. Raises KeyboardInterrupt and InvalidRequest."""
        if self.is_terminal:
            return self._typed()
        content = sys.stdin.buffer.readline(LINE_BYTES_MAX + 1)
        if len(content) > LINE_BYTES_MAX:
            raise InvalidRequest("A line of standard input is too long.", "prompt")
        if not content:
            return None
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidRequest("Standard input is not text in UTF-8.", "prompt") from None

    def _typed(self) -> str | None:
        try:
            return input(PROMPT if EDITS else PLAIN_PROMPT)
        except EOFError:
            sys.stdout.write("\n")
            return None
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            raise
        except UnicodeDecodeError:
            raise InvalidRequest("What was typed is not text in UTF-8.", "prompt") from None
