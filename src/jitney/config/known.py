"""What is known of each setting: its names, its form, its default; from the fields that define it.

Pure; any thread.
"""

from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, ClassVar, Protocol

from jitney.config.forms import Refused, Switch, value_text
from jitney.config.options import Option
from jitney.config.words import other_names
from jitney.errors import ConfigError


class Defined(Protocol):
    """A dataclass whose fields carry options."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]  # Any: of every setting's type


@dataclass(frozen=True, slots=True)
class Known:
    """One setting under all its names; what a command line needs to offer it as a flag."""

    name: str
    option: Option
    default: object
    """None also stands for a default that is worked out later; see `default_text`."""
    optional: bool
    """Whether none is a value."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Its names in other systems."""
        return other_names(self.name)

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def flag_off(self) -> str | None:
        """The flag that turns it off, when it is a switch."""
        is_switch = isinstance(self.option.form, Switch)
        return "--no-" + self.name.replace("_", "-") if is_switch else None

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return variable_name(self.name)

    @property
    def expected(self) -> str:
        """What a value looks like, in words."""
        return self.option.form.expected + (", or none" if self.optional else "")


def variable_name(name: str) -> str:
    """The environment variable of a setting or of an alias."""
    return "JITNEY_" + name.upper()


def known_fields(kind: type[Defined] | Defined) -> tuple[Known, ...]:
    """All settings that a dataclass defines, in its order."""
    return tuple(
        Known(
            each.name,
            each.metadata["option"],
            None if each.default is MISSING else each.default,
            optional=each.default is None,
        )
        for each in fields(kind)
    )


def read_again(settings: Defined) -> None:
    """Check each value of a new instance and put it into its form. Raises ConfigError."""
    for known in known_fields(settings):
        value = getattr(settings, known.name)
        if value is None and known.optional:
            continue
        try:
            object.__setattr__(settings, known.name, known.option.form.read(value))
        except Refused as refused:
            raise ConfigError(f"{known.name} is {value_text(value)}, {refused}.") from None
        except ValueError:
            raise ConfigError(
                f"{known.name} is {value_text(value)}; expected {known.expected}."
            ) from None
