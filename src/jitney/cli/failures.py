"""From an exception to one sentence on standard error and an exit code.

    0    all went well
    1    it could not be done: the model, the machine, the request
    2    the command line or a setting is wrong
    130  interrupted from the keyboard
    141  nobody reads the output any more

Knows nothing of the commands. Called from the main thread; imports nothing heavy.
"""

import io
import os
import select
import sys
import traceback
from typing import TextIO

import typer

from jitney.config import nearest
from jitney.errors import ConfigError, InvalidRequest, JitneyError

FAILED = 1
USAGE = 2
INTERRUPTED = 130
UNREAD = 141

SENTENCE_CHARACTERS_MAX = 2000


READER_S_MAX = 0.5
"""How long a line on standard error waits for a reader who is behind."""


def say(sentence: str) -> None:
    """One line on standard error, marked as ours; nobody waits where nobody reads."""
    shown = " ".join(sentence.split())
    _write_error(f"jitney: {shown[:SENTENCE_CHARACTERS_MAX]}\n")


def report(error: BaseException, *, debug: bool) -> int:
    """Tell the person what went wrong, in a sentence; the exit code."""
    match error:
        case KeyboardInterrupt():
            return INTERRUPTED
        case BrokenPipeError():
            _forget(sys.stdout)
            return UNREAD
        case typer.TyperException():
            say(_usage_sentence(error))
            return USAGE
        case JitneyError():
            say(sentence_of(error))
            code = exit_code(error)
        case MemoryError():
            say("There is not enough memory; lower --kv-tokens, or take a smaller model.")
            code = FAILED
        case OSError() if error.strerror:
            named = f"{error.filename}: " if error.filename else ""
            say(f"{named}{error.strerror}.")
            code = FAILED
        case _:
            say(
                f"Something unexpected happened ({type(error).__name__}: {error}); "
                "run it again with --debug to see where, and please report it."
            )
            code = FAILED
    if debug:
        _write_error("".join(traceback.format_exception(error)))
    return code


def exit_code(error: JitneyError) -> int:
    """Whether the command line is to blame or the world."""
    return USAGE if isinstance(error, ConfigError | InvalidRequest) else FAILED


def sentence_of(error: JitneyError) -> str:
    """The message as a sentence of its own."""
    text = str(error).strip() or type(error).__name__
    return text if text.endswith((".", "!", "?", ")")) else text + "."


def _usage_sentence(error: typer.TyperException) -> str:
    """What typer found wrong, in one sentence, with the nearest name where one is near."""
    unknown = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    message = error.format_message().strip()
    if isinstance(unknown, str) and message.lower().startswith("no such option"):
        if context is None:
            return f"There is no option {unknown}."
        known = [
            name
            for parameter in context.command.get_params(context)
            for name in (*parameter.opts, *parameter.secondary_opts)
            if name.startswith("--")
        ]
        verb = context.command_path
        close = nearest(unknown, known)
        hint = f"{verb} --help lists them" if close is None else f"the nearest is {close}"
        return f"There is no option {unknown} of {verb}; {hint}."
    if message.lower().startswith("no such command") and context is not None:
        word = message.split("'")[1] if "'" in message else ""
        commands = context.command.list_commands(context)
        close = nearest(word, commands)
        hint = f"there are {', '.join(commands)}" if close is None else f"the nearest is {close}"
        return f"There is no command {word}; {hint}."
    if message.lower().startswith("got unexpected extra argument") and context is not None:
        extra = message.partition(" (")[2].removesuffix(")")
        verb = context.command_path
        return f"{verb} does not take {extra} as well; {verb} --help says what it takes."
    return message if message.endswith((".", ")")) else message + "."


def _write_error(text: str) -> None:
    try:
        if _is_read(sys.stderr):
            sys.stderr.write(text)
            sys.stderr.flush()
    except OSError:
        _forget(sys.stderr)


def _is_read(stream: TextIO) -> bool:
    """Whether a line would be taken, at once or soon; what is no file always takes it."""
    try:
        return bool(select.select([], [stream.fileno()], [], READER_S_MAX)[1])
    except (io.UnsupportedOperation, ValueError):
        return True


def _forget(stream: TextIO) -> None:
    """Point a stream at nothing, so that the interpreter's last flush is quiet."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
