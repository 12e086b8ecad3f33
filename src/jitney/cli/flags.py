"""Makes the flags of a command from its dataclass and from the settings.

A command's own options are the fields of a dataclass, each defined by `option` or `argument`.
Every setting of `jitney.config` is a flag as well. Imports nothing heavy.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self  # Any: options are of every type

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
from jitney.config.foreign_names import FOREIGN_NAMES, ForeignName
from jitney.config.forms import SWITCH, Form
from jitney.errors import ConfigError

ARGUMENTS = "Arguments"
COMMAND = "Command"


@dataclass(frozen=True, slots=True)
class Flag:
    """One option or argument: what click parses, its help, and the heading of the help.

    Without a help it works but is not listed.
    """

    parameter: click.Parameter
    panel: str = ""
    help: str = ""

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
    """One command. `settings` names those that it uses; None is all of the engine's.

    `call` is the function of `module` that runs it. With `serves` it also takes the settings of the
    server. `shorts` are short flags that another system has for a setting. `is_default` marks the
    command that a group's name alone means.
    """

    path: tuple[str, ...]
    module: str
    call: str = "call"
    options: type[Any]
    about: str
    examples: tuple[str, ...]
    settings: tuple[str, ...] | None = None
    serves: bool = False
    shorts: tuple[tuple[str, str], ...] = ()
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class Given:
    """Settings from the command line, for `resolve`; None means not given."""

    flags: Mapping[str, object]
    config: Path | None

    def with_model(self, model: str | None) -> Self:
        """The same, with the model that was given without a flag, if any."""
        if model is None:
            return self
        if self.flags.get("model") is not None:
            raise ConfigError("The model is given twice, with --model and without; leave one out.")
        return replace(self, flags={**self.flags, "model": model})


@dataclass(frozen=True, slots=True)
class Parsed:
    """What followed a command: its own options, and settings."""

    options: Any
    given: Given
    wants_help: bool


def option(panel: str, help: str, default: object = None, **how: Any) -> Any:
    """A field of a command's options that is a flag; `how` goes to click.

    `spelled` is its spelling, if that is not the name of the field.
    """
    return field(default=default, metadata={"panel": panel, "help": help, **how})


def argument(metavar: str, help: str, default: object = None, **how: Any) -> Any:
    """A field of a command's options that is an argument by position; `how` goes to click."""
    return option(ARGUMENTS, help, default, metavar=metavar, required=False, **how)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """The options of every command."""

    config: Path | None = option(
        COMMAND,
        "A YAML or TOML file with settings; the environment and flags are stronger.",
        metavar="FILE",
        type=Path,
    )
    debug: bool = option(COMMAND, "Show the traceback of a failure.", False)
    help: bool = option(COMMAND, "Show this help and exit.", False)


def resolved(given: Given) -> Resolved:
    """The settings in force. Raises ConfigError."""
    return resolve(given.flags, given.config, environment())


def own_flags(kind: type[Any]) -> list[Flag]:
    """One flag for each field of a command's options."""
    made = []
    for each in fields(kind):
        how = {**each.metadata, "default": each.default}
        panel, help = how.pop("panel"), how.pop("help")
        spelled = how.pop("spelled", ("--" + each.name.replace("_", "-"),))
        parameter: click.Parameter
        if panel == ARGUMENTS:
            parameter = click.Argument([each.name], **how)
        else:
            is_flag = isinstance(each.default, bool)
            parameter = click.Option([*spelled, each.name], is_flag=is_flag or None, **how)
        if isinstance(each.default, int) and not isinstance(each.default, bool):
            help = f"{help} Default: {each.default}."
        made.append(Flag(parameter, panel, help))
    return made


def setting_flags(
    only: tuple[str, ...] | None = None,
    *,
    serves: bool = False,
    shorts: tuple[tuple[str, str], ...] = (),
) -> list[Flag]:
    """One flag for each setting, and one without a help for each word of another system."""
    made = [
        _setting_flag(setting, dict(shorts).get(setting.name))
        for setting in (*(known_serve_settings() if serves else ()), *known_settings())
        if only is None or setting.name in only
    ]
    names = [flag.name for flag in made]
    words = [
        word
        for word in FOREIGN_NAMES
        if word.setting in names or (only is None and not word.setting)
    ]
    return [*made, *map(_foreign_flag, words)]


def verb_flags(verb: Verb) -> list[Flag]:
    """All flags of a command, in the order of its help."""
    settings = setting_flags(verb.settings, serves=verb.serves, shorts=verb.shorts)
    return [*own_flags(verb.options), *own_flags(CommonOptions), *settings]


def parse(verb: Verb, words: list[str]) -> Parsed:
    """Read what follows a command. Raises ConfigError, or an error of click."""
    place = " ".join(("jitney", *verb.path))
    flags = verb_flags(verb)
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
    options = verb.options(**{each.name: values.pop(each.name) for each in fields(verb.options)})
    common = CommonOptions(**{each.name: values.pop(each.name) for each in fields(CommonOptions)})
    # Click gives an empty tuple for a repeatable option that was not given.
    given = {
        name: (list(value) or None) if isinstance(value, tuple) else value
        for name, value in values.items()
    }
    return Parsed(options, Given(given, common.config), common.help)


def no_option(word: str, place: str, known: Iterable[str]) -> ConfigError:
    """The error for an unknown option, with the nearest known one."""
    close = nearest(word, known)
    hint = f"{place} --help lists them" if close is None else f"the nearest is {close}"
    return ConfigError(f"There is no option {word} of {place}; {hint}.")


def _setting_flag(setting: Setting, short: str | None) -> Flag:
    metavar = "KEY,..." if setting.is_secret else setting.form.placeholder
    return Flag(
        _parameter(setting.name, setting.form, metavar, short),
        f"Settings: {setting.group.value.lower()}",
        f"{setting.help} Default: {setting.default_shown}.",
    )


def _foreign_flag(word: ForeignName) -> Flag:
    """A word of another system: it is on the reference page, not in the help."""
    forms = {each.name: each.form for each in (*known_settings(), *known_serve_settings())}
    form = word.meaning.form if word.meaning else forms[word.setting or ""]
    return Flag(_parameter(word.name, form))


def _parameter(
    name: str, form: Form, metavar: str | None = None, short: str | None = None
) -> click.Option:
    flag = name.replace("_", "-")
    spelled = f"--{flag}/--no-{flag}" if form is SWITCH else f"--{flag}"
    return click.Option(
        [spelled, name] if short is None else [short, spelled, name],
        metavar=metavar,
        default=None,
        multiple=form.is_list,
    )
