"""What a setting is: its names, form, group, help and default.

`setting` defines one as a field of a frozen dataclass; `defined_settings` lists them. Pure; any
thread.

Tests: tests/unit/cli/test_flags.py and tests/unit/config/test_settings.py.
"""

import ast
import inspect
import itertools
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from functools import cache
from typing import Any, get_type_hints

from jitney.config.forms import Form, form_of, read_named

DEFAULT = "default"
"""The source of a value that nobody set."""


class Group(StrEnum):
    """The sections of the reference page, in its order."""

    MODEL = "Model and backend"
    BATCH = "Batch"
    MEMORY = "Memory"
    SCHEDULING = "Scheduling"
    QUEUE = "Queue and time limits"
    OTHER = "Other"
    SERVER = "Server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting."""

    name: str
    owner: Any  # Any: a class, which mypy does not take for hashable
    """The dataclass with its field."""
    group: Group
    form: Form
    default: object
    """None also means that the default is computed later; see `default_text`."""
    default_text: str | None = None
    """The default in words, if it is computed later."""
    is_secret: bool = False
    """Whether its value is never shown."""
    short: str | None = None
    """The short flag that llama-server has for it, for people who know that."""

    @property
    def help(self) -> str:
        """What it means: the text below its field."""
        return field_texts(self.owner).get(self.name, "")

    @property
    def default_words(self) -> str:
        """The default, in words or as a person would write it."""
        return self.default_text or self.form.show(self.default)

    def read(self, value: object, where: str = "") -> object:
        """The value, checked and converted. Raises a ConfigError that names the place."""
        return read_named(self.form, self.name, value, where, is_secret=self.is_secret)


def setting(
    group: Group,
    *,
    default_text: str | None = None,
    is_secret: bool = False,
    short: str | None = None,
    **default: Any,
) -> Any:  # Any: of the type of the field
    """A field that defines a setting; `default` or `default_factory` as for any field.

    Without either, the default is None. The annotation of the field has the form of its values, and
    the text below it is its help.
    """
    about = {"group": group, "default_text": default_text, "short": short}
    return field(metadata={**about, "is_secret": is_secret}, **(default or {"default": None}))


@cache
def defined_settings(kind: type[Any]) -> tuple[Setting, ...]:
    """All settings that a dataclass defines, in order."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        Setting(
            name=each.name,
            owner=kind,
            form=form_of(hints[each.name]),
            default=None if each.default is MISSING else each.default,
            **each.metadata,
        )
        for each in fields(kind)
    )


@cache
def field_texts(kind: type[Any]) -> Mapping[str, str]:
    """The text below each field of a class, on one line.

    Python does not keep these texts, so they are read from the source; none where there is none.
    """
    try:
        (tree,) = ast.parse(inspect.getsource(kind)).body
    except (OSError, TypeError):
        return {}
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in itertools.pairwise(tree.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def flag_name(name: str) -> str:
    """The flag of a setting or of an alias."""
    return "--" + name.replace("_", "-")


def variable_name(name: str) -> str:
    """The environment variable of a setting or of an alias."""
    return "JITNEY_" + name.upper()
