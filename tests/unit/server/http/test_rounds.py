"""Tests of `jitney.server.http.rounds`: whoever sends much has it read in turns."""

from collections.abc import Callable
from functools import partial

import pytest

from jitney.server import limits
from jitney.server.http.rounds import Rounds


class Loop:
    """Calls in the next round what it is told in this one."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> bool:
        called, self.soon = self.soon, []
        for each in called:
            each()
        return bool(called)


def test_a_round_has_an_end_and_those_who_wait_go_on_in_turn() -> None:
    """Guards everybody else: in each round no more than so much is read, in turns."""
    loop = Loop()
    rounds, log = Rounds(loop.call_soon), list[str]()
    share = limits.STEPS_PER_ROUND // 2

    def sender(name: str, left: int) -> Callable[[], None]:
        def go_on() -> None:
            nonlocal left
            log.append(name)
            rounds.take(share)
            left -= 1
            if left:
                rounds.wait(go_on, is_begun=True)

        return go_on

    for name, left in (("a", 3), ("b", 1), ("c", 2)):
        rounds.wait(sender(name, left), is_begun=False)
    counts = []
    while loop.turn():
        counts.append(len(log))
    assert "".join(log) == "aabacc"
    assert counts == [2, 4, 6, 6]


def test_those_who_begin_do_not_wait_for_all_who_go_on() -> None:
    """Guards small requests: the two lines take turns, however long one of them is."""
    loop = Loop()
    rounds, log = Rounds(loop.call_soon), list[int]()
    for at in range(4):
        assert not rounds.is_crowded
        rounds.wait(partial(log.append, at), is_begun=True, held_bytes=limits.READS_BYTES_MAX // 4)
    assert rounds.is_crowded
    rounds.wait(partial(log.append, -1), is_begun=False)
    loop.turn()
    assert log.index(-1) == 0
    assert not rounds.is_crowded


def test_the_two_lines_share_steps_and_not_turns() -> None:
    """Guards small requests: beside large ones as many are read as take as long."""
    loop = Loop()
    rounds, counts = Rounds(loop.call_soon), {1: 0, 64: 0}

    def sender(steps: int) -> Callable[[], None]:
        def go_on() -> None:
            counts[steps] += 1
            rounds.take(steps)
            rounds.wait(go_on, is_begun=steps > 1)

        return go_on

    for steps in (1, 64):
        for _ in range(3):
            rounds.wait(sender(steps), is_begun=steps > 1)
    for _ in range(10):
        loop.turn()
    assert counts[1] >= 64 * (counts[64] - 1)
    assert counts[64] >= 10 * limits.STEPS_PER_ROUND // 128 - 1


def test_what_was_too_much_is_missing_in_the_next_round() -> None:
    """Guards the bound where one step is a large one."""
    loop = Loop()
    rounds = Rounds(loop.call_soon)
    rounds.take(2 * limits.STEPS_PER_ROUND + 1)
    assert rounds.is_over
    for is_over in (True, False, False):
        assert loop.turn()
        assert rounds.is_over is is_over
    assert not loop.turn()


def test_who_has_left_is_not_called() -> None:
    """Guards connections that are gone."""
    loop = Loop()
    rounds, log = Rounds(loop.call_soon), list[int]()
    calls = [partial(log.append, at) for at in range(3)]
    for each in calls:
        rounds.wait(each, is_begun=False)
    rounds.leave(calls[1])
    loop.turn()
    assert log == [0, 2]


def test_one_that_fails_does_not_keep_the_others_waiting() -> None:
    """Guards everybody else in the line: want of memory may come up anywhere."""
    loop = Loop()
    rounds, log = Rounds(loop.call_soon), list[str]()

    def fail() -> None:
        raise MemoryError

    rounds.wait(fail, is_begun=False)
    rounds.wait(partial(log.append, "b"), is_begun=False)
    with pytest.raises(MemoryError):
        loop.turn()
    loop.turn()
    assert log == ["b"]


def test_what_left_is_not_held_any_more() -> None:
    """Guards the bound: who goes, or asks twice, is counted once."""
    rounds = Rounds(Loop().call_soon)
    for read in (print, print):
        rounds.wait(read, is_begun=True, held_bytes=limits.READS_BYTES_MAX // 2)
    assert not rounds.is_crowded
    rounds.wait(len, is_begun=False, held_bytes=limits.READS_BYTES_MAX // 2)  # type: ignore[arg-type]
    assert rounds.is_crowded
    rounds.leave(print)
    assert not rounds.is_crowded
