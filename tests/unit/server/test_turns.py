"""Who is next at the door, counted in turns."""

from jitney.server.turns import Turns

PLACES = 4


def begun(turns: Turns[str], count: int) -> list[str]:
    """So many errands one after the other, each done before the next begins."""
    found = []
    for _ in range(count):
        errand = turns.begin()
        assert errand is not None
        turns.end(errand[0])
        found.append(errand)
    return found


def test_a_small_one_of_another_caller_waits_for_one_turn() -> None:
    """Guards everybody else: a hundred errands of one caller are one turn each."""
    turns: Turns[str] = Turns(1, 1)
    for number in range(100):
        turns.enter("a", f"a{number}")
    turns.enter("b", "b0")
    assert begun(turns, 4) == ["a0", "b0", "a1", "a2"]
    assert turns.waiting_count == 97


def test_one_caller_leaves_a_place_for_the_others() -> None:
    """Guards the first moment: what comes while one caller's work fills the door begins at once."""
    turns: Turns[str] = Turns(PLACES, PLACES - 1)
    for number in range(10):
        turns.enter("a", f"a{number}")
    assert [turns.begin() for _ in range(PLACES)] == ["a0", "a1", "a2", None]
    turns.enter("b", "b0")
    assert turns.begin() == "b0"
    turns.enter("b", "b1")
    assert turns.begin() is None, "every place is taken"
    turns.end("a")
    assert turns.begin() == "a3", "it is the turn of a: b had one"
    turns.end("a")
    assert turns.begin() == "b1"


def test_a_lone_caller_may_have_every_place() -> None:
    """Guards servers without keys, where everyone is one caller."""
    turns: Turns[str] = Turns(PLACES, PLACES)
    for number in range(PLACES + 1):
        turns.enter("", f"{number}")
    assert [turns.begin() for _ in range(PLACES + 1)] == ["0", "1", "2", "3", None]


def test_what_is_withdrawn_is_never_begun() -> None:
    """Guards the work of those who left, and the memory of those who were here."""
    turns: Turns[str] = Turns(1, 1)
    for number in range(3):
        turns.enter("a", f"a{number}")
    assert turns.withdraw("a", "a1")
    assert begun(turns, 2) == ["a0", "a2"]
    assert not turns.withdraw("a", "a2"), "it has begun"
    assert not turns.withdraw("nobody", "a2")
    assert turns.begin() is None
    assert (turns._lines, turns._under_way) == ({}, {})
