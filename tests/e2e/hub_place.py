"""A machine for the tests of the hub: caches of its own, a stand-in of the hub, and the program."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from huggingface_hub import constants

from jitney.models import hub
from tests.backends_for_tests import share_verdicts
from tests.e2e import program
from tests.e2e.hub_stand_in import HubStandIn, standing_in
from tests.models_for_tests import TinyShape, write_tiny_gguf

WAIT_S = 120
REPOSITORY = "owner/tiny-GGUF"
Q4, Q8 = "tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf"
FOREIGN = ("JITNEY_", "HF_", "HUGGING")
"""The beginnings of variables that are not of this machine."""

SHAPE = TinyShape(layers=1, width=64, heads=2, heads_kv=1, inner=64)


@dataclass(slots=True)
class Place:
    """A machine of its own: its caches, the hub it knows, and its program."""

    folder: Path
    hub: HubStandIn

    @property
    def hub_cache(self) -> Path:
        return self.folder / "hf" / "hub"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def jitney(self, *words: str, **environ: str) -> program.Done:
        """Call the program in this process."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            for name in os.environ:
                if name.startswith(FOREIGN):
                    patch.delenv(name)
            for name, value in (self._environ() | environ).items():
                patch.setenv(name, value)
            _read_environment_again()
            try:
                return program.jitney(*words)
            finally:
                patch.undo()
                _read_environment_again()

    def python(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run Python to its end."""
        process = self.started(*words, **environ)
        out, err = process.communicate(timeout=WAIT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def started(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        """Start Python."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=kept | self._environ() | environ,
        )

    def _environ(self) -> dict[str, str]:
        return {
            "HF_ENDPOINT": self.hub.url,
            "HF_HOME": str(self.folder / "hf"),
            "JITNEY_CACHE": str(self.cache),
        }

    def pulled(self, name: str, **environ: str) -> Path:
        """Fetch a model, which must succeed; where it is."""
        done = self.jitney("pull", name, **environ)
        assert done.returncode == 0, done.stderr
        first = done.stdout.splitlines()[0]
        return Path(first.partition(" is here: ")[2].rpartition(" (")[0])

    def refused(self, *words: str, **environ: str) -> str:
        """Run what must fail; its last sentence."""
        done = self.jitney(*words, **environ)
        assert done.returncode in (1, 2), done.stderr
        assert "Traceback" not in done.stderr
        last = done.stderr.splitlines()[-1]
        assert last.startswith("jitney: ")
        return last.removeprefix("jitney: ")

    def listed(self) -> list[dict[str, object]]:
        """What `jitney models` knows."""
        done = self.jitney("models", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert isinstance(found, list)
        return found


@contextmanager
def place_in(folder: Path) -> Iterator[Place]:
    """A place in an empty folder; its hub has a tiny model, and the same with a few bytes more.

    Which backends work is known there.
    """
    path = folder / "tiny.gguf"
    write_tiny_gguf(path, shape=SHAPE)
    tiny = path.read_bytes()
    path.unlink()
    with standing_in() as hub:
        hub.repositories[REPOSITORY] = {"README.md": b"# Tiny", Q4: tiny, Q8: tiny + b"\0" * 32}
        place = Place(folder, hub)
        share_verdicts(place.cache)
        yield place


def _read_environment_again() -> None:
    """The library of the hub reads its variables when it is imported."""
    importlib.reload(constants)
    importlib.reload(hub)


def break_later(hub: HubStandIn) -> None:
    """Cut the first answer off, and refuse every later one."""
    hub.cuts[Q4] = [20_000]

    def broken() -> None:
        if any(each.range for each in hub.contents()):
            hub.broken.add(Q4)

    hub.at_content = broken
