"""Tests of `docs/project/seeds.md`: every row has an answer, and what it points to is there."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "project" / "seeds.md"
SEEDS = 5
ANSWERS = ("works", "differs", "refused")
LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+)\)")

# Written in pieces, because a test of form looks for the words themselves.
UNFINISHED = re.compile("TO" + "DO|PEND" + "ING")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table of the page."""

    number: str
    what: str
    answer: str
    where: str
    test: str

    @property
    def kind(self) -> str:
        """The first word of its answer."""
        return self.answer.partition(":")[0]


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows() -> list[Row]:
    found = [cells(line) for line in page().splitlines() if re.match(r"\| \d+\.\d+ \|", line)]
    return [Row(*each) for each in found]


def finished(text: str) -> bool:
    """Whether the cell points to what is there, and not to what is being written."""
    return UNFINISHED.search(text) is None


@cache
def text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@cache
def names_in(file: Path) -> frozenset[str]:
    """Names of the test functions of a file."""
    tree = ast.parse(text_of(file), str(file))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def assigned(node: ast.AST) -> list[ast.expr]:
    """What a statement gives a value, or a type."""
    if isinstance(node, ast.AnnAssign):
        return [node.target]
    found = node.targets if isinstance(node, ast.Assign) else []
    return [name for each in found for name in getattr(each, "elts", [each])]


def members(body: list[ast.stmt], owner: str = "") -> Iterator[str]:
    """Names that a module or a class defines, those within a class behind its own."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield owner + node.name
            yield from members(node.body, f"{owner}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner + node.name
            if owner:
                yield from own_attributes(node, owner)
        else:
            yield from (owner + each.id for each in assigned(node) if isinstance(each, ast.Name))


def own_attributes(method: ast.AST, owner: str) -> Iterator[str]:
    """What a method sets on `self`."""
    for node in ast.walk(method):
        for each in assigned(node):
            if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self":
                yield owner + each.attr


@cache
def symbols_of(text: str) -> frozenset[str]:
    """What Python source defines: `name`, `Class.member`."""
    return frozenset(members(ast.parse(text).body))


def stands_in_text(name: str, text: str) -> bool:
    """Whether a page has it as a heading or in code quotes; figures stand there to the letter."""
    if re.search(r"\d", name):
        return re.search(rf"(?<![\d.,]){re.escape(name)}(?!\d|[.,]\d)", text) is not None
    heading = re.compile(rf"^#+ {re.escape(name)}$", re.MULTILINE)
    return f"`{name}`" in text or heading.search(text) is not None


def is_named(name: str, suffix: str, text: str) -> bool:
    """Whether a file of this kind has what is named: a definition, a key, a heading or a figure."""
    if suffix == ".py":
        return name in symbols_of(text)
    if suffix == ".yaml":
        return re.search(rf"^ *{re.escape(name)}:", text, re.MULTILINE) is not None
    if suffix == ".json":
        return f'"{name}"' in text
    return stands_in_text(name, text)


def linked(cell: str) -> list[tuple[str, Path]]:
    return [(name, (PAGE.parent / path).resolve()) for name, path in LINK.findall(cell)]


def test_every_row_is_whole() -> None:
    """Guards the tables: five cells, one of three answers, and words where words are due."""
    wrong = []
    for row in rows():
        says_why = row.kind == "works" or len(row.answer) > len(row.kind) + 10
        if row.kind not in ANSWERS or not row.what or not row.where or not says_why:
            wrong.append(f"{row.number}: {row.answer}")
    assert not wrong, "\n".join(wrong)


def test_numbers_have_no_gap() -> None:
    """Guards references to a row: every seed counts from one, in order."""
    counts = Counter(row.number.split(".")[0] for row in rows())
    expected = [f"{seed}.{at}" for seed in range(SEEDS) for at in range(1, counts[str(seed)] + 1)]
    assert [row.number for row in rows()] == expected
    assert min(counts[str(seed)] for seed in range(SEEDS)) > 30


def test_every_place_is_there() -> None:
    """Guards the column `where`: the file is there and has what is named."""
    wrong = []
    for row in rows():
        found = linked(row.where) if finished(row.where) else []
        if finished(row.where) and len(found) != 1:
            wrong.append(f"{row.number}: not one link: {row.where}")
        for name, file in found:
            if not file.is_relative_to(ROOT) or not file.is_file():
                wrong.append(f"{row.number}: no such file: {file.name}")
            elif not is_named(name, file.suffix, text_of(file)):
                wrong.append(f"{row.number}: {file.name} has no {name}")
    assert not wrong, "\n".join(wrong)


def test_what_works_has_a_test_and_every_test_is_there() -> None:
    """Guards the column `test`: what is said to work is held by a test of that name."""
    wrong = []
    for row in rows():
        found = linked(row.test) if finished(row.test) else []
        if row.kind == "works" and not found and finished(row.test):
            wrong.append(f"{row.number}: works, and no test holds it")
        for name, file in found:
            if not file.is_relative_to(ROOT / "tests") or not file.is_file():
                wrong.append(f"{row.number}: no such file: {file.name}")
            elif not name.startswith("test_") or name not in names_in(file):
                wrong.append(f"{row.number}: {file.name} has no {name}")
    assert not wrong, "\n".join(wrong)


def test_the_totals_are_those_of_the_rows() -> None:
    """Guards the first table: a row that changes its answer changes the totals."""
    expected = {}
    for seed in ("000", "001", "002", "003", "004", "all"):
        kinds = Counter(row.kind for row in rows() if seed in ("all", f"00{row.number[0]}"))
        expected[seed] = [str(kinds.total()), *(str(kinds[kind]) for kind in ANSWERS)]
    lines = [cells(line) for line in page().splitlines() if re.match(r"\| (00\d|all) \|", line)]
    assert {line[0]: line[1:] for line in lines} == expected


def test_every_other_link_leads_somewhere() -> None:
    """Guards the text and the reasons: decisions, pages and tests that they point to."""
    text = "\n".join(line for line in page().splitlines() if finished(line))
    assert [path for _, path in LINK.findall(text) if not (PAGE.parent / path).is_file()] == []


def test_nothing_is_left_open() -> None:
    """Guards the page as a whole: while a figure or a place is missing, this fails and names it."""
    left = [line[:100] for line in page().splitlines() if not finished(line)]
    assert not left, f"{len(left)} left:\n" + "\n".join(left)


SOURCE = """
from other import Imported
LIMIT = 3
class Gate:
    places: int = 0
    OPEN = "open"
    def __init__(self):
        self.count = open
    def open(self, now):
        inner = "Gate.shut"
