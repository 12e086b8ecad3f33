"""The reference page of the command line, made from the help of its commands. Pure."""

from jitney.cli.help import top_help, verb_help
from jitney.cli.verbs import all_verbs

WIDTH = 100
"""The width of the help on the page; a terminal has its own."""

_PAGE_HEAD = """\
# Command line

This page is what `jitney --help` and the help of each command say. The settings are explained in
[config.md](config.md). It is made from the source by `make docs`.

Exit codes: 0, all went well; 1, it could not be done; 2, the command line or a setting is wrong;
130, interrupted; 141, the reader of the output is gone.
"""


def cli_reference() -> str:
    """The whole page, in Markdown."""
    parts = [_PAGE_HEAD, "## jitney\n", _block(top_help(WIDTH))]
    for verb in all_verbs():
        parts += [f"## jitney {' '.join(verb.path)}\n", _block(verb_help(verb, WIDTH))]
    return "\n".join(parts)


def _block(text: str) -> str:
    return f"```text\n{text}```\n"
