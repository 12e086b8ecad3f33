"""Makes the flags of a command from its dataclass and from the settings.

A command's own options are the fields of a dataclass, each defined by `option` or `argument`.
Every setting of `jitney.config` is a flag as well. Imports nothing heavy.
"""

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints  # Any: options are of every type

import click

from jitney.config import (
    Resolved,
    Setting,
    environment,
    known_serve_settings,
    known_settings,
    nearest,
    resolve,
)
from jitney.config.definitions import field_texts, flag_name
from jitney.config.foreign_names import FOREIGN_NAMES
from jitney.config.forms import Form
from jitney.errors import ConfigError

ARGUMENTS = "Arguments"
COMMAND = "Command"
SERVER_URL = "http://127.0.0.1:8000"
METAVARS = {int: "N", float: "X", str: "TEXT", Path: "FILE"}
"""The placeholders of values of each type in the help."""

EXAMPLES = "\nExamples:\n"
"""What stands before the examples in a help."""

SET = "--set"

MODEL_ARGUMENT = "model_argument"
"""The option of a command that takes a model by position too. It is the same as --model."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One option or argument: what click parses, its help, and the heading of the help.

    Without a heading it works but is not listed. The help is made when it is shown.
    """

    parameter: click.Parameter
    panel: str = ""
    make_help: Callable[[], str] = str

    @property
    def help(self) -> str:
        """What it does."""
        return self.make_help()

    @property
    def name(self) -> str:
        """The name of its field or setting."""
        assert self.parameter.name is not None, "Click takes the name from the declaration"
        return self.parameter.name

    @property
    def spelled(self) -> list[str]:
        """Its spellings; none for an argument, which has a position instead."""
        if isinstance(self.parameter, click.Argument):
            return []
        return [*self.parameter.opts, *self.parameter.secondary_opts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One command. The docstring of its `options` is its help, with examples at its end.

    `call` is the function of `module` that runs it. `settings` names those that it uses; None is
    all of the engine's. With `serves` it also takes the settings of the server. `is_default` marks
    the command that a group's name alone means.
    """

    path: tuple[str, ...]
    module: str
    call: str = "call"
    options: type[Any]
    settings: tuple[str, ...] | None = None
    serves: bool = False
    is_default: bool = False

    @property
    def about(self) -> str:
        """Its help."""
        return self._text.partition(EXAMPLES)[0].strip()

    @property
    def examples(self) -> list[str]:
        """Command lines to try."""
        return [line.strip() for line in self._text.partition(EXAMPLES)[2].strip().splitlines()]

    @property
    def _text(self) -> str:
        text = inspect.getdoc(self.options) or ""
        # Without docstrings (`python -OO`), a dataclass has its signature instead.
        return "" if text.startswith(f"{self.options.__name__}(") else text


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What followed a command: its own options, and settings as flags; None means not given."""

    options: Any
    flags: Mapping[str, object]
    config: Path | None = None
    wants_help: bool = False

    def resolved(self) -> Resolved:
        """The settings in force. Raises ConfigError."""
        flags, model = self.flags, getattr(self.options, MODEL_ARGUMENT, None)
        if model is not None:
            if flags["model"] is not None:
                raise ConfigError(
                    "The model is given twice, with --model and without; leave one out."
                )
            flags = {**flags, "model": model}
        assigned = getattr(self.options, "assigned", ())
        return resolve(flags, self.config, environment(), assigned=assigned)


def option(
    panel: str,
    default: object = None,
    *,
    help: str = "",
    spelled: tuple[str, ...] = (),
    metavar: str | None = None,
) -> Any:
    """A field of a command's options that is a flag. Without `help`, that is the text below it.

    `spelled` is its spelling, if that is not the name of the field, and `metavar` its placeholder,
    if that is not the one of its type. A tuple may be given several times.
    """
    about = {"panel": panel, "help": help, "spelled": spelled, "metavar": metavar}
    return field(default=default, metadata=about)


def argument(metavar: str, default: object = None) -> Any:
    """A field of a command's options that is an argument by position."""
    return option(ARGUMENTS, default, metavar=metavar)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """The options of every command."""

    config: Path | None = option(COMMAND)
    """A YAML or TOML file with settings; the environment and flags are stronger."""
    debug: bool = option(COMMAND, False)
    """Show the traceback of a failure."""
    help: bool = option(COMMAND, False)
    """Show this help and exit."""


API_KEY = option(
    COMMAND,
    help="A key of the server. Others on this machine can see it in `ps`: use JITNEY_API_KEY, "
    "which is sent to loopback addresses only.",
)
"""The field `api_key` of a command that calls a server."""

ASSIGNED = option(
    COMMAND,
    (),
    help="Give a setting a value, as max_num_seqs=32; may be given several times. `jitney config "
    "show` lists all settings.",
    spelled=(SET,),
    metavar="NAME=VALUE",
)
"""The field `assigned` of a command whose settings have no flags of their own."""


def own_flags(kind: type[Any]) -> list[Flag]:
    """One flag for each field of a command's options."""
    hints = get_type_hints(kind)
    return [_own_flag(kind, each, hints[each.name]) for each in fields(kind)]


def _own_flag(owner: Any, defined: Field[Any], hint: Any) -> Flag:
    about, default = defined.metadata, defined.default
    # The type of a value, in an annotation such as `int | None` or `tuple[str, ...]`.
    kind = get_args(hint)[0] if get_args(hint) else hint
    is_list = get_origin(hint) is tuple
    how: dict[str, Any] = {"metavar": about["metavar"] or METAVARS.get(kind), "default": default}
    parameter: click.Parameter
    if about["panel"] == ARGUMENTS:
        nargs = -1 if is_list else 1
        parameter = click.Argument([defined.name], nargs=nargs, required=False, **how)
    else:
        spelled = about["spelled"] or (flag_name(defined.name),)
        how |= {"type": None if kind is bool else kind, "multiple": is_list}
        is_flag = isinstance(default, bool) or None
        parameter = click.Option([*spelled, defined.name], is_flag=is_flag, **how)
    suffix = f" Default: {default}." if type(default) is int else ""
    return Flag(
        parameter,
        about["panel"],
        lambda: (about["help"] or field_texts(owner).get(defined.name, "")) + suffix,
    )


def setting_flags(only: tuple[str, ...] | None = None, *, serves: bool = False) -> list[Flag]:
    """One flag for each setting, and one without a help for each word of another system."""
    settings = {
        each.name: each
        for each in (*(known_serve_settings() if serves else ()), *known_settings())
        if only is None or each.name in only
    }
    flags = [*map(_setting_flag, settings.values())]
    for word in FOREIGN_NAMES:
        if word.setting in settings or (only is None and word.setting is None):
            form = word.form or settings[word.setting or ""].form
            flags.append(Flag(_setting_option(word.name, form)))
    return flags


def verb_flags(verb: Verb) -> list[Flag]:
    """All flags of a command, in the order of its help."""
    settings = setting_flags(verb.settings, serves=verb.serves)
    return [*own_flags(verb.options), *own_flags(CommonOptions), *settings]


def parse(verb: Verb, words: list[str]) -> CommandLine:
    """Read what follows a command. Raises ConfigError, or an error of click."""
    place = " ".join(("jitney", *verb.path))
    flags = verb_flags(verb)
    _check_values(words, flags)
    command = click.Command(place, params=[flag.parameter for flag in flags], add_help_option=False)
    try:
        context = command.make_context(place, words, allow_extra_args=True)
    except click.NoSuchOption as error:
        known = [name for flag in flags for name in flag.spelled if name.startswith("--")]
        raise no_option(error.option_name, place, known) from None
    if context.args:
        extra = " ".join(context.args)
        raise ConfigError(
            f"{place} does not take {extra} as well; {place} --help says what it takes."
        )
    values = {flag.name: context.params[flag.name] for flag in flags}
    options, common = (
        kind(**{each.name: values.pop(each.name) for each in fields(kind)})
        for kind in (verb.options, CommonOptions)
    )
    # Click gives an empty tuple for a repeatable option that was not given.
    settings = {
        name: (list(value) or None) if isinstance(value, tuple) else value
        for name, value in values.items()
    }
    return CommandLine(options, settings, common.config, common.help)


def _check_values(words: list[str], flags: list[Flag]) -> None:
    """Refuse a flag in the place of a value, and a value of a switch: click would take the first
    for the value, and the second for an argument. Raises ConfigError."""
    known = {name: flag.parameter for flag in flags for name in flag.spelled}
    for word, following in itertools.pairwise(words):
        if word == "--":
            return
        parameter = known.get(word)
        if not isinstance(parameter, click.Option):
            continue
        if parameter.is_flag and following.lower() in ("true", "false"):
            switches = " or ".join((*parameter.opts, *parameter.secondary_opts))
            raise ConfigError(f"{word} takes no value, and got {following}; write {switches}.")
        if not parameter.is_flag and following in known:
            raise ConfigError(
                f"{word} needs a value, and {following} is another flag; give the value, or write "
                f"{word}{'=' if word.startswith('--') else ''}{following} if this is it."
            )


def no_option(word: str, place: str, known: Iterable[str]) -> ConfigError:
    """The error for an unknown option, with the nearest known one, or how to give the setting."""
    close = nearest(word, known)
    hint = f"{place} --help lists them" if close is None else f"the nearest is {close}"
    settings = {flag_name(each.name): each.name for each in known_settings()}
    if SET in known and word in settings:
        hint = f"give the setting as {SET} {settings[word]}=VALUE"
    return ConfigError(f"There is no option {word} of {place}; {hint}.")


def _setting_flag(setting: Setting) -> Flag:
    return Flag(
        _setting_option(setting.name, setting.form, setting.short),
        f"Settings: {setting.group.value.lower()}",
        lambda: f"{setting.help} Default: {setting.default_words}.",
    )


def _setting_option(name: str, form: Form, short: str | None = None) -> click.Option:
    spelled = flag_name(name) + (f"/{flag_name('no_' + name)}" if form.placeholder is None else "")
    words = [spelled, name] if short is None else [short, spelled, name]
    return click.Option(words, metavar=form.placeholder, default=None, multiple=form.is_list)
