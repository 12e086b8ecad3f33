"""Tests of the recount of `benchmarks.batch_kills`: what it would miss, it would not tell."""

import pytest

from benchmarks.batch_kills import Told, is_bad, make_lines, recount, recount_rows

WANTED = ["a", "b", "c", "d"]
BAD = ("b", "d")


def test_each_line_once_in_order_is_exact() -> None:
    """Guards the figure: lines of both files together are the input."""
    assert recount(WANTED, ["a", "c"], ["b", "d"], BAD).is_exact
    lines = make_lines(1000, 8)
    ids = [each["custom_id"] for each in lines]
    assert recount(ids, ids, [], ()).is_exact
    assert len(set(ids)) == 1000
    assert sum(map(is_bad, lines)) == 11, "the deadly one, and one in a hundred"


@pytest.mark.parametrize(
    ("answered", "failed", "name"),
    [
        (["a"], ["b", "d"], "missing"),
        (["a", "c", "c"], ["b", "d"], "twice"),
        (["a", "c"], ["b", "d", "d"], "twice"),
        (["a", "c", "x"], ["b", "d"], "strange"),
        (["c", "a"], ["b", "d"], "out_of_order"),
        (["a"], ["b", "c", "d"], "in_the_wrong_file"),
        (["a", "b", "c"], ["d"], "in_the_wrong_file"),
    ],
)
def test_whatever_is_wrong_is_counted(answered: list[str], failed: list[str], name: str) -> None:
    """Guards against a recount that is always exact."""
    found = recount(WANTED, answered, failed, BAD)
    assert getattr(found, name) == 1
    assert not found.is_exact


def test_what_was_told_may_not_shrink() -> None:
    """Guards callers: a line that was said to be done stays done."""
    told = Told()
    for done in (0, 3, 3, 2, 5):
        told.note(done)
    assert (told.done, told.shrank) == (5, 1)


def test_an_answer_to_another_line_is_counted() -> None:
    """Guards ids: a result under the wrong one is worse than none."""
    lines = make_lines(10, 40)
    rows = [
        {
            "custom_id": each["custom_id"],
            "response": {"body": {"usage": {"completion_tokens": each["body"]["max_tokens"]}}},
        }
        for each in lines
    ]
    assert recount_rows(lines, rows, []).is_exact
    rows[3]["response"], rows[4]["response"] = rows[4]["response"], rows[3]["response"]
    assert recount_rows(lines, rows, []).foreign == 2
    assert not recount_rows(lines, rows, []).is_exact
