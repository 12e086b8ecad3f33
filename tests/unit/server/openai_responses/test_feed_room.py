"""Tests of `FeedRoom`: what is held is bounded for each key and for all, and everybody's turn
comes."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.server.openai_responses import limits
from jitney.server.openai_responses.feed_room import FeedRoom


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FEEDS_KEY_BYTES", 10)
    monkeypatch.setattr(limits, "FEEDS_BYTES", 15)


def test_who_finds_no_room_waits_for_it_in_line() -> None:
    """Guards memory: a key has so much, and the next one is told when there is room."""
    room = FeedRoom()
    first, second, third, other = (asyncio.Event() for _ in range(4))
    assert room.ask(first, "a", 10)
    assert not room.ask(second, "a", 6)
    assert not room.ask(third, "a", 1), "it overtook one of its key"
    assert room.ask(other, "b", 5)
    assert (room.held_bytes, room.waiting_count) == (15, 2)
    room.leave(first)
    assert second.is_set()
    assert third.is_set()
    assert room.granted(second) == 6
    for each in (second, third, other):
        room.leave(each)
    assert (room.held_bytes, room.waiting_count) == (0, 0)


def test_one_may_always_go_on() -> None:
    """Guards long answers: what is larger than all room has it alone."""
    room = FeedRoom()
    large, small = asyncio.Event(), asyncio.Event()
    assert room.ask(large, "a", 1000)
    assert not room.ask(small, "b", 1)
    room.leave(large)
    assert small.is_set()


steps = st.tuples(st.integers(0, 5), st.integers(0, 20))


@given(st.lists(steps))
def test_room_is_bounded_and_nobody_is_forgotten(asked: list[tuple[int, int]]) -> None:
    """Guards both bounds, whoever asks and leaves in any order; a size of 0 is a leave."""
    room = FeedRoom()
    streams = [(asyncio.Event(), "ab"[number % 2]) for number in range(6)]
    for number, size in asked:
        news, owner = streams[number]
        if size:
            room.ask(news, owner, size)
        else:
            room.leave(news)
        held = {each: room.granted(each) for each, _ in streams if room.granted(each)}
        by_owner: Counter[str] = Counter()
        for each, name in streams:
            by_owner[name] += room.granted(each)
        assert room.held_bytes == sum(held.values())
        assert room.held_bytes <= limits.FEEDS_BYTES or len(held) == 1
        assert all(
            count <= limits.FEEDS_KEY_BYTES
            or sum(1 for each, n in streams if n == name and room.granted(each)) == 1
            for name, count in by_owner.items()
        )
    for news, _ in streams:
        room.leave(news)
    assert (room.held_bytes, room.waiting_count) == (0, 0)
