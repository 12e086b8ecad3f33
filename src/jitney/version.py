"""Which jitney this is. Called at start-up, on any thread.

An installed one is asked for its metadata. A source tree that was never installed has none, and
says in its `pyproject.toml` what it would be installed as.
"""

import tomllib
from importlib import metadata
from pathlib import Path

UNKNOWN = "0+unknown"
"""For a copy of the package alone, with neither."""

_NAME = "jitney"
_PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def version(distribution: str = _NAME, project: Path = _PROJECT) -> str:
    """The version of the installed distribution, else that of the source tree."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return _source_version(project)


def _source_version(project: Path) -> str:
    try:
        with project.open("rb") as file:
            told = tomllib.load(file).get("project", {})
    except (OSError, ValueError):
        return UNKNOWN
    # A copy of the package may lie in the tree of another project.
    if not isinstance(told, dict) or told.get("name") != _NAME:
        return UNKNOWN
    return f"{told.get('version', '0')}+source"
