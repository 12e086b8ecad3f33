"""Who may reach a Ray: one that is started here is for this machine and for this user only.

Whoever has Ray's token and reaches its ports, or can write to its folder, runs code as its user.
Ray's processes take the token from their environment, which other users cannot read; in a file or
on a command line they could. Called at start-up, before Ray is imported.
"""

import logging
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from jitney.errors import ConfigError

_log = logging.getLogger("jitney.server")

PLACE_CHARACTERS_MAX = 20
"""With a longer one, as macOS and clusters have it, the path of Ray's sockets is longer than the
107 characters that a socket may have."""

OTHERS_READ = 0o004
OTHERS_PASS = 0o001


def closed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the environment must have for a Ray that nobody else can use; makes its folder.

    A token of the user is kept. One that is made here is made for each start, and is not written.
    Raises ConfigError.
    """
    folder = _new_folder(environ)
    _log.info("Ray keeps its logs in %s/ray/session_latest/logs", folder)
    values = {
        # Ray's default on macOS, which is the only way to have all of its ports on loopback.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        # Ray lets everybody write to its folder. So it is in one of ours.
        "RAY_TMPDIR": folder,
        # A port less, which asks for no token.
        "RAY_enable_metrics_collection": environ.get("RAY_enable_metrics_collection", "0"),
        # Ray's workers stand back by 15. Beside a busy program a replica, and more so the processes
        # of its templates and schemas, would hardly run.
        "RAY_worker_niceness": environ.get("RAY_worker_niceness", "0"),
    }
    if not _has(environ, "RAY_AUTH_TOKEN") and not _has(environ, "RAY_AUTH_TOKEN_PATH"):
        values["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    return values


def warn_of_open_token(environ: Mapping[str, str], address: str | None) -> None:
    """Say that every user of this machine can read the token with which this Ray is used."""
    mode = environ.get("RAY_AUTH_MODE", "token" if address == "auto" else "disabled")
    if mode.lower() != "token" or _has(environ, "RAY_AUTH_TOKEN"):
        return
    file = Path(environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if _is_open(file):
        _log.warning(
            "Every user of this machine can read Ray's token in %s, and with it run code as the "
            "user of this server; `chmod 600 %s` ends that, and then make a new token",
            file,
            file,
        )


def _new_folder(environ: Mapping[str, str]) -> str:
    usual = tempfile.gettempdir()
    if len(usual) > PLACE_CHARACTERS_MAX:
        usual = "/tmp"
    place = environ.get("RAY_TMPDIR") or usual
    try:
        return tempfile.mkdtemp(prefix="jitney-", dir=place)
    except OSError as error:
        raise ConfigError(
            f"Ray's folder cannot be made in {place} ({error.strerror}); set RAY_TMPDIR to another."
        ) from error


def _has(environ: Mapping[str, str], name: str) -> bool:
    return bool(environ.get(name, "").strip())


def _is_open(file: Path) -> bool:
    """Whether all users can read this file: they need a way to it as well."""
    try:
        path = file.resolve(strict=True)
        ways = [each.stat().st_mode & OTHERS_PASS for each in path.parents]
        return all(ways) and bool(path.stat().st_mode & OTHERS_READ)
    except OSError:
        return False
