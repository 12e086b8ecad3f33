"""Tests of form: length, names, stray clocks and environments, titles, addresses.

Each test lists every place that breaks its rule. The rules are those of CONTRIBUTING.md.
"""

import ast
import itertools
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 400
PAGE_WIDTH_MAX = 120
SUFFIXES = ("Manager", "Handler", "Helper", "Util", "Utils", "Base", "Impl", "Data", "Info")
BANNED = {
    "": {"helper", "helpers", "util", "utils", "misc"},
    "core": {
        "abort", "backlog", "cycle", "dealloc", "deallocate", "iteration", "job", "manager",
        "page", "promote", "purge", "query", "response", "retire", "runner", "seat", "step", "swap",
        "task", "worker",
    },
    "engine": {"abort", "backlog", "cycle", "iteration", "page", "response", "runner", "seat"},
}  # fmt: skip
"""Words that have another one in the house vocabulary, by package; the empty name is all."""

# Written in pieces, so that this file does not break its own rules.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
ADDRESSES = re.compile(
    r"(/wo" r"rk/|/ro" r"ot/|/opt/wh" r"eels|/opt/py" r"pi|/fa" r"rm/|/home/[a-z]"
    r"|pypi\.o" r"rg|python" r"hosted|registry\.npm" r"js|deb\.deb" r"ian)"
)  # fmt: skip
ASSERTING = ("raises", "assert", "check", "expect", "verify")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def listed(*patterns: str) -> list[Path]:
    """Files that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return sorted(ROOT / name for name in set(done.stdout.splitlines()) if (ROOT / name).is_file())


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def at(file: Path, line: int, text: str) -> str:
    return f"{file.relative_to(ROOT)}:{line} {text}"


def lines(found: list[str]) -> str:
    return "\n" + "\n".join(found)


def source() -> list[Path]:
    return [file for file in listed("*.py") if file.is_relative_to(SOURCE)]


def names(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that a module makes, with its line."""
    for node in ast.walk(module):
        if isinstance(node, Function | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_functions_are_short() -> None:
    """Guards readability: a function fits on a screen."""
    long = [
        at(file, node.lineno, f"{node.name} has {node.end_lineno - node.lineno + 1} lines")
        for file in listed("*.py")
        for node in ast.walk(tree(file))
        if isinstance(node, Function)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long, lines(long)


def test_files_are_short() -> None:
    """Guards readability: a file has one subject."""
    counts = {
        file: sum(1 for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
        for file in listed("*.py")
    }
    long = [at(file, 1, f"has {n} lines") for file, n in counts.items() if n > FILE_LINES_MAX]
    assert not long, lines(long)


def test_every_module_opens_with_a_docstring() -> None:
    """Guards the first question of every reader: what is this file for?"""
    bare = [at(file, 1, "") for file in listed("*.py") if not ast.get_docstring(tree(file))]
    assert not bare, lines(bare)


def test_only_config_reads_the_environment() -> None:
    """Guards the one definition of settings: a variable read elsewhere is a hidden setting."""
    strayed = [
        at(file, node.lineno, node.attr)
        for file in source()
        if not file.is_relative_to(SOURCE / "jitney" / "config")
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv")
    ]
    assert not strayed, lines(strayed)


def test_only_the_clock_reads_the_time() -> None:
    """Guards the simulation: a stray clock makes a seed irreproducible.

    Backends report how long a forward pass took, and may import `perf_counter` by name. What a
    constraint takes of the processor and of a batch is bounded, as are calls to the event loop, and
    nothing else tells it.
    """
    strayed = []
    for file in source():
        inside = file.relative_to(SOURCE).as_posix()
        if inside == "jitney/engine/clock.py" or inside.startswith("jitney_lab/bench/"):
            continue
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Import):
                taken = [alias.name for alias in node.names if alias.name == "time"]
            elif isinstance(node, ast.ImportFrom) and node.module == "time":
                is_backend = inside.startswith("jitney/backends/")
                allowed = {"perf_counter"} if is_backend else set[str]()
                if inside in ("jitney/sampling/constraint.py", "jitney/server/service.py"):
                    allowed = {"perf_counter", "thread_time"}
                taken = [alias.name for alias in node.names if alias.name not in allowed]
            else:
                continue
            strayed += [at(file, node.lineno, f"imports {name}") for name in taken]
    assert not strayed, lines(strayed)


def test_imports_stand_at_the_top() -> None:
    """Guards the layers: a hidden import is one that they do not show."""
    hidden = []
    for file in source():
        for function in ast.walk(tree(file)):
            if isinstance(function, Function):
                hidden += [
                    at(file, node.lineno, f"imports inside {function.name}")
                    for node in ast.walk(function)
                    if isinstance(node, ast.Import | ast.ImportFrom)
                ]
        if "TYPE_CHECKING" in file.read_text(encoding="utf-8"):
            hidden.append(at(file, 1, "imports for type checking only"))
    assert not hidden, lines(hidden)


def test_names_are_of_the_house_vocabulary() -> None:
    """Guards one word per concept."""
    strange = []
    for file in source():
        package = file.relative_to(SOURCE).parts[1]
        banned = BANNED[""] | BANNED.get(package, set())
        for line, name in names(tree(file)):
            found = sorted(words(name) & banned)
            if found or (name[0].isupper() and name.endswith(SUFFIXES)):
                strange.append(at(file, line, name))
    assert not strange, lines(strange)


def test_a_python_that_is_started_keeps_the_current_folder_off_its_path() -> None:
    """Guards whoever stands in a folder of somebody else's: a file there may have the name of any
    module, and would be run. The checks of this repository run in it, and want its modules."""
    unsafe = [
        at(file, node.lineno, ast.unparse(node)[:80])
        for file in [*source(), *listed("scripts/*.py")]
        if file != ROOT / "scripts" / "check.py"
        for node in ast.walk(tree(file))
        if isinstance(node, ast.List | ast.Tuple)
        for word, after in itertools.pairwise(map(ast.unparse, node.elts))
        if word == "sys.executable" and after not in ("'-P'", "'-I'")
    ]
    assert not unsafe, lines(unsafe)


def test_exports_are_sorted() -> None:
    """Guards `__all__` against lines added in the order of the day."""
    unsorted = []
    for file in source():
        for node in tree(file).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                if ast.unparse(node.value).startswith("sorted("):
                    continue
                exported = ast.literal_eval(node.value)
                if list(exported) != sorted(exported):
                    unsorted.append(at(file, node.lineno, "__all__"))
    assert not unsorted, lines(unsorted)


def test_every_test_can_fail() -> None:
    """Guards the suite: a test without an assertion proves that nothing raised, if that."""
    idle = []
    for file in listed("tests/*.py"):
        for node in ast.walk(tree(file)):
            if isinstance(node, Function) and node.name.startswith("test_"):
                calls = [ast.unparse(c.func) for c in ast.walk(node) if isinstance(c, ast.Call)]
                asserts = any(isinstance(each, ast.Assert) for each in ast.walk(node))
                if not asserts and not any(word in call for call in calls for word in ASSERTING):
                    idle.append(at(file, node.lineno, node.name))
    assert not idle, lines(idle)


@pytest.mark.parametrize(
    ("rule", "patterns"),
    [
        pytest.param(UNFINISHED, ("*.py", "*.md", "Makefile", "*.toml"), id="unfinished"),
        pytest.param(ADDRESSES, ("*",), id="addresses"),
        pytest.param(re.compile(r"^\s*# ?[-=#*~]{4,}"), ("*.py",), id="banners"),
    ],
)
def test_no_line_holds_what_belongs_elsewhere(
    rule: re.Pattern[str], patterns: tuple[str, ...]
) -> None:
    """Guards against unfinished work, paths of one machine, registry hosts and banner lines."""
    found = [
        at(file, number, line.strip()[:80])
        for file in listed(*patterns)
        for number, line in enumerate(
            file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1
        )
        if rule.search(line)
    ]
    assert not found, lines(found)


def test_a_page_has_one_title_and_it_comes_first() -> None:
    """Guards the documents: a page has one subject, and the forms of both forges are the same."""
    wrong = []
    for file in listed("*.md"):
        text = re.sub(r"^(```|~~~).*?^\1", "", file.read_text(encoding="utf-8"), flags=re.M | re.S)
        titles = [line for line in text.splitlines() if line.startswith("# ")]
        if len(titles) != 1 or not text.lstrip().startswith("# "):
            wrong.append(at(file, 1, f"has {len(titles)} titles"))
    assert not wrong, lines(wrong)
    forms = (("ISSUE", "issue"), ("PULL_REQUEST", "merge_request"))
    for here, there in forms:
        form = ROOT / ".gitlab" / f"{there}_templates" / "Default.md"
        assert (ROOT / ".github" / f"{here}_TEMPLATE.md").read_bytes() == form.read_bytes()


def test_the_text_of_pages_is_wrapped() -> None:
    """Guards readers in a terminal, and of a diff. Tables, headings, pictures and code are as long
    as they have to be, and generated pages are as their source is."""
    long = []
    for file in listed("*.md"):
        if file.is_relative_to(ROOT / "docs" / "reference"):
            continue
        text = re.sub(
            r"^ *(```|~~~).*?^ *\1",
            lambda code: "\n" * code[0].count("\n"),
            file.read_text(encoding="utf-8"),
            flags=re.M | re.S,
        )
        long += [
            at(file, number, f"has {len(line)} characters")
            for number, line in enumerate(text.splitlines(), start=1)
            if len(line) > PAGE_WIDTH_MAX and not line.lstrip().startswith(("|", "#", "!", "<"))
        ]
    assert not long, lines(long)


def test_test_folders_are_not_packages() -> None:
    """Guards test names: with packages, two files of one name would shadow each other."""
    assert [str(file) for file in listed("tests/**/__init__.py", "tests/__init__.py")] == []
