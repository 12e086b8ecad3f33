"""Tests of `find_delivered`: whether files of results are those of an input."""

import json
from pathlib import Path
from typing import Any

import pytest

from jitney.jobs.batch_input import HeldInput
from jitney.jobs.delivered import Delivered, find_delivered

LINES = ('{"custom_id": "a"}', "", "", "{oops", *(f'{{"custom_id": "{name}"}}' for name in "bac"))


def answered(name: str, model: str = "fake") -> dict[str, Any]:
    response = {"status_code": 200, "body": {"model": model}}
    return {"custom_id": name, "response": response, "error": None}


def refused(name: str | None, number: int) -> dict[str, Any]:
    return {"custom_id": name, "response": None, "error": {"code": "x", "line": number}}


DONE = [answered("a"), answered("c")]
FAILED = [
    refused(None, 4),
    {"custom_id": "b", "response": {"status_code": 400}, "error": None},
    refused("a", 6),
]


def found(folder: Path, done: list[Any], failed: list[Any]) -> Delivered | None:
    (folder / "in").write_text("".join(f"{each}\n" for each in LINES))
    for name, rows in (("out", done), ("errors", failed)):
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    held = HeldInput(folder / "in")
    try:
        return find_delivered(held, folder / "out", folder / "errors", "fake")
    finally:
        held.close()


def test_every_line_has_its_result(tmp_path: Path) -> None:
    """Guards a loop that repeats a command until it succeeds."""
    assert found(tmp_path, DONE, FAILED) == Delivered(2, 3)


@pytest.mark.parametrize(
    ("done", "failed"),
    [
        (DONE[:1], FAILED),
        (DONE, FAILED[:2]),
        ([*DONE, answered("d")], FAILED),
        (DONE[::-1], FAILED),
        ([answered("a", "other"), DONE[1]], FAILED),
        (DONE, [refused(None, 3), *FAILED[1:]]),
        ([{"custom_id": "a"}, DONE[1]], FAILED),
        ([7], FAILED),
        ([], []),
    ],
)
def test_files_of_anything_else_are_not_taken_for_it(
    tmp_path: Path, done: list[Any], failed: list[Any]
) -> None:
    """Guards a file that lies there by chance: it is neither overwritten nor called a result."""
    assert found(tmp_path, done, failed) is None
