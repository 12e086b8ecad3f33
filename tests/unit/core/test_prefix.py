"""Which slot holds the longest prefix: found by hash, decided by equality."""

from hypothesis import given
from hypothesis import strategies as st

from jitney.core.limits import PREFIX_CHUNK
from jitney.core.prefix import Holding, Match, PrefixIndex
from tests.unit.core.sequences import sequence

SCOPE = "scope"


def holding(index: PrefixIndex, slot: int, tokens: tuple[int, ...], computed: int) -> Holding:
    made = Holding(slot, SCOPE, sequence(f"s{slot}", prompt=tokens))
    made.length = computed
    index.extend(made)
    return made


def longest(index: PrefixIndex, tokens: list[int], scope: str = SCOPE) -> Match:
    return index.longest(scope, tokens, [], len(tokens) - 1)


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=60), min_size=1, max_size=6),
    st.lists(st.integers(0, 1), min_size=2, max_size=60),
)
def test_it_finds_what_a_plain_search_finds(held: list[list[int]], tokens: list[int]) -> None:
    """Guards reuse: nothing that is not equal, and everything from the first chunk on.

    Fewer holdings than are compared at one depth, so the plain search is the exact answer.
    """
    index = PrefixIndex()
    base = [0] * PREFIX_CHUNK
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
    assert found.holding.tokens[:best] == wanted[:best]


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
    assert (found.length, found.promised) == (10, 99)
    one.length = 64
    assert longest(index, list(tokens)).length == 64


def test_what_left_is_not_found_any_more() -> None:
    """Guards memory that was released: a copy from it would be a copy of nothing."""
    index = PrefixIndex()
    tokens = tuple(range(64))
    one = holding(index, 0, tokens, 64)
    index.check([one])
    index.trim(one, 32)
    assert longest(index, list(tokens)).promised <= 64
    index.trim(one, 0)
    assert longest(index, list(tokens)).holding is None
    index.check([])
