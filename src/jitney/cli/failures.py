"""Turns an exception into one sentence on standard error and an exit code.

    0    all went well
    1    it could not be done: the model, the machine, the request
    2    the command line or a setting is wrong
    130  interrupted from the keyboard
    141  the reader of the output is gone

Knows nothing of the commands. Called from the main thread; imports nothing heavy.
"""

import contextlib
import io
import os
import select
import signal
import sys
import traceback
from collections.abc import Iterator
from typing import TextIO

import click

from jitney.errors import ConfigError, InvalidRequest, JitneyError
from jitney.version import install_line

FAILED = 1
USAGE = 2
INTERRUPTED = 130
UNREAD = 141

SENTENCE_CHARACTERS_MAX = 2000


READER_S_MAX = 0.5
"""How long a line on standard error waits for a slow reader."""


def say(sentence: str) -> None:
    """Write one line with our name to standard error; dropped if nobody reads."""
    line = " ".join(sentence.split())
    _write_error(f"jitney: {line[:SENTENCE_CHARACTERS_MAX]}\n")


def report(error: BaseException, *, debug: bool) -> int:
    """Say in a sentence what went wrong; the exit code."""
    code = FAILED
    match error:
        case KeyboardInterrupt():
            return INTERRUPTED
        case BrokenPipeError():
            _discard(sys.stdout)
            return UNREAD
        case click.ClickException():
            say(_sentence(error.format_message()))
            return USAGE
        case JitneyError():
            say(sentence_of(error))
            if isinstance(error, ConfigError | InvalidRequest):
                code = USAGE
        case MemoryError():
            say("There is not enough memory; lower --kv-tokens, or take a smaller model.")
        case ModuleNotFoundError() if error.name and not error.name.startswith("jitney"):
            say(
                f"This command needs the package {error.name}, which is not installed; install "
                f"jitney again, or what measures and draws: {install_line('bench')}."
            )
        case OSError() if error.strerror:
            named = f"{error.filename}: " if error.filename else ""
            say(f"{named}{error.strerror}.")
        case _:
            say(
                f"Something unexpected happened ({type(error).__name__}: {error}); "
                "run it again with --debug to see where, and please report it."
            )
    if debug:
        _write_error("".join(traceback.format_exception(error)))
    return code


@contextlib.contextmanager
def say_at_sigterm() -> Iterator[None]:
    """Write a sentence to standard error before SIGTERM ends the process.

    It explains half an answer in a file. A process that ignores SIGTERM still ignores it.
    """
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _say_ended)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say_ended(number: int, _frame: object) -> None:
    # Not by `say`: the signal may come during a write to the stream, which cannot be entered twice.
    with contextlib.suppress(OSError, ValueError):
        if _is_writable(sys.stderr):
            os.write(sys.stderr.fileno(), b"jitney: SIGTERM ended it before it was done.\n")
    # Do not raise: native code that calls Python would swallow the exception.
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def sentence_of(error: JitneyError) -> str:
    """The message as a complete sentence."""
    return _sentence(str(error).strip() or type(error).__name__)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", ")")) else text + "."


def _write_error(text: str) -> None:
    try:
        if _is_writable(sys.stderr):
            sys.stderr.write(text)
            sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def _is_writable(stream: TextIO) -> bool:
    """Whether a line can be written now or soon; to a stream without a file it always can."""
    try:
        return bool(select.select([], [stream.fileno()], [], READER_S_MAX)[1])
    except (io.UnsupportedOperation, ValueError):
        return True


def _discard(stream: TextIO) -> None:
    """Send a stream to the null device, so that the interpreter's last flush does not fail."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
