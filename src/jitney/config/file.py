"""Reads a file of settings or of keys into plain keys and values. Its ending says YAML or TOML.

Refuses other files in one sentence. Knows nothing of the settings. Called at start-up, from one
thread.

Tests: tests/unit/config/test_resolve.py.
"""

import tomllib
from pathlib import Path
from typing import Any  # Any: the anchor, which is only passed on

import yaml

from jitney.errors import ConfigError

FILE_BYTES_MAX = 65_536
"""A settings file is a page of text; a larger file is the wrong one."""

KEY_CHARACTERS_MAX = 40
"""How much of a key a message repeats."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that a table has twice: the library would silently keep the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        names = set[str]()
        for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:
            if key.value in names:
                line, name = key.start_mark.line + 1, key.value[:KEY_CHARACTERS_MAX]
                raise ValueError(f"line {line}: {name} is given twice; leave one out.")
            names.add(key.value)
        return node


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
        tree = tomllib.loads(text) if ending == ".toml" else yaml.load(text, _Loader)
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
    if not file.exists():
        raise ConfigError(f"There is no {kind} file {file}.")
    if not file.is_file():
        raise ConfigError(f"{file} is no plain file; put the {kind} into one.")
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
