"""Tests that things are found: a name has one meaning, and a module has tests."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "jitney"
CONVENTIONAL = frozenset({"__init__.py", "__main__.py", "backend.py", "kind.py", "limits.py"})
"""Names that a file may share: a package's own, those that every backend's package has, and the
bounds of the core and of the server."""

TESTED = re.compile(r"^Tests: (tests/.+)\.$", re.MULTILINE)
"""The last line of a module's docstring, where its tests stand elsewhere than its name says."""


def modules() -> list[Path]:
    return sorted(file for file in SOURCE.rglob("*.py") if not file.name.startswith("__"))


def twice(places: dict[str, list[str]]) -> list[str]:
    return [f"{name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1]


def named_places(line: str) -> list[Path]:
    """The files of a line such as `tests/e2e/test_cli.py and test_hub.py`."""
    places: list[Path] = []
    for name in re.findall(r"[\w/]+\.py", line):
        folder = places[-1].parent if places and "/" not in name else ROOT
        places.append(folder / name)
    return places


def test_a_class_name_has_one_meaning() -> None:
    """Guards readers: two classes of one name are taken for each other."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in modules():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(file.relative_to(SOURCE)))
    assert not twice(places), "\n".join(twice(places))


def test_a_file_name_is_there_once() -> None:
    """Guards whoever looks for a file by its name."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in modules():
        if file.name not in CONVENTIONAL:
            places[file.name].append(str(file.relative_to(SOURCE)))
    assert not twice(places), "\n".join(twice(places))


def test_every_module_has_tests_that_are_found() -> None:
    """Guards whoever changes a module: its tests have its name, or its docstring names them."""
    lost = []
    for file in modules():
        inside = file.relative_to(SOURCE)
        folder = ROOT / "tests" / "unit" / inside.parent
        mirrored = [folder / f"test_{inside.stem}.py", *folder.glob(f"test_{inside.stem}_*.py")]
        named = TESTED.search(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "")
        places = named_places(named[1]) if named is not None else mirrored
        enough = any if named is None else all
        if not enough(path.is_file() for path in places):
            lost.append(str(inside))
    assert not lost, "\n".join(lost)
