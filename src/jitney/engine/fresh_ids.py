"""Ids that nobody can guess: `FreshIds`. Any thread.

Each system call lets another thread of Python run first, which may take milliseconds. So random
bytes are taken from the system in blocks.
"""

import os

_DIGITS = 32
_BLOCK_BYTES = 4096


class FreshIds:
    """A supply of ids of 32 hexadecimal digits."""

    def __init__(self) -> None:
        self._unused: list[str] = []

    def take(self) -> str:
        """An id that nobody else has."""
        while True:
            try:
                return self._unused.pop()
            except IndexError:
                digits = os.urandom(_BLOCK_BYTES).hex()
                self._unused += [digits[at : at + _DIGITS] for at in range(0, len(digits), _DIGITS)]
