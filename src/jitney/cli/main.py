"""The program `jitney`: finds the command, parses its flags, and turns a failure into a sentence.

`--help` must be quick, so only definitions are imported here. The module of a command imports the
heavy parts, and is itself imported when the command is called. Runs in the main thread.
"""

import importlib
import os
import shutil
import sys

from jitney.cli.failures import USAGE, report
from jitney.cli.flags import Verb, no_option, parse
from jitney.cli.help import top_help, verb_help
from jitney.cli.verbs import OWN_VERBS, all_verbs
from jitney.config import nearest
from jitney.errors import ConfigError
from jitney.extensions import LAB_COMMANDS
from jitney.version import version

HELP_WIDTH_MAX = 100


def main(arguments: list[str]) -> int:
    """Run one command line; the exit code."""
    try:
        code = _run_command(arguments)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        return report(error, debug=_wants_debug(arguments))
    return code


def run() -> None:
    """The entry point."""
    _open_missing_streams()
    sys.exit(main(sys.argv[1:]))


def _open_missing_streams() -> None:
    """Open the null device for standard streams that are closed.

    Python has None for such a stream, and the next opened file would get its number: text for the
    terminal might go to a connection.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # It gets the lowest free number, which is that of the stream.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _run_command(words: list[str]) -> int:
    """Call the command that the first words name, with the other words."""
    # Other packages are looked for only when their commands are asked for, which takes a moment.
    is_own = words and any(verb.path[0] == words[0] for verb in OWN_VERBS)
    known = OWN_VERBS if is_own else all_verbs()
    group: tuple[str, ...] = ()
    if words and any(verb.path[:-1] == (words[0],) for verb in known):
        group, words = (words[0],), words[1:]
    verbs = {verb.path[-1]: verb for verb in known if verb.path[:-1] == group}
    if words and words[0] in verbs:
        return _call(verbs[words[0]], words[1:])
    if words and not words[0].startswith("-"):
        raise _no_command(words[0], group)
    default = next((verb for verb in verbs.values() if verb.is_default), None)
    if default is not None and words[:1] != ["--help"]:
        return _call(default, words)
    return _show_group(group, words)


def _show_group(group: tuple[str, ...], words: list[str]) -> int:
    """Show the version, or the help of the program or group; without a word, as an error."""
    options = ["--help"] if group else ["--help", "--version"]
    if words and words[0] not in options:
        raise no_option(words[0], " ".join(("jitney", *group)), options)
    if words[:1] == ["--version"]:
        sys.stdout.write(f"jitney {version()}\n")
        return 0
    sys.stdout.write(top_help(_help_width(), group))
    return 0 if words else USAGE


def _call(verb: Verb, words: list[str]) -> int:
    parsed = parse(verb, words)
    if parsed.wants_help:
        sys.stdout.write(verb_help(verb, _help_width()))
        return 0
    # Report a mistake in a setting before anything heavy is loaded.
    resolved = parsed.resolved()
    call = getattr(importlib.import_module(verb.module), verb.call)
    # A command that cannot partly fail returns no code.
    code: int | None = call(parsed.options, resolved)
    return code or 0


def _no_command(word: str, group: tuple[str, ...]) -> ConfigError:
    depth = len(group)
    commands = list(
        dict.fromkeys(each.path[depth] for each in all_verbs() if each.path[:depth] == group)
    )
    close = nearest(word, commands)
    hint = f"there are {', '.join(commands)}" if close is None else f"the nearest is {close}"
    if word in LAB_COMMANDS and not group:
        hint = "it comes with jitney_lab, which is not listed here: install jitney again"
    return ConfigError(f"There is no command {word}; {hint}.")


def _help_width() -> int:
    return min(shutil.get_terminal_size().columns - 1, HELP_WIDTH_MAX)


def _wants_debug(arguments: list[str]) -> bool:
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--debug" in ours
