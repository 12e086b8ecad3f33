"""Tests of `docs/seeds.md`: every row has an answer, and what it points to is there."""

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "seeds.md"
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


def is_named(name: str, text: str) -> bool:
    """Whether a file has a symbol, each part of it; anything else has to be there to the letter."""
    if re.fullmatch(r"\w+(\.\w+)*", name):
        return all(re.search(rf"\b{part}\b", text) for part in name.split("."))
    return name in text


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
            elif not is_named(name, text_of(file)):
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


@pytest.mark.parametrize(
    ("name", "text", "is_there"),
    [
        ("Gate.open", "class Gate:\n    def open(self)", True),
        ("Gate.opened", "class Gate:\n    def open(self)", False),
        ("337 (303)", "| 337 (303) |", True),
        ("337 (304)", "| 337 (303) |", False),
    ],
)
def test_a_name_is_looked_for_as_a_word(name: str, text: str, is_there: bool) -> None:
    """Guards the search that the other tests rest on."""
    assert is_named(name, text) == is_there
