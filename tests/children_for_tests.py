"""Backends that are installed and work, or do not, whatever this machine has.

Shell scripts stand for the children in which a backend is tried, and the import system is told
which libraries it would find.
"""

import importlib.util
import json
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any  # Any: what a child is given is plain JSON

import pytest

from jitney.backends.kinds import all_kinds

MODULES = {kind.name: kind.libraries for kind in all_kinds() if kind.takes_model}
WORKS = "exit 0"


def refuses(reason: str) -> str:
    """A child that says why the backend does not work."""
    return f"echo 'a library wrote this'; echo '{reason}.'; exit 3"


@dataclass(frozen=True, slots=True)
class Children:
    """The scripts that stand for trials, and what they were started with."""

    log: Path

    @property
    def given(self) -> list[dict[str, Any]]:
        """What each child got, in the order of their starts."""
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]

    @property
    def names(self) -> list[str]:
        """The backends that were tried."""
        return [each["backend"] for each in self.given]


def stand_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, openvino: str = WORKS, llamacpp: str = WORKS
) -> Children:
    """Let a script stand for the trial of each backend; in it `$given` is what it was given."""
    log, path = folder / "given.log", folder / "python"
    log.touch()
    path.write_text(
        f'#!/bin/sh\ngiven=$(cat)\nprintf "%s\\n" "$given" >> "{log}"\n'
        f"""case "$given" in *'"backend": "openvino"'*) {openvino};; *) {llamacpp};; esac\n""",
        encoding="utf-8",
    )
    path.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(path))
    return Children(log)


def install(monkeypatch: pytest.MonkeyPatch, *, missing: tuple[str, ...] = ()) -> None:
    """As if these libraries were not installed, and all others were."""

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        del package
        if name in missing:
            return None
        return ModuleSpec(name, None, origin=f"/nowhere/{name}/__init__.py")

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
