"""Command-line options from definitions: a verb's dataclass, and every setting of the engine.

typer reads options off a function's signature. Here that signature is put together from the
fields of a dataclass and from the settings that `jitney.config` knows, so that no list of flags
is written by hand. Called once at start-up; imports nothing heavy.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, get_type_hints  # Any: options are of every type

import typer
from typer.models import ParameterInfo

from jitney.config import (
    Known,
    Resolved,
    default_text,
    environment,
    known_serve_settings,
    known_settings,
    resolve,
)
from jitney.config.forms import (
    Choice,
    Form,
    Listed,
    Location,
    ModelPlace,
    Number,
    Origins,
    Size,
    Switch,
    Whole,
)
from jitney.config.policies import PolicyForm
from jitney.config.words import WORDS, Word

COMMAND = "Command"
SETTINGS = "Settings: "
METAVARS: Mapping[type, str] = MappingProxyType(
    {
        Whole: "N",
        Number: "X",
        Size: "BYTES",
        Location: "PATH",
        ModelPlace: "MODEL",
        Listed: "NAME,...",
        Origins: "ORIGIN,...",
    }
)
"""What stands for a value in the help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One command. `settings` names those that matter to it; None is all of the engine's.

    With `serves` it takes those of the server as well. `shorts` are short names that another
    system has for a setting. One of a group may be its default: what the group's word alone means.
    """

    path: tuple[str, ...]
    module: str
    options: type[Any]
    about: str
    examples: tuple[str, ...]
    settings: tuple[str, ...] | None = None
    serves: bool = False
    shorts: tuple[tuple[str, str], ...] = ()
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class Given:
    """Settings as the command line gave them, for `resolve`; None is not given."""

    flags: Mapping[str, str | bool | list[str] | None]
    config: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """What every verb takes."""

    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="A YAML or TOML file with settings; the environment and flags are stronger.",
            rich_help_panel=COMMAND,
        ),
    ] = None
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            help="Show the traceback of a failure.",
            rich_help_panel=COMMAND,
        ),
    ] = False
    help: Annotated[
        bool, typer.Option("--help", help="Show this and leave.", rich_help_panel=COMMAND)
    ] = False


@dataclass(frozen=True, slots=True)
class Flag:
    """One parameter of a command: its name in Python, its type, and what typer knows of it."""

    name: str
    kind: Any
    option: ParameterInfo
    default: object

    def parameter(self) -> inspect.Parameter:
        """The same as a parameter of a function."""
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=self.default,
            annotation=Annotated[self.kind, self.option],
        )


def resolved(given: Given) -> Resolved:
    """The settings in force. Raises ConfigError."""
    return resolve(given.flags, given.config, environment())


def own_flags(kind: type[Any]) -> list[Flag]:
    """One for each field of a dataclass whose fields are annotated for typer."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        Flag(
            each.name,
            hints[each.name].__origin__,
            hints[each.name].__metadata__[0],
            None if each.default is MISSING else each.default,
        )
        for each in fields(kind)
    ]


def setting_flags(
    only: tuple[str, ...] | None = None,
    *,
    serves: bool = False,
    shorts: tuple[tuple[str, str], ...] = (),
) -> list[Flag]:
    """One for each setting, and a hidden one for each word of others that is understood."""
    made = []
    for known in (*(known_serve_settings() if serves else ()), *known_settings()):
        if only is None or known.name in only:
            made.append(_setting(known, dict(shorts).get(known.name)))
    names = [flag.name for flag in made]
    words = [word for word in WORDS if word.setting in names or (only is None and not word.setting)]
    return [*made, *map(_other_name, words)]


def verb_flags(verb: Verb) -> list[Flag]:
    """Everything that can be written after the verb, in the order of its help."""
    return [*own_flags(verb.options), *own_flags(CommonOptions), *_setting_flags(verb)]


def _setting_flags(verb: Verb) -> list[Flag]:
    return setting_flags(verb.settings, serves=verb.serves, shorts=verb.shorts)


def command_of(
    verb: Verb, body: Callable[[Any, Given], int], show_help: Callable[[], None]
) -> Callable[..., int]:
    """A function for typer with an option for each flag of the verb, which calls `body`."""
    own = {flag.name for flag in own_flags(verb.options)}
    settings = {flag.name for flag in _setting_flags(verb)}
    assert not own & settings, f"{verb.path} has an option with the name of a setting"

    def call(**values: Any) -> int:  # Any: typer has made them what the signature says
        if values["help"]:
            show_help()
            return 0
        options = verb.options(**{name: values[name] for name in own})
        # typer has an empty list for an option that may come several times and did not come.
        flags = {name: None if values[name] == [] else values[name] for name in settings}
        return body(options, Given(flags, values["config"]))

    signature = inspect.Signature([flag.parameter() for flag in verb_flags(verb)])
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {}
    return call


def _setting(known: Known, short: str | None = None) -> Flag:
    spelled = known.flag if known.flag_off is None else f"{known.flag}/{known.flag_off}"
    option = typer.Option(
        *([short, spelled] if short is not None else [spelled]),
        metavar="KEY,..." if known.option.is_secret else _metavar(known.option.form),
        help=f"{known.option.help} Default: {default_text(known)}.",
        rich_help_panel=SETTINGS + known.option.group.value.lower(),
    )
    return Flag(known.name, _kind(known.option.form) | None, option, None)


def _kind(form: Form) -> Any:  # Any: a type, or a list of one
    if isinstance(form, Switch):
        return bool
    return list[str] if isinstance(form, Listed | Origins) else str


def _other_name(word: Word) -> Flag:
    """A word of another system: understood, told about in the reference, not in the help."""
    known = {each.name: each for each in (*known_settings(), *known_serve_settings())}
    form = word.meaning.form if word.meaning else known[word.setting or ""].option.form
    flag = word.name.replace("_", "-")
    spelled = f"--{flag}/--no-{flag}" if isinstance(form, Switch) else f"--{flag}"
    return Flag(word.name, _kind(form) | None, typer.Option(spelled, hidden=True), None)


def _metavar(form: Form) -> str | None:
    if isinstance(form, Switch):
        return None
    if isinstance(form, Choice):
        return "|".join(form.words)
    if isinstance(form, PolicyForm):
        return "|".join((*form.words, "MODULE:NAME"))
    return METAVARS.get(type(form), "VALUE")
