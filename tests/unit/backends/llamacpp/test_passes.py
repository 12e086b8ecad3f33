"""The passes of a batch: what is fed, what is taken back, and which rows are whose."""

from hypothesis import given
from hypothesis import strategies as st

from jitney.backends.llamacpp.attention import PassShape
from jitney.backends.llamacpp.passes import FILLER, Pass, plan_passes, whole_pass
from jitney.backends.shared.slots import EntryRows, SlotContents
from jitney.core.batch import Entry, Sampling

ROOM = 256
PROMPT = 100


def span(slot: int, start: int, count: int, rows: range = range(0)) -> EntryRows:
    """Tokens of a slot from a position on; each is its position and a thousand."""
    tokens = tuple(range(1000 + start, 1000 + start + count))
    sampling = Sampling(seed=0, prompt_count=PROMPT)
    contents = SlotContents(list(range(1000, 1000 + start)), sampling)
    return EntryRows(0, Entry(slot, start, tokens, bool(rows)), contents, tokens, rows, range(0))


def plan(
    spans: list[EntryRows], shape: PassShape, held: dict[int, int] | None = None
) -> list[Pass]:
    lengths = {each.entry.slot: each.entry.start for each in spans} | (held or {})
    return list(plan_passes(spans, lambda slot: lengths.get(slot, 0), ROOM, shape))


def test_decodes_stand_in_one_pass_behind_the_prompts() -> None:
    """Guards the logits of the many: those of the last pass are not copied."""
    spans = [span(0, 100, 1, range(1)), span(1, 0, 20, range(1, 2)), span(2, 120, 1, range(2, 3))]
    prompt, decodes = plan(spans, PassShape())
    assert prompt.slots == [1] * 20
    assert decodes.slots == [0, 1, 2]
    assert decodes.positions == [100, 20, 120]
    assert decodes.cut_after == [(1, 20)]
    assert decodes.result_rows == [(0, 0), (2, 2)]


def test_groups_are_filled_with_neighbours_that_are_taken_back() -> None:
    """Guards rows in groups of four: slots of the group that have nothing to do."""
    (found,) = plan([span(5, 120, 1, range(1))], PassShape(rows_group=4), {4: 7, 6: 0, 7: 30})
    assert found.slots == [4, 5, 6, 7]
    assert found.positions == [7, 120, 0, 30]
    assert found.cut_after == [(4, 7), (6, 0), (7, 30)]
    assert found.result_rows == [(1, 0)]
    assert found.logit_rows == [0, 1, 2, 3]


def test_small_gaps_are_filled_unless_a_slot_is_full() -> None:
    """Guards slots without room: a token for the pass would fail the whole batch."""
    spans = [span(0, 120, 1, range(1)), span(2, 120, 1, range(1, 2))]
    assert plan(spans, PassShape(), {1: 9})[0].slots == [0, 1, 2]
    assert plan(spans, PassShape(), {1: ROOM})[0].slots == [0, 2]


def test_a_token_of_a_long_sequence_is_not_computed_alone() -> None:
    """Guards fused attention, which cuts a long sequence among threads when it is alone."""
    shape = PassShape(lone_tokens_max=120)
    assert plan([span(3, 119, 1, range(1))], shape)[0].slots == [3]
    assert plan([span(3, 120, 1, range(1))], shape)[0].slots == [2, 3]
    pair = [span(3, 120, 1, range(1)), span(4, 120, 1, range(1, 2))]
    assert plan(pair, shape)[0].slots == [3, 4]
    # The library begins another pass at each gap.
    apart = [span(0, 120, 1, range(1)), span(5, 120, 1, range(1, 2)), span(9, 10, 1, range(2, 3))]
    assert plan(apart, shape)[0].slots == [0, 1, 4, 5, 9]


def test_a_lone_token_of_a_prompt_takes_those_before_it_along() -> None:
    """Guards the last token behind a cached prefix: by itself it is another kernel's."""
    shape = PassShape(span_rows_min=8, decodes_differ=True)
    (found,) = plan([span(0, 40, 1, range(1))], shape)
    assert found.cut_before == (0, 33)
    assert found.tokens == list(range(1033, 1041))
    assert found.positions == list(range(33, 41))
    assert found.result_rows == [(0, 0)]
    assert found.logit_rows == [7]
    assert not found.cut_after


def test_a_short_prompt_is_filled_behind_its_end() -> None:
    """Guards prompts that begin: there is nothing before them to take along."""
    (found,) = plan([span(0, 0, 3, range(1))], PassShape(span_rows_min=8, decodes_differ=True))
    assert found.tokens == [1000, 1001, 1002, *[FILLER] * 5]
    assert found.cut_after == [(0, 3)]
    assert found.logit_rows == [2]


def test_long_spans_are_cut_into_equal_pieces() -> None:
    """Guards kernels that are others from some number of rows on."""
    found = plan([span(0, 0, 66, range(66))], PassShape(span_rows_max=60))
    assert [len(each.tokens) for each in found] == [33, 33]
    assert [row for each in found for _, row in each.result_rows] == list(range(66))


@given(
    st.integers(0, 90),
    st.integers(1, 80),
    st.booleans(),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 8, 16]),
    st.sampled_from([16, 60, 512]),
)
def test_every_row_is_computed_once_in_its_place(
    start: int, count: int, scored: bool, group: int, least: int, most: int
) -> None:
    """Guards all of it: pieces follow each other, in whole groups, and each row is its own."""
    rows = range(count) if scored else range(1)
    shape = PassShape(
        rows_group=group, span_rows_min=least, span_rows_max=most, decodes_differ=True
    )
    held = list(range(1000, 1000 + start))
    answered = {}
    for found in plan([span(0, start, count, rows)], shape):
        if found.cut_before is not None:
            del held[found.cut_before[1] :]
        assert found.positions == list(range(len(held), len(held) + len(found.tokens)))
        assert len(found.tokens) % group == 0 or start + count >= PROMPT
        held += found.tokens
        for at, row in found.result_rows:
            answered[row] = found.positions[found.logit_rows[at]]
        for _, length in found.cut_after:
            del held[length:]
    assert held == list(range(1000, 1000 + start + count))
    last = start + count
    assert answered == {row: last - len(rows) + at for at, row in enumerate(rows)}


def test_one_pool_is_one_pass() -> None:
    """Guards the other layout: there the library itself cuts, and nothing is filled."""
    found = whole_pass([span(0, 5, 2, range(1)), span(3, 0, 1, range(1, 2))])
    assert found.slots == [0, 0, 3]
    assert found.logit_rows == [1, 2]
    assert found.result_rows == [(0, 0), (1, 1)]