def shut(): ...
"""


@pytest.mark.parametrize(
    ("name", "suffix", "text", "is_there"),
    [
        *((each, ".py", SOURCE, True) for each in ("LIMIT", "Gate", "Gate.open", "shut")),
        *((each, ".py", SOURCE, True) for each in ("Gate.places", "Gate.OPEN", "Gate.count")),
        *((each, ".py", SOURCE, False) for each in ("Imported", "now", "inner", "open", "count")),
        *((each, ".py", SOURCE, False) for each in ("Gate.shut", "Gate.LIMIT", "other")),
        ("size", ".yaml", "all:\n  size: 3", True),
        ("size", ".yaml", "# size\nall: size", False),
        ("Requests", ".json", '{"title": "Requests"}', True),
        ("Requests", ".json", '{"title": "Requests that wait"}', False),
        ("Batch size", ".md", "## Batch size\n", True),
        ("batch", ".md", "a `batch` of three", True),
        ("batch", ".md", "a batch of three", False),
        ("337 (303)", ".md", "| 337 (303) |", True),
        ("337 (304)", ".md", "| 337 (303) |", False),
        ("68", ".md", "685 and 1,68", False),
    ],
)
def test_a_name_is_looked_for_as_what_it_is(
    name: str, suffix: str, text: str, is_there: bool
) -> None:
    """Guards the search that the other tests rest on: a word somewhere in a file is no place."""
    assert is_named(name, suffix, text) == is_there
