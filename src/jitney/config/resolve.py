"""Finds the value of each setting: flags win over the environment, a file and the defaults.

`resolve` is the entry point. It refuses unknown names and bad values, and says where it found them.
Called at start-up, from one thread; reads one file and nothing else.
"""

import difflib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from jitney.config import file as settings_file
from jitney.config.combinations import refuse_conflicts
from jitney.config.definitions import DEFAULT, flag_name, variable_name
from jitney.config.foreign_names import FOREIGN_NAMES, PLUGINS, TABLES, ForeignName
from jitney.config.forms import read_named, value_text
from jitney.config.machine import cache_folder, jobs_folder
from jitney.config.settings import ServeSettings, Settings, known_serve_settings, known_settings
from jitney.errors import ConfigError

_log = logging.getLogger("jitney")

SPELLED_MAX = 160
"""How much of an unknown name a message repeats; all tables together have 54 characters."""

PART_CHARACTERS_MIN = 3
"""A word of at least so many letters is near to a known word that contains it."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """All settings, each with its source in words: 'default', 'file jitney.yaml', ..."""

    settings: Settings
    serving: ServeSettings
    sources: Mapping[str, str]

    def given(self) -> dict[str, Any]:  # Any: of every setting's type
        """The engine's settings that are not defaults, by name."""
        names = [each.name for each in known_settings() if self.sources[each.name] != DEFAULT]
        return {name: getattr(self.settings, name) for name in names}


def for_serving(resolved: Resolved) -> Settings:
    """Run the backend in its own process by default: a crash of native code must not end us."""
    if resolved.sources["backend_process"] == DEFAULT:
        return replace(resolved.settings, backend_process=True)
    return resolved.settings


@dataclass(frozen=True, slots=True)
class _Assignment:
    """A value as it was written, before it is checked."""

    name: str
    """A setting, or a word of another system."""
    value: object
    source: str
    is_meaning: bool = False
    """Whether it is the meaning of another system's word, and not the written value."""
    is_above: bool = False
    """Whether it stands above other values in the same source."""
    origin: str = ""
    """The system whose word it was, in words."""


def resolve(
    flags: Mapping[str, object],
    file: Path | None,
    environ: Mapping[str, str],
    *,
    given_as: Literal["flag", "argument", "key"] = "flag",
    assigned: Sequence[str] = (),
) -> Resolved:
    """The settings in force. A flag that is None and an empty variable do not count.

    `given_as` is what messages call the flags: arguments of Python, which set the engine only, or
    keys of an application on Ray Serve. `assigned` are `name=value` words of --set.
    """
    written = {} if file is None else settings_file.load(file)
    # All names are checked before any value.
    layers = (
        list(_from_table(written, f"file {file}", (), TABLES)),
        list(_from_environment(environ)),
        [*_from_flags(flags, given_as), *_from_assigned(assigned)],
    )
    server = {each.name: each for each in known_serve_settings()}
    known = {each.name: each for each in known_settings()} | server
    values: dict[str, Any] = {}  # Any: of every setting's type
    sources = dict.fromkeys(known, DEFAULT)
    for layer in layers:
        found: dict[str, tuple[_Assignment, object]] = {}
        for assignment in sorted(_translate(layer), key=lambda each: not each.is_above):
            value = known[assignment.name].read(assignment.value, f" in {assignment.source}")
            first, other = found.setdefault(assignment.name, (assignment, value))
            if first is not assignment and not first.is_above:
                _refuse_twice(first, assignment, is_equal=other == value)
        values |= {name: value for name, (_, value) in found.items()}
        sources |= {name: first.source for name, (first, _) in found.items()}
    served = {name: values.pop(name) for name in server if name in values}
    served.setdefault("jobs_dir", jobs_folder(environ))
    is_chunk_given = "prefill_chunk" in values
    defaults = {each.name: each.default for each in known_settings()}
    values = {**defaults, "cache_dir": cache_folder(environ), **values}
    # Only the default chunk is lowered to the budget; a given one that is too large is refused.
    if not is_chunk_given:
        values["prefill_chunk"] = min(values["prefill_chunk"], values["max_num_batched_tokens"])
    refuse_conflicts(values, sources)
    return Resolved(Settings(**values), ServeSettings(**served), MappingProxyType(sources))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like this one; None if none is near."""
    lowered = word.lower()
    found = [each for each in sorted(known) if _is_near(lowered.strip("-"), each.strip("-"))]
    return max(
        found,
        key=lambda each: difflib.SequenceMatcher(None, lowered, each).ratio(),
        default=None,
    )


def _is_near(word: str, known: str) -> bool:
    """Whether `word` is a part of `known`, or at most a third of the letters differ."""
    if len(word) >= PART_CHARACTERS_MIN and word in known:
        return True
    blocks = difflib.SequenceMatcher(None, word, known).get_matching_blocks()
    longer = max(len(word), len(known))
    return longer - sum(block.size for block in blocks) <= max(1, longer // 3)


def _known_names(given_as: str = "flag") -> list[str]:
    """All known names, ours and those of other systems; from Python, the engine's only."""
    served = () if given_as == "argument" else known_serve_settings()
    settings = [known.name for known in (*known_settings(), *served)]
    words = [
        word.name for word in FOREIGN_NAMES if word.setting is None or word.setting in settings
    ]
    return [*settings, *words]


