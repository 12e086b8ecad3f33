"""Which slot holds the longest prefix: found by hash, decided by equality."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.core import prefix
from jitney.core.limits import PREFIX_STRIDE
from jitney.core.prefix import Chain, Holding, Match, PrefixIndex

SCOPE = "scope"


def holding(index: PrefixIndex, slot: int, tokens: tuple[int, ...], computed: int) -> Holding:
    found = Holding(slot, Chain(SCOPE, list(tokens)), computed)
    index.extend(found)
    return found


def longest(index: PrefixIndex, tokens: list[int], scope: str = SCOPE) -> Match:
    return index.longest(Chain(scope, tokens), len(tokens) - 1)


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=60), min_size=1, max_size=6),
    st.lists(st.integers(0, 1), min_size=2, max_size=60),
)
def test_it_finds_what_a_plain_search_finds(held: list[list[int]], tokens: list[int]) -> None:
    """Guards reuse: nothing that is not equal, and everything from the first chunk on.

    Fewer holdings than are compared at one depth, so the plain search is the exact answer.
    """
    index = PrefixIndex()
    base = [0] * PREFIX_STRIDE
    for slot, each in enumerate(held):
        holding(index, slot, (*base, *each), len(base) + len(each))
    wanted = base + tokens

    def common(each: list[int]) -> int:
        pairs = zip([*base, *each], wanted, strict=False)
        return next(
            (at for at, (a, b) in enumerate(pairs) if a != b),
            min(len(base) + len(each), len(wanted)),
        )

    best = min(max(common(each) for each in held), len(wanted) - 1)
    found = longest(index, wanted)
    assert found.length == best
    assert found.holding is not None
    assert found.holding.chain.tokens[:best] == wanted[:best]


def test_another_scope_finds_nothing() -> None:
    """Guards invariant 6: equal tokens of another tenant are not there."""
    index = PrefixIndex()
    tokens = tuple(range(40))
    holding(index, 0, tokens, 40)
    assert longest(index, list(tokens)).length == 39
    assert longest(index, list(tokens), "other").holding is None


def test_what_somebody_is_about_to_compute_is_promised() -> None:
    """Guards the shared system prompt: the second to come sees that it may wait."""
    index = PrefixIndex()
    tokens = tuple(range(100))
    one = holding(index, 0, tokens, 10)
    found = longest(index, list(tokens))
    assert (found.length, found.length_awaited) == (10, 99)
    one.length = 64
    index.extend(one)
    assert longest(index, list(tokens)).length == 64


def test_what_left_is_not_found_any_more() -> None:
    """Guards memory that was released: a copy from it would be a copy of nothing."""
    index = PrefixIndex()
    tokens = tuple(range(64))
    one = holding(index, 0, tokens, 64)
    index.check([one])
    index.trim(one, 32)
    assert longest(index, list(tokens)).length_awaited <= 64
    index.trim(one, 0)
    assert longest(index, list(tokens)).holding is None
    index.check([])


def test_a_waiting_prompt_is_read_once() -> None:
    """Guards everybody else: a look-up is made for each who waits in each tick."""
    index = PrefixIndex()
    tokens = tuple(range(32_000))
    leader = holding(index, 0, tokens, 0)
    waiting = Chain(SCOPE, list(tokens))
    for computed in range(0, 32_000, 512):
        leader.length = computed
        index.extend(leader)
        found = index.longest(waiting, len(tokens) - 1)
        assert (found.length, found.length_awaited) == (computed, 31_999)
    assert waiting.read_count <= 2 * len(tokens)


def test_many_alike_are_compared_once() -> None:
    """Guards the shared system prompt: whoever waits compares itself with one who has it."""
    index = PrefixIndex()
    tokens = tuple(range(8000))
    for slot in range(64):
        holding(index, slot, tokens, len(tokens))
    waiting = Chain(SCOPE, list(tokens))
    for _ in range(10):
        assert index.longest(waiting, len(tokens) - 1).length == len(tokens) - 1
    assert waiting.read_count <= 2 * len(tokens)


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=4, max_size=4), min_size=2, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 4)), max_size=40),
)
def test_what_is_known_of_others_is_never_wrong(
    texts: list[list[int]], asked: list[tuple[int, int, int]]
) -> None:
    """Guards invariant 6: who was compared with a third one is equal as far as that, no further."""
    chains = [
        Chain(SCOPE, [stride for stride in text for _ in range(PREFIX_STRIDE)], order=order)
        for order, text in enumerate(texts)
    ]
    for one, other, depth in asked:
        one, other = one % len(texts), other % len(texts)
        is_equal = texts[one][:depth] == texts[other][:depth]
        assert chains[one].equals(chains[other], depth) is is_equal


def turns_of(leaders: list[Chain], waiting: list[Chain], tokens: tuple[int, ...]) -> None:
    """Each leader is the only one that holds the tokens, and everybody who waits looks at it."""
    index = PrefixIndex()
    for leader in leaders:
        made = Holding(0, leader)
        index.extend(made)
        for each in waiting:
            assert index.longest(each, len(tokens) - 1).length_awaited == len(tokens) - 1
        index.trim(made, 0)


def test_what_holds_a_prefix_one_after_the_other_is_read_once() -> None:
    """Guards invariant 11: every waiting prompt was read again for each that ran before it."""
    tokens = tuple(range(800))
    waiting = [Chain(SCOPE, list(tokens), order=order) for order in range(20)]
    turns_of(waiting, waiting, tokens)
    assert max(each.read_count for each in waiting) <= 2 * len(tokens)


def test_a_newcomer_that_leads_is_read_by_one_of_those_who_wait() -> None:
    """Guards invariant 11: those who wait are known to be equal, so one comparison is enough."""
    tokens = tuple(range(800))
    waiting = [Chain(SCOPE, list(tokens), order=order) for order in range(20)]
    newcomers = [Chain(SCOPE, list(tokens), order=order) for order in range(20, 30)]
    turns_of(newcomers, waiting, tokens)
    read_count = sum(each.read_count for each in waiting)
    assert read_count <= (2 * len(waiting) + len(newcomers)) * len(tokens)


def test_two_that_compute_one_prompt_are_not_read_again_and_again() -> None:
    """Guards invariant 11 where now one of them is ahead, now the other."""
    index = PrefixIndex()
    tokens = tuple(range(8000))
    leaders = [holding(index, slot, tokens, 0) for slot in range(2)]
    waiting = Chain(SCOPE, list(tokens), order=2)
    for computed in range(0, 8000, 80):
        leader = leaders[computed // 80 % 2]
        leader.length = computed
        index.extend(leader)
        assert index.longest(waiting, len(tokens) - 1).length == computed
    assert waiting.read_count <= 3 * len(tokens)


def test_two_that_wait_do_not_take_turns_in_being_read() -> None:
    """Guards invariant 11: each had a part of its origins from the first, and gave the rest of
    them to the last, at every tick."""
    tokens = list(range(64 * PREFIX_STRIDE))
    first, *waiting, last = (Chain(SCOPE, list(tokens), order=order) for order in (0, 2, 1, 3))
    for depth in range(1, 64):
        for each in waiting:
            assert each.equals(first, depth)
            assert each.equals(last, 64)
    assert sum(each.read_count for each in waiting) <= 3 * len(waiting) * len(tokens)


def test_equal_keys_of_different_texts_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards invariant 6 where hashing fails altogether."""

    def depth(pair: tuple[object, object]) -> int:
        before, _ = pair
        return before + 1 if isinstance(before, int) else 1

    monkeypatch.setattr(prefix, "hash", depth, raising=False)
    index = PrefixIndex()
    holding(index, 0, tuple(range(64)), 64)
    assert longest(index, list(range(100, 164))).length == 0
    assert longest(index, list(range(100, 164))).length_awaited == 0


@pytest.mark.parametrize(
    ("ours", "theirs", "usable"), [(40, 40, 59), (40, 30, 30), (30, 40, 30), (0, 0, 59)]
)
def test_what_was_computed_in_another_way_is_not_shared(
    ours: int, theirs: int, usable: int
) -> None:
    """Guards invariant 4: a prompt that holds an answer is not served by the answer's memory."""
    index = PrefixIndex()
    tokens = list(range(60))
    made = Holding(0, Chain(SCOPE, tokens, theirs), 60)
    index.extend(made)
    found = index.longest(Chain(SCOPE, tokens, ours), 59)
    assert found.length == found.length_awaited == usable


def test_what_background_work_will_compute_does_not_hide_what_a_live_one_will() -> None:
    """Guards a live prompt: it waits for the live one that computes the same, and not for more."""
    index = PrefixIndex()
    shared, more = tuple(range(64)), tuple(range(96))
    live = holding(index, 0, shared, 0)
    behind = holding(index, 1, more, 0)
    behind.is_background = True
    assert longest(index, [*more, 1]).length_awaited == len(shared)
    found = index.longest(Chain(SCOPE, [*more, 1]), 96, is_background=True)
    assert found.length_awaited == len(more)
    assert live.computed_depth == 0
