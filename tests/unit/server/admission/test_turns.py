"""Who is next at the door, counted in turns."""

from jitney.server.admission.turns import Turns

PLACES = 4
A, B = ("a", False), ("b", False)


def begun(turns: Turns[str], count: int) -> list[str]:
    """So many errands one after the other, each done before the next begins."""
    found = []
    for _ in range(count):
        errand = turns.begin()
        assert errand is not None
        turns.end((errand[0], False))
        found.append(errand)
    return found


def test_a_small_one_of_another_caller_waits_for_one_turn() -> None:
    """Guards everybody else: a hundred errands of one caller are one turn each."""
    turns: Turns[str] = Turns(1, 1)
    for number in range(100):
        turns.enter(A, f"a{number}")
    turns.enter(B, "b0")
    assert begun(turns, 4) == ["a0", "b0", "a1", "a2"]
    assert turns.waiting_count == 97


def test_one_caller_leaves_a_place_for_the_others() -> None:
    """Guards the first moment: what comes while one caller's work fills the door begins at once."""
    turns: Turns[str] = Turns(PLACES, PLACES - 1)
    for number in range(10):
        turns.enter(A, f"a{number}")
    assert [turns.begin() for _ in range(PLACES)] == ["a0", "a1", "a2", None]
    turns.enter(B, "b0")
    assert turns.begin() == "b0"
    turns.enter(B, "b1")
    assert turns.begin() is None, "every place is taken"
    turns.end(A)
    assert turns.begin() == "a3", "it is the turn of a: b had one"
    turns.end(A)
    assert turns.begin() == "b1"


def test_a_lone_caller_may_have_every_place() -> None:
    """Guards servers without keys, where everyone is one caller."""
    turns: Turns[str] = Turns(PLACES, PLACES)
    for number in range(PLACES + 1):
        turns.enter(("", False), f"{number}")
    assert [turns.begin() for _ in range(PLACES + 1)] == ["0", "1", "2", "3", None]


def test_what_is_withdrawn_is_never_begun() -> None:
    """Guards the work of those who left, and the memory of those who were here."""
    turns: Turns[str] = Turns(1, 1)
    for number in range(3):
        turns.enter(A, f"a{number}")
    assert turns.withdraw(A, "a1")
    assert begun(turns, 2) == ["a0", "a2"]
    assert not turns.withdraw(A, "a2"), "it has begun"
    assert not turns.withdraw(B, "a2")
    assert turns.begin() is None
    assert (turns._waiting, turns._under_way) == ({}, {})


def test_large_errands_leave_a_place_for_small_ones() -> None:
    """Guards servers without keys: four large texts do not make a greeting wait for them."""
    turns: Turns[str] = Turns(PLACES, PLACES)
    for number in range(PLACES):
        turns.enter(("", True), f"large {number}")
    assert [turns.begin() for _ in range(PLACES)] == ["large 0", "large 1", "large 2", None]
    for number in range(2):
        turns.enter(("", False), f"small {number}")
    assert turns.begin() == "small 0"
    assert turns.begin() is None
    turns.end(("", True))
    assert turns.begin() == "large 3", "the small ones had a turn"
    turns.end(("", False))
    assert turns.begin() == "small 1"


def test_the_share_of_a_caller_counts_large_and_small_ones() -> None:
    """Guards another caller's place against one who brings some of each."""
    turns: Turns[str] = Turns(PLACES, PLACES - 1)
    for number in range(PLACES):
        turns.enter(("a", True), f"large {number}")
        turns.enter(A, f"small {number}")
    begun_now = [turns.begin() for _ in range(PLACES)]
    assert begun_now == ["large 0", "small 0", "small 1", None]


def test_a_large_errand_waits_for_one_of_another_caller() -> None:
    """Guards a schema that is compiled already: three of another caller were compiled before it."""
    turns: Turns[str] = Turns(PLACES, PLACES - 1)
    for number in range(3):
        turns.enter(("a", True), f"a{number}")
    assert [turns.begin() for _ in range(2)] == ["a0", None]
    turns.enter(("b", True), "b0")
    assert [turns.begin() for _ in range(2)] == ["b0", None]
    turns.end(("a", True))
    assert turns.begin() == "a1"
