"""A bug that can be put into the source: what it is, who must find it, and how it is put in."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """One replacement in one file of the package."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Plant:
    """A bug: what it is, who must find it, and how it is put in."""

    name: str
    checker: str
    changes: tuple[Change, ...]
    simulation: str = "engine"
    """Where it is hunted: with one engine, or with a fleet of them."""


Table = dict[tuple[str, str], list[tuple[str, str, str]]]
"""Of each bug what it is and who must find it, and its replacements."""


def plants(table: Table) -> tuple[Plant, ...]:
    """The bugs of a table."""
    return tuple(planted(*key, *changes) for key, changes in table.items())


def planted(
    name: str, checker: str, *changes: tuple[str, str, str], simulation: str = "engine"
) -> Plant:
    """A bug made of these replacements: file, old text, new text."""
    return Plant(name, checker, tuple(Change(*change) for change in changes), simulation)
