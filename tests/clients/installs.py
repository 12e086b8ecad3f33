"""Virtual environments and node packages of the clients, made once and kept in the cache folder.

A folder is named after what is in it, and has a mark when it is whole: one that lacks it is made
again. The only part that needs a package registry, with the settings that pip and npm have here.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests.clients.catalog import HERE, Agent, PythonClient

INSTALL_S_MAX = 900
MARK = ".whole"


class InstallFailed(Exception):
    """Packages could not be installed; the message has the end of what the tool said."""


def python_of(folder: Path, client: PythonClient) -> Path:
    """The interpreter of the client's virtual environment."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = folder / _name(client.name, version, *client.packages)
    python = home / "bin" / "python"
    if _is_missing(home):
        _run([sys.executable, "-m", "venv", str(home)])
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
        _run([*pip, "install", "--quiet", *client.packages])
        (home / MARK).touch()
    return python


def node_project(folder: Path) -> Path:
    """A folder with the packages of `node/package.json`, and our scripts beside them."""
    manifest = (HERE / "node" / "package.json").read_text(encoding="utf-8")
    home = folder / _name("node", manifest)
    if _is_missing(home):
        home.mkdir(parents=True)
        (home / "package.json").write_text(manifest, encoding="utf-8")
        _run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], home)
        (home / MARK).touch()
    # Node looks for packages above the script, and these must not be in the repository.
    for script in (HERE / "node").glob("*.mjs"):
        shutil.copy(script, home)
    return home


def program_of(folder: Path, agent: Agent) -> Path:
    """The program of an agent. Its own script fetches nothing: it puts the program in its place."""
    home = folder / _name(agent.name, agent.version)
    if _is_missing(home):
        home.mkdir(parents=True)
        package = f"{agent.package}@{agent.version}"
        _run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(home), package])
        script = home / "node_modules" / agent.package / "install.cjs"
        if script.exists():
            _run(["node", str(script)])
        (home / MARK).touch()
    return home / "node_modules" / agent.program


def _name(name: str, *content: str) -> str:
    return f"{name}-{hashlib.sha256(' '.join(content).encode()).hexdigest()[:10]}"


def _is_missing(home: Path) -> bool:
    """Whether there is work to do; what an earlier run left unfinished is removed."""
    if (home / MARK).exists():
        return False
    shutil.rmtree(home, ignore_errors=True)
    return True


def _run(command: list[str], folder: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallFailed(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        raise InstallFailed((done.stderr or done.stdout).strip()[-2000:])
