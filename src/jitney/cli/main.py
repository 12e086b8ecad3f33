"""The program `jitney`: its commands, and the one place where a failure becomes a sentence.

`--help` must be quick, so only definitions are imported here. What a command does is in the
module of its name, with everything heavy behind it, and is imported when the command is called.
Runs in the main thread.
"""

import importlib
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any  # Any: a command's options are of its own type

import typer
from typer.core import TyperGroup

from jitney.cli.failures import USAGE, report
from jitney.cli.flags import Given, command_of, resolved
from jitney.cli.help import top_help, verb_help
from jitney.cli.verbs import VERBS
from jitney.version import version as version_told

HELP_WIDTH_MAX = 100
_NO_HELP: dict[str, list[str]] = {"help_option_names": []}
_VersionFlag = Annotated[bool, typer.Option("--version")]
_HelpFlag = Annotated[bool, typer.Option("--help")]


def make_app() -> typer.Typer:
    """The whole command line."""
    app = _group(())
    groups: dict[tuple[str, ...], typer.Typer] = {(): app}
    for verb in VERBS:
        place = verb.path[:-1]
        if place not in groups:
            groups[place] = _group(place)
            app.add_typer(groups[place], name=" ".join(place))
        call = command_of(verb, _body(verb.module), partial(_show, partial(verb_help, verb)))
        groups[place].command(verb.path[-1], context_settings=_NO_HELP)(call)
    return app


def main(arguments: list[str]) -> int:
    """Carry out one command line; the exit code."""
    debug = _wants_debug(arguments)
    try:
        code = make_app()(args=arguments, prog_name="jitney", standalone_mode=False)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        return report(error, debug=debug)
    return code if isinstance(code, int) else 0


def run() -> None:
    """The entry point."""
    _have_streams()
    sys.exit(main(sys.argv[1:]))


def _have_streams() -> None:
    """Have nothing stand for standard streams that are closed.

    Python has None for such a stream, and the next file that is opened would get its number: a
    connection might be sent what is meant for the terminal.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # It gets the lowest number that is free, which is that of the stream.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _body(module: str) -> Callable[[Any, Given], int]:
    def call(options: Any, given: Given) -> int:
        # A mistake in a setting is told before anything heavy is loaded.
        resolved(given)
        try:
            code = importlib.import_module(f"jitney.cli.{module}").call(options, given)
        except BrokenPipeError as error:
            # Told here, because typer would take it for its own.
            return report(error, debug=False)
        assert isinstance(code, int), f"{module} gives an exit code"
        return code

    return call


def _group(path: tuple[str, ...]) -> typer.Typer:
    """Commands under one word; the empty path is the program itself."""
    show = partial(_show, lambda width: top_help(width, path))

    def at_top(
        context: typer.Context, version: _VersionFlag = False, help: _HelpFlag = False
    ) -> None:
        _open_group(context, show, version=version, help=help)

    def below(context: typer.Context, help: _HelpFlag = False) -> None:
        _open_group(context, show, version=False, help=help)

    return typer.Typer(
        cls=_group_class(path),
        callback=below if path else at_top,
        invoke_without_command=True,
        context_settings=_NO_HELP,
        add_completion=False,
        pretty_exceptions_enable=False,
    )


def _group_class(path: tuple[str, ...]) -> type[TyperGroup]:
    """A group whose word alone, or with options alone, means its default verb where it has one."""
    default = next(
        (verb.path[-1] for verb in VERBS if verb.is_default and verb.path[:-1] == path), None
    )

    class Group(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # Any: typer's own context
            if default is not None and "--help" not in args[:1]:
                args = args if args and not args[0].startswith("-") else [default, *args]
            return super().parse_args(ctx, args)

    return Group


def _open_group(
    context: typer.Context, show: Callable[[], None], *, version: bool, help: bool
) -> None:
    if version:
        sys.stdout.write(f"jitney {version_told()}\n")
        raise typer.Exit
    if help or context.invoked_subcommand is None:
        show()
        raise typer.Exit(0 if help else USAGE)


def _show(text: Callable[[int], str]) -> None:
    sys.stdout.write(text(min(shutil.get_terminal_size().columns - 1, HELP_WIDTH_MAX)))


def _wants_debug(arguments: list[str]) -> bool:
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--debug" in ours
