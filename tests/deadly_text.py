"""A text that ends the backend's process while it is tokenised, as a fault in native code does.

No such text is known for a real model. So the process of the fake backend gets a tokenizer that
notes each text with `DEADLY` in it, and calls `abort`. The first text with `ENDLESS` is noted too,
and its tokens never come.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

DEADLY = "\x07deadly"
ENDLESS = "\x07endless"

_CUSTOM = """
import os
import sys
import threading

if "jitney.backends.process.worker" in sys.orig_argv:
    from jitney.tokenizers.byte_tokenizer import ByteTokenizer

    usual = ByteTokenizer.encode

    def note():
        with open({notes!r}, "a") as notes:
            notes.write("x")

    def encode(tokenizer, text, *, special):
        if {deadly!r} in text:
            note()
            os.abort()
        if {endless!r} in text and not os.path.getsize({notes!r}):
            note()
            threading.Event().wait()
        return usual(tokenizer, text, special=special)

    ByteTokenizer.encode = encode
"""
"""Python reads it at the start of each process, from the folders of PYTHONPATH."""


@dataclass(frozen=True)
class Deaths:
    """What was noted: one byte for each time."""

    notes: Path

    @property
    def count(self) -> int:
        """How many there are so far."""
        return self.notes.stat().st_size


@contextlib.contextmanager
def deadly_text(folder: Path, more: str = "") -> Iterator[Deaths]:
    """In processes that are started within the block, the texts do that, and `more` is run."""
    folder.mkdir(exist_ok=True)
    deaths = Deaths(folder / "deaths")
    deaths.notes.touch()
    custom = _CUSTOM.format(deadly=DEADLY, endless=ENDLESS, notes=str(deaths.notes))
    (folder / "sitecustomize.py").write_text(custom + more, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield deaths
