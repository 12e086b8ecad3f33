"""Tests of `jitney.version`: what a source tree without metadata says it is."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import jitney
from jitney.version import UNKNOWN, install_line, version

PROJECT = '[project]\nname = "jitney"\nversion = "7.8.9"\n'


@pytest.fixture
def uninstalled(tmp_path: Path) -> Path:
    """A source tree, and what the package needs without the metadata of the package itself."""
    source, packages = tmp_path / "tree" / "src", tmp_path / "packages"
    source.mkdir(parents=True)
    (source / "jitney").symlink_to(Path(jitney.__file__).parent)
    packages.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if "jitney" not in each.name:
            (packages / each.name).symlink_to(each)
    return tmp_path


def ran(folder: Path, program: str) -> str:
    """What a program prints that sees nothing of this installation but the folder's."""
    paths = [str(folder / "tree" / "src"), str(folder / "packages")]
    whole = f"import sys; sys.path[:0] = {paths!r}\n{program}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", whole],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_source_tree_without_metadata_tells_its_version(uninstalled: Path) -> None:
    """Guards whoever runs it uninstalled: it ended in a sentence about an unexpected failure."""
    (uninstalled / "tree" / "pyproject.toml").write_text(PROJECT)
    program = "from jitney.cli.main import main; sys.exit(main(['--version']))"
    assert ran(uninstalled, program) == "jitney 7.8.9+source"


def test_the_server_of_a_source_tree_without_metadata_is_made(uninstalled: Path) -> None:
    """Guards the same for what the server says of itself, in its answers and its metrics."""
    program = (
        "from jitney.server import application\n"
        "from jitney.server.openai import replies\n"
        "from jitney.server.observe.monitor import Monitor\n"
        "from jitney.backends.fake.backend import FakeBackend, FakeSettings\n"
        "from jitney.core.scheduler_settings import SchedulerSettings\n"
        "from jitney.engine.engine import Engine\n"
        "engine = Engine(FakeBackend(FakeSettings()), SchedulerSettings(model_len_max=100))\n"
        "text = Monitor(engine, 'tiny').metrics.render().decode()\n"
        "engine.close(drain_s=0)\n"
        "print(replies.VERSION, f'version=\"{replies.VERSION}\"' in text)\n"
    )
    assert ran(uninstalled, program) == f"{UNKNOWN} True"


@pytest.mark.parametrize(
    "content",
    [None, "", "no toml at all", '[project]\nname = "other"\nversion = "1.0"\n', 'project = "x"'],
    ids=["missing", "empty", "broken", "another project", "no table"],
)
def test_a_tree_that_does_not_say_is_unknown(tmp_path: Path, content: str | None) -> None:
    """Guards a copy of the package alone, or in another project: nothing is made up."""
    project = tmp_path / "pyproject.toml"
    if content is not None:
        project.write_text(content)
    assert version("not-installed-here", project) == UNKNOWN


def test_an_extra_is_installed_into_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a clone, and whoever installed from one: the name of a package that is on no index may
    be somebody else's tomorrow."""
    clone, project = tmp_path / "clone", tmp_path / "pyproject.toml"
    assert install_line("bench", project, "pytest") == "pip install 'pytest[bench]'"
    info = tmp_path / "bus-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: bus\nVersion: 1\n")
    (info / "direct_url.json").write_text(json.dumps({"url": clone.as_uri(), "dir_info": {}}))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert install_line("bench", project, "bus") == "pip install 'bus[bench]'", "it is gone"
    clone.mkdir()
    assert install_line("bench", project, "bus") == f"pip install '{clone}[bench]'"
    project.write_text(PROJECT)
    assert install_line("bench", project) == f"pip install -e '{tmp_path}[bench]'"
