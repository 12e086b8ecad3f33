"""The environment of the process, the addresses of this machine, and folders: cache and jobs.

The only place that uses `os.environ`. Called at start-up, from one thread.
"""

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path


def environment() -> dict[str, str]:
    """A copy of the environment."""
    return dict(os.environ)


def keep_children_off_current_folder() -> None:
    """Let no Python that this process starts import files of the current folder.

    Where we start one ourselves, it gets -P. The pools of the standard library have no such option.
    """
    os.environ["PYTHONSAFEPATH"] = "1"


def add_to_environment(values: Mapping[str, str]) -> None:
    """Give these to libraries that are loaded, and to processes that are started, from now on."""
    os.environ.update(values)


def is_local(host: str) -> bool:
    """Whether an address is that of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def cache_folder(environ: Mapping[str, str]) -> Path:
    """JITNEY_CACHE, else jitney in XDG_CACHE_HOME, else in ~/.cache. It may not exist yet."""
    for variable in ("JITNEY_CACHE", "JITNEY_CACHE_DIR"):
        if environ.get(variable, "").strip():
            return Path(environ[variable]).expanduser()
    return _base_folder(environ.get("XDG_CACHE_HOME", ""), "~/.cache") / "jitney"


def jobs_folder(environ: Mapping[str, str]) -> Path:
    """jitney/jobs in XDG_STATE_HOME, else in ~/.local/state. It may not exist yet.

    Not in the cache: what is there may be removed at any time, and work is not made again.
    """
    return _base_folder(environ.get("XDG_STATE_HOME", ""), "~/.local/state") / "jitney" / "jobs"


def _base_folder(given: str, usual: str) -> Path:
    # The XDG specification says that relative paths are ignored.
    return Path(given) if Path(given).is_absolute() else Path(usual).expanduser()
