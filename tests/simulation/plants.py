"""Bugs that are put into the source on purpose, each with the checker that must find it.

The first eight are those of the pseudo-code that the project grew from; the others are mistakes
that continuous batching invites. They stand in `plants.txt`: `# what it is (who must find it)`, and
for each change `@ file`, its lines with `-` before and with `+` after it. What is taken out must
stand in its file exactly once; an empty last line is a line end. Where an assertion of the core
would stop the bug on the spot, the plant takes that away as well, so that the checker has to find
it from outside.
"""

import re
from dataclasses import dataclass
from pathlib import Path

FLEET = "the fleet"


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


def _parts(text: str, mark: str) -> tuple[str, list[str]]:
    """What stands before the first line with this mark, and what follows each."""
    head, *others = re.split(f"^{mark} ", text, flags=re.MULTILINE)
    return head.strip(), others


def _plant(text: str, section: str) -> Plant:
    head, changes = _parts(text, "@")
    name, _, checker = head.rstrip(")").rpartition(" (")
    simulation = "fleet" if section == FLEET else "engine"
    return Plant(name, checker, tuple(map(_change, changes)), simulation)


def _change(text: str) -> Change:
    file, *lines = text.splitlines()
    old, new = ("\n".join(each[1:] for each in lines if each[:1] == sign) for sign in "-+")
    return Change(file, old, new)


def _read() -> dict[str, tuple[Plant, ...]]:
    """The bugs by the section of the file that they stand in."""
    _, sections = _parts(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"), "==")
    found = {}
    for section in sections:
        title, bugs = _parts(section, "#")
        found[title] = tuple(_plant(each, title) for each in bugs)
    return found


_OF = _read()
OF_THE_PSEUDO_CODE = _OF["the pseudo code"]
PLANTS = tuple(plant for each in _OF.values() for plant in each)
