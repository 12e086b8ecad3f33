"""Reads a file of settings or of keys into plain keys and values. Its ending says YAML or TOML.

Refuses other files in one sentence. Knows nothing of the settings. Called at start-up, from one
thread.

Tests: tests/unit/config/test_resolve.py.
"""

import tomllib
from pathlib import Path
from typing import Any

import yaml

from jitney.errors import ConfigError

FILE_BYTES_MAX = 65_536
"""A settings file is a page of text; a larger file is the wrong one."""

KEY_CHARACTERS_MAX = 40
"""How much of a key a message repeats."""


def load(file: Path, kind: str = "settings") -> dict[str, object]:
    """The keys and values at the top of the file; an empty file has none.

    `kind` is the file's name in error messages.
    """
    text = _read(file, kind)
    ending = file.suffix.lower()
    if ending not in (".yaml", ".yml", ".toml"):
        raise ConfigError(
            f"The {kind} file {file} must end in .yaml, .yml or .toml, so that its form is known."
        )
    try:
        tree = tomllib.loads(text) if ending == ".toml" else _parse_yaml(text)
    except RecursionError:
        raise ConfigError(f"The {kind} file {file} is nested too deeply.") from None
    except (yaml.YAMLError, ValueError) as error:
        form = "TOML" if ending == ".toml" else "YAML"
        reason = _reason(error)
        raise ConfigError(f"The {kind} file {file} is not valid {form}: {reason[:200]}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise ConfigError(f"The {kind} file {file} must hold names with values.")
    return tree


def _reason(error: Exception) -> str:
    """The mistake and its place, in one line."""
    mark = getattr(error, "problem_mark", None)
    if isinstance(error, yaml.MarkedYAMLError) and mark is not None:
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}."
    return " ".join(str(error).split())


def _read(file: Path, kind: str) -> str:
    if file.is_dir():
        raise ConfigError(f"{file} is a folder; name the {kind} file in it.")
    if not file.is_file():
        raise ConfigError(f"There is no {kind} file {file}.")
    try:
        with file.open("rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"The {kind} file {file} cannot be read: {error.strerror}.") from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(
            f"The {kind} file {file} is larger than {FILE_BYTES_MAX} bytes; "
            "it does not look like one."
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"The {kind} file {file} is not text in UTF-8.") from None


def _parse_yaml(text: str) -> Any:  # Any: YAML holds anything
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is not None:
        _refuse_twice(node, (), set())
    return yaml.safe_load(text)


def _refuse_twice(node: yaml.Node, path: tuple[str, ...], seen: set[int]) -> None:
    """Refuse a key that a table has twice: the library would silently keep the last."""
    # Aliases lead to the same node again, perhaps from inside it.
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _refuse_twice(each, path, seen)
    if not isinstance(node, yaml.MappingNode):
        return
    names = set[str]()
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        within = (*path, name[:KEY_CHARACTERS_MAX])
        if isinstance(key, yaml.ScalarNode) and name in names:
            line = key.start_mark.line + 1
            raise ValueError(f"line {line}: {'.'.join(within)} is given twice; leave one out.")
        names.add(name)
        _refuse_twice(value, within, seen)
