"""The program called in this process, as its entry point calls it: its output and its exit code."""

import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from jitney.cli.main import main


@dataclass(frozen=True, slots=True)
class Done:
    """How a call of the program ended."""

    returncode: int
    stdout: str
    stderr: str


def jitney(
    *words: str | Path, stdin: bytes = b"", environ: Mapping[str, str] | None = None
) -> Done:
    """Call the program; its output is text, or the test fails. No variable of ours is in force,
    but for the folder of the cache."""
    with pytest.MonkeyPatch.context() as patch, _without_log_handlers():
        for name in os.environ:
            if name.startswith("JITNEY_") and name != "JITNEY_CACHE":
                patch.delenv(name)
        for name, value in (environ or {}).items():
            patch.setenv(name, value)
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        code = main([str(word) for word in words])
    return Done(code, *map(_written, (out, err)))


def expect_sentence(done: Done, code: int, *texts: str) -> None:
    """One line on standard error, nothing on standard output, and the exit code."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("jitney: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for text in texts:
        assert text in done.stderr


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A new disk of so many bytes, where this folder is to be."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("disks cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    content = stream.buffer
    assert isinstance(content, io.BytesIO)
    return content.getvalue().decode()


@contextmanager
def _without_log_handlers() -> Iterator[None]:
    """The program sets up its log at each call; pytest has handlers, and they stay its own."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