def _from_table(
    table: Mapping[str, object], source: str, path: tuple[str, ...], inner: tuple[str, ...]
) -> Iterator[_Assignment]:
    """The values in a table of a file, and in the tables inside it."""
    for key, value in table.items():
        within = (*path, str(key))
        spelled = ".".join(within)
        name = _normalise(str(key))
        if name not in inner:
            name = _known_name(name, spelled, source, _known_names(), tables=TABLES)
            yield _Assignment(name, value, source if spelled == name else f"{source}: {spelled}")
        elif isinstance(value, dict | None):
            if name in PLUGINS:
                yield _Assignment("backend", name, f"{source}: {spelled}", is_meaning=True)
            yield from _from_table(value or {}, source, within, inner[inner.index(name) + 1 :])
        else:
            raise ConfigError(
                f"{spelled} is {value_text(value)} in {source}; expected a table of settings."
            )


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Assignment]:
    names = _known_names()
    spellings = {variable_name(each): each for each in names}
    for variable, value in sorted(environ.items()):
        if variable.startswith("JITNEY_") and value.strip():
            # Names are in lower case, so that one in upper case is unknown.
            key = spellings.get(variable, variable.removeprefix("JITNEY_").upper())
            name = _known_name(key, variable, "the environment", names, spell=variable_name)
            yield _Assignment(name, value, f"environment {variable}")


def _from_flags(flags: Mapping[str, object], given_as: str) -> Iterator[_Assignment]:
    names = _known_names(given_as)
    spell = flag_name if given_as == "flag" else str
    for key, value in flags.items():
        if value is not None:
            name = _known_name(_normalise(key), spell(key), f"the {given_as}s", names, spell=spell)
            yield _Assignment(name, value, f"{given_as} {spell(key)}")


def _from_assigned(assigned: Sequence[str]) -> Iterator[_Assignment]:
    names = _known_names("argument")
    for word in assigned:
        key, separator, value = word.partition("=")
        if not separator:
            raise ConfigError(f"--set {word[:SPELLED_MAX]} has no value; expected NAME=VALUE.")
        name = _known_name(_normalise(key), key, "--set", names)
        yield _Assignment(name, value, f"flag --set {key}")


def _known_name(
    key: str,
    spelled: str,
    place: str,
    names: list[str],
    *,
    spell: Callable[[str], str] = str,
    tables: tuple[str, ...] = (),
) -> str:
    """The name, if it is known. Raises ConfigError with the nearest name or table."""
    if key in names:
        return key
    close = nearest(key, [*names, *tables])
    hint = "`jitney config show` lists all settings"
    served = {each.name: each.name for each in known_serve_settings()}
    served |= {word.name: served[word.setting] for word in FOREIGN_NAMES if word.setting in served}
    if key in served:
        hint = f"`jitney serve` has it as {flag_name(served[key])}"
    elif close is not None:
        hint = f"the nearest known one is {spell(close)}"
    raise ConfigError(f"Unknown setting {spelled[:SPELLED_MAX]} in {place}; {hint}.")


def _normalise(key: str) -> str:
    """A key in the spelling of our settings: lower case with _."""
    return key.lower().replace("-", "_")


def _translate(layer: list[_Assignment]) -> Iterator[_Assignment]:
    """The same values under our names; words that set nothing are left out."""
    words = {word.name: word for word in FOREIGN_NAMES}
    for assignment in layer:
        word = words.get(assignment.name)
        if word is None:
            yield assignment
        elif word.form is not None:
            yield from _meaning_of(word, assignment)
        else:
            assert word.setting is not None, f"{word.name} names a setting"
            yield replace(assignment, name=word.setting, origin=word.origin)


def _meaning_of(word: ForeignName, assignment: _Assignment) -> Iterator[_Assignment]:
    """The setting that a word and its value mean. Raises ConfigError if they mean none."""
    assert word.form is not None, f"{word.name} has values of its own"
    value = read_named(word.form, word.name, assignment.value, f" in {assignment.source}")
    values = dict(word.values)
    if word.note:
        _log.warning("%s (%s) has no effect: %s", word.name, assignment.source, word.note)
    elif value not in values and word.advice:
        found = f"{word.name} is {value_text(assignment.value)} in {assignment.source}"
        raise ConfigError(f"{found}, and {word.advice}.")
    elif value not in values:
        assert word.setting is not None, f"{word.name} has values of a setting"
        yield replace(assignment, name=word.setting, is_meaning=True)
    for name, meaning in values.get(value, {}).items():
        is_above = name != word.setting
        yield replace(assignment, name=name, value=meaning, is_meaning=True, is_above=is_above)


def _refuse_twice(first: _Assignment, second: _Assignment, *, is_equal: bool) -> None:
    """Refuse one setting under two names, unless another system's word means the same value."""
    both = (first, second)
    told = [each.source for each in both]
    if first.origin and second.origin:
        told = [f"{each.source} ({each.origin})" for each in both]
    places = " and ".join(dict.fromkeys(told))
    if not first.is_meaning and not second.is_meaning:
        raise ConfigError(
            f"{first.name} is given twice, under two of its names, in {places}; leave one out."
        )
    if not is_equal:
        raise ConfigError(
            f"{first.name} is {value_text(first.value)} by {first.source} and "
            f"{value_text(second.value)} by {second.source}; leave one of them out."
        )
