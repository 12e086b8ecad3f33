"""Tests that things are found: a name has one meaning, and a module has tests."""

import ast
import re
import subprocess
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
CONVENTIONAL = frozenset({"__init__.py", "__main__.py", "backend.py", "kind.py", "limits.py"})
"""Names that a file may share: a package's own, those that every backend's package has, and the
bounds of the core and of the server."""

TESTED = re.compile(r"^Tests: (tests/.+)\.$", re.MULTILINE)
"""The last line of a module's docstring, where its tests stand elsewhere than its name says."""


TEST_FOLDERS = {"jitney": "", "jitney_cluster": "cluster", "jitney_lab": "lab"}
"""Where under tests/unit the tests of each package are."""


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


def is_type(value: ast.expr | None) -> bool:
    """Whether a name that is given this value stands for a type."""
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) in ("TypeVar", "NewType", "ParamSpec")
    return isinstance(value, ast.Subscript | ast.BinOp)


def names_of_types(module: ast.Module) -> tuple[set[str], set[str]]:
    """The classes of a module, and its aliases and type variables; without leading underscores."""
    classes = {node.name for node in ast.walk(module) if isinstance(node, ast.ClassDef)}
    aliases = {
        target.id
        for node in module.body
        if isinstance(node, ast.Assign) and is_type(node.value)
        for target in node.targets
        if isinstance(target, ast.Name) and not target.id.isupper()
    }
    aliases = {name for name in aliases if name.lstrip("_")[0].isupper()}
    return {each.lstrip("_") for each in classes}, {each.lstrip("_") for each in aliases}


def test_a_class_name_has_one_meaning() -> None:
    """Guards readers: two classes of one name are taken for each other, and so is an alias or a
    type variable with the name of a class."""
    places: dict[str, list[str]] = defaultdict(list)
    aliased: dict[str, list[str]] = defaultdict(list)
    for file in modules():
        classes, aliases = names_of_types(ast.parse(file.read_text(encoding="utf-8")))
        for names, found in ((classes, places), (aliases, aliased)):
            for name in names:
                found[name].append(str(file.relative_to(SOURCE)))
    for name in places:
        places[name] += aliased.get(name, [])
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
        package, *rooms = inside.parts[:-1]
        folder = ROOT.joinpath("tests", "unit", TEST_FOLDERS[package], *rooms)
        mirrored = [folder / f"test_{inside.stem}.py", *folder.glob(f"test_{inside.stem}_*.py")]
        named = TESTED.search(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "")
        places = named_places(named[1]) if named is not None else mirrored
        enough = any if named is None else all
        if not enough(path.is_file() for path in places):
            lost.append(str(inside))
    assert not lost, "\n".join(lost)


def test_the_layers_in_the_architecture_are_those_that_are_enforced() -> None:
    """Guards the page: a layer that it omits is one that nobody knows of."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages, rooms = project["tool"]["importlinter"]["contracts"][:2]
    enforced = [" | ".join(re.findall(r"jitney\.(\w+)", layer)) for layer in rooms["layers"]]
    enforced = [*packages["layers"][:-1], *enforced]
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert "```\n" + "\n".join(enforced) + "\n```" in page


def test_files_that_the_pages_name_are_there() -> None:
    """Guards readers of the pages: every file that they name exists."""
    pages = [ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md")]
    pages += (ROOT / "docs" / "decisions").glob("*.md")
    names = {str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py")}
    lost = []
    for page in pages:
        for path in re.findall(r"`(?:src/)?([\w/]+\.py)`", page.read_text(encoding="utf-8")):
            if (ROOT / path).is_file() or any(f"/{each}".endswith(f"/{path}") for each in names):
                continue
            lost.append(f"{page.name}: {path}")
    assert not lost, "\n".join(lost)


def anchors(page: Path) -> set[str]:
    """The names that links to the headings of a page end with, as GitHub makes them."""
    found = set[str]()
    for heading in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        again = sum(each == name or each.startswith(f"{name}-") for each in found)
        found |= {name, f"{name}-{again}"}
    return found


def test_links_of_pages_lead_somewhere() -> None:
    """Guards readers of every page: a link has a file at its end, and a heading if it names one."""
    listed = subprocess.run(
        ("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    pages = [ROOT / name for name in listed.stdout.splitlines()]
    pages = [page for page in pages if page.is_file()]
    assert ROOT / "README.md" in pages
    lost = []
    for page in pages:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        links = re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)|(?:src|href)=\"([^\"]+)\"", text)
        for link in ("".join(each) for each in links):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path) if path else page
            is_there = target.exists() and ROOT in (target.resolve(), *target.resolve().parents)
            if not is_there or (
                anchor and target.suffix == ".md" and anchor not in anchors(target)
            ):
                lost.append(f"{page.relative_to(ROOT)}: {link}")
    assert not lost, "\n".join(lost)
