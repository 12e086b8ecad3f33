"""Tests of `scripts.count_walk`: that a token and a request are followed through every room."""

from collections import Counter

from scripts.count_walk import count_walks, table


def test_the_walk_of_a_token_is_part_of_the_walk_of_its_request() -> None:
    """Guards the count: a profile that misses a thread would show fewer files than there are."""
    token, request = count_walks()
    assert {"core/scheduler.py", "engine/tick.py", "engine/mailbox.py"} <= token.keys()
    assert token.keys() <= request.keys()
    assert {"server/routes.py", "engine/engine.py"} <= request.keys() - token.keys()


def test_a_room_counts_its_files_and_calls() -> None:
    """Guards the printed sums."""
    rows = table(Counter({"engine/tick.py": 3, "engine/loop.py": 1, "records.py": 2})).splitlines()
    assert [row.split() for row in rows] == [
        ["engine", "2", "files", "4", "calls"],
        [".", "1", "files", "2", "calls"],
        ["all", "3", "files", "6", "calls"],
    ]
