"""Tests that the layers of the design hold: who imports whom, and what an import brings along."""

import ast
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from jitney.backends.kinds import NAMES

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "src"
SOURCE = PACKAGES / "jitney"
VALUES = frozenset({"backend", "batch", "events", "limits", "params", "request", "stops"})
"""The modules of the core that hold values only."""

HEAVY = {
    "llama_cpp": ("jitney/backends/llamacpp", "jitney/models"),
    "torch": ("jitney/backends/torch",),
    "safetensors": ("jitney/backends/torch",),
    "triton": ("jitney/backends/torch",),
    "transformers": (),
    "openvino": ("jitney/backends/openvino",),
    "openvino_genai": ("jitney/backends/openvino",),
    "tokenizers": ("jitney/tokenizers",),
    "fastapi": ("jitney/server",),
    "h11": ("jitney/server/http",),
    "uvicorn": ("jitney/server/http",),
    "uvloop": ("jitney/server",),
    "click": ("jitney/cli",),
    "jinja2": ("jitney/text",),
    "llguidance": ("jitney/sampling", "jitney/text", "jitney/backends"),
    "msgspec": (
        *("jitney/backends", "jitney/config", "jitney/models", "jitney/sandbox"),
        *("jitney/server/batches", "jitney/server/openai_responses", "jitney/server/page"),
        *("jitney_cluster", "jitney_lab"),
    ),
    "ray": ("jitney_cluster",),
    "yaml": ("jitney/config",),
}
"""Each heavy dependency, and where alone it is imported."""


@cache
def imports(file: Path) -> set[str]:
    """Every module that a file imports, with the names taken from it as possible submodules."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_contracts_in_pyproject_hold() -> None:
    """Guards the order of the layers: an import upwards would tie everything to everything."""
    done = run(str(Path(sys.executable).parent / "lint-imports"), "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_contract_of_the_backends_names_them_all() -> None:
    """Guards a new backend, which could import another one unseen."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (modules,) = [each["modules"] for each in contracts if each["type"] == "independence"]
    assert modules == [f"jitney.backends.{name}" for name in NAMES]


def test_the_core_comes_alone() -> None:
    """Guards the reader and the simulator: the core must load without anything heavy."""
    absent = ("torch", "numpy", "fastapi", "asyncio", "llama_cpp", "yaml", "rich", "click")
    modules = sorted(
        ".".join(file.relative_to(PACKAGES).with_suffix("").parts)
        for file in (SOURCE / "core").rglob("*.py")
        if file.stem[0] != "_"
    )
    program = (
        f"import sys, jitney.core, {', '.join(modules)}\n"
        f"print([name for name in {absent!r} if name in sys.modules])"
    )
    done = run(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_text_and_sampling_know_only_values_of_the_core() -> None:
    """Guards the two against the scheduler: they are told what to do, and ask nothing."""
    strayed = [
        f"{file.relative_to(ROOT)} imports {name}"
        for package in ("text", "sampling")
        for file in sorted((SOURCE / package).rglob("*.py"))
        for name in sorted(imports(file))
        if name.startswith("jitney.core.") and name.split(".")[2] not in VALUES
    ]
    assert not strayed, "\n".join(strayed)


@pytest.mark.parametrize("package", sorted(HEAVY))
def test_a_heavy_dependency_is_imported_in_its_place_only(package: str) -> None:
    """Guards installs without extras: an import elsewhere would break them."""
    strayed = [
        str(file.relative_to(ROOT))
        for file in sorted(PACKAGES.rglob("*.py"))
        if package in {name.split(".")[0] for name in imports(file)}
        and not file.relative_to(PACKAGES).as_posix().startswith(HEAVY[package])
    ]
    assert not strayed, "\n".join(strayed)
