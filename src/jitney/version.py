"""Which jitney this is, and how it gets an extra. Called at start-up, on any thread.

An installed package has metadata. A source tree without them has its version in `pyproject.toml`.
"""

import json
import tomllib
from importlib import metadata
from pathlib import Path
from shlex import quote
from urllib.parse import urlsplit
from urllib.request import url2pathname

UNKNOWN = "0+unknown"
"""For a copy of the package without either."""

_NAME = "jitney"
_PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def version(distribution: str = _NAME, project: Path = _PROJECT) -> str:
    """The version of the installed distribution, else that of the source tree."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return _source_version(project)


def install_line(extra: str, project: Path = _PROJECT, distribution: str = _NAME) -> str:
    """The command that adds an extra to what runs: a clone, a package that was installed from a
    clone or a file, or one of an index."""
    if project.is_file():
        return f"pip install -e {quote(f'{project.parent}[{extra}]')}"
    return f"pip install {quote(f'{_origin(distribution)}[{extra}]')}"


def _origin(distribution: str) -> str:
    """Where pip got the package from: a path that is still there, or its name."""
    try:
        record = metadata.distribution(distribution).read_text("direct_url.json") or "{}"
        url = urlsplit(json.loads(record).get("url", ""))
    except (metadata.PackageNotFoundError, ValueError, AttributeError):
        return distribution
    path = url2pathname(url.path)
    return path if url.scheme == "file" and Path(path).exists() else distribution


def _source_version(project: Path) -> str:
    try:
        with project.open("rb") as file:
            project_table = tomllib.load(file).get("project", {})
    except (OSError, ValueError):
        return UNKNOWN
    # A copy of the package may be in the source tree of another project.
    if not isinstance(project_table, dict) or project_table.get("name") != _NAME:
        return UNKNOWN
    return f"{project_table.get('version', '0')}+source"
