"""Makes the help of every command as plain text.

This module writes it, not click, so that no name is cut. The reference page has the same text.
Pure; any thread; imports nothing heavy.
"""

import textwrap
from collections.abc import Sequence

from jitney.cli.flags import ARGUMENTS, Flag, Verb, verb_flags
from jitney.cli.verbs import ABOUT, EXAMPLES, all_verbs

NAMES_WIDTH = 28


def top_help(width: int, group: tuple[str, ...] = ()) -> str:
    """The help of the program, or of a group of commands."""
    verbs = [verb for verb in all_verbs() if verb.path[: len(group)] == group]
    lines = [
        f"Usage: {' '.join(('jitney', *group))} COMMAND [OPTIONS]",
        "",
        *_wrap(ABOUT if not group else f"Commands under {' '.join(group)}.", width),
        "",
        "Commands",
    ]
    for verb in verbs:
        lines += _entry(" ".join(verb.path), verb.about.split("\n")[0], width, 12)
    lines += ["", "Options"]
    if not group:
        lines += _entry("--version", "Show the version and exit.", width, 12)
    lines += _entry("--help", "Show this help and exit.", width, 12)
    lines += ["", *_examples(EXAMPLES if not group else verbs[0].examples)]
    lines += ["", "COMMAND --help says what a command takes."]
    return "\n".join(lines) + "\n"


def verb_help(verb: Verb, width: int) -> str:
    """The help of one command."""
    panels: dict[str, list[Flag]] = {}
    for flag in verb_flags(verb):
        if flag.panel:
            panels.setdefault(flag.panel, []).append(flag)
    arguments = map(_names, panels.get(ARGUMENTS, []))
    lines = [f"Usage: {' '.join(('jitney', *verb.path, '[OPTIONS]', *arguments))}"]
    for paragraph in verb.about.strip().split("\n\n"):
        lines += ["", *_wrap(paragraph, width)]
    lines += ["", *_examples(verb.examples)]
    for panel, flags in panels.items():
        lines += ["", panel]
        for flag in flags:
            lines += _entry(_names(flag), flag.help, width)
    return "\n".join(lines) + "\n"


def _names(flag: Flag) -> str:
    spelled = ", ".join(flag.spelled)
    return " ".join(filter(None, (spelled, flag.parameter.metavar)))


def _entry(names: str, text: str, width: int, names_width: int = NAMES_WIDTH) -> list[str]:
    """Names on the left and the text beside them, or below long names."""
    indent = " " * (names_width + 4)
    wrapped = textwrap.wrap(text, max(width - len(indent), 20), break_on_hyphens=False)
    if len(names) > names_width:
        return [f"  {names}", *(indent + line for line in wrapped)]
    head = f"  {names:<{names_width}}  {wrapped[0] if wrapped else ''}".rstrip()
    return [head, *(indent + line for line in wrapped[1:])]


def _examples(examples: Sequence[str]) -> list[str]:
    return ["Example" if len(examples) == 1 else "Examples", *(f"  {each}" for each in examples)]


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)
