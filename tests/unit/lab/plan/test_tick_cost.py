"""The cost of a batch, by hand; files that are wrong give one sentence."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from jitney.core.batch import Batch, Entry
from jitney.errors import ConfigError
from jitney_lab.plan.tick_cost import Curve, TickCost, read_cost, runs_of, write_cost
from tests.plan_for_tests import TRAITS, make_cost


def decode(slot: int, start: int) -> Entry:
    return Entry(slot, start, (7,), wants_token=True)


def with_points(name: str, points: list[list[float]]) -> Callable[[str], str]:
    """A change of the text of a file: another curve."""
    return lambda text: json.dumps(json.loads(text) | {name: points})


def test_a_curve_is_straight_between_its_points_and_beyond_them() -> None:
    curve = Curve([(2, 1.0), (4, 2.0), (8, 2.0)])
    assert [curve.seconds(size) for size in (1, 2, 3, 4, 6, 8, 100)] == [
        *(0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0)
    ]


def test_a_curve_does_not_fall_below_zero() -> None:
    assert Curve([(10, 1.0), (20, 9.0)]).seconds(0) == 0.0


def test_a_step_at_the_end_of_a_curve_does_not_go_on() -> None:
    """32 rows may take less time than 31, and 64 do not."""
    curve = Curve([(1, 1.0), (16, 16.0), (31, 34.0), (32, 32.0)])
    assert curve.seconds(64) == 64.0


@pytest.mark.parametrize(
    ("slots", "group", "gap", "runs"),
    [
        ((), 1, 2, []),
        ((), 1, None, []),
        ((9, 0, 30), 1, None, [3]),
        ((0, 1, 2), 1, 2, [3]),
        ((3, 0), 1, 2, [4]),
        ((0, 4), 1, 2, [1, 1]),
        ((28, 8, 4, 3, 0), 1, 2, [5, 1, 1]),
        ((1, 6), 4, 2, [8]),
        ((0, 9), 4, 2, [4, 4]),
        ((5,), 4, 2, [4]),
    ],
)
def test_slots_are_computed_in_runs(
    slots: tuple[int, ...], group: int, gap: int | None, runs: list[int]
) -> None:
    assert runs_of(slots, group, gap) == runs


def test_scattered_slots_cost_more_where_only_neighbours_are_computed_together() -> None:
    points = ((1, 1.0), (2, 1.5), (4, 2.5))
    batch = Batch(1, (), (decode(0, 1), decode(20, 1)))
    assert TickCost(make_cost(decodes=points)).pass_s(batch) == 1.5
    assert TickCost(make_cost(decodes=points, gap=2)).pass_s(batch) == 2.0


def test_a_batch_costs_the_sum_of_its_parts() -> None:
    cost = make_cost(
        decodes=((1, 1.0), (3, 3.0)),
        spans=((1, 0.5), (11, 5.5)),
        prompt_s=100.0,
        first_s=1000.0,
        contexts=((0, 0.0), (100, 1.0)),
        prompt_context_s=0.001,
        host_s=7.0,
        host_sequence_s=0.5,
    )
    ticks = TickCost(cost)
    entries = (decode(0, 10), decode(1, 20), Entry(2, 4, (1, 2, 3, 4), wants_token=False))
    # Two decodes that look back at 30 tokens; four tokens of one prompt, at 4 * 4 + 4 * 4 / 2.
    expected = 2.0 + 0.3 + 2.0 + 100.0 + 0.024
    assert ticks.pass_s(Batch(1, (), entries)) == pytest.approx(expected)
    ended = Entry(0, 0, (1, 2), wants_token=True)
    assert ticks.pass_s(Batch(2, (), (ended,))) == pytest.approx(1.0 + 1100.0 + 0.002)
    assert ticks.host_s(Batch(1, (), entries)) == 8.5


def test_a_token_that_the_backend_knows_counts_as_a_decode() -> None:
    cost = make_cost(decodes=((1, 1.0),))
    batch = Batch(1, (), (Entry(0, 5, (), wants_token=True, continues=True),))
    assert TickCost(cost).pass_s(batch) == 1.0


def test_other_slots_have_memory_in_proportion() -> None:
    assert TRAITS.at(8, None).kv_tokens == 8192
    assert TRAITS.at(8, None).slots_max == 12
    many = msgspec.structs.replace(TRAITS, slots=32, slots_max=48)
    assert [many.at(slots, None).slots_max for slots in (4, 16, 64)] == [8, 24, 80]
    assert TRAITS.at(1, None).kv_tokens == 1024
    # Room for the longest sequence that was asked for, in whole blocks.
    blocks = msgspec.structs.replace(TRAITS, block_tokens=32)
    assert [blocks.at(1, None, length).kv_tokens for length in (100, 1025)] == [1024, 1056]


def test_memory_that_is_given_is_not_raised() -> None:
    """Else a what-if with little memory would show no effect."""
    assert [TRAITS.at(8, given).kv_tokens for given in (5000, 64, 10)] == [5000, 64, 10]
    blocks = msgspec.structs.replace(TRAITS, block_tokens=32)
    assert blocks.at(8, 100, 1024).kv_tokens == 96
    with pytest.raises(
        ConfigError, match=r"kv_tokens is 10, and made takes memory in blocks of 32"
    ):
        blocks.at(8, 10)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text[:50], "is not a file that jitney plan --save-cost wrote"),
        (lambda text: "[]", "Expected `object`"),
        (lambda text: text.replace("jitney-cost-1", "jitney-cost-9"), "$.format"),
        (lambda text: text.replace('"host_s": 0.0', '"host_s": -1.0'), "$.host_s"),
        (lambda text: text.replace('"host_s": 0.0', '"host_s": 1e308'), "$.host_s"),
        (lambda text: text.replace('"kv_tokens": 4096', f'"kv_tokens": {10**30}'), "kv_tokens"),
        (with_points("decodes", [[1, 1e308]]), "$.decodes"),
        (lambda text: text.replace("host_s", "hots_s"), "hots_s"),
        (lambda text: text.replace('"slots": 4', '"slots": 0'), "$.traits.slots"),
        (with_points("decodes", [[1, 0.1], [8, 0.2], [8, 0.3]]), "for one size in decodes"),
        (with_points("spans_alone", [[16, 0.1], [16, 0.1]]), "for one size in spans_alone"),
        (with_points("spans_beside", [[16, 0.1], [16, 0.1]]), "for one size in spans_beside"),
        (with_points("contexts", [[0, 0.0], [0, 0.0]]), "for one size in contexts"),
        (with_points("decodes", [[0, 0.1]]), "no number of sequences in decodes"),
    ],
)
def test_a_wrong_file_gives_one_sentence(tmp_path: Path, change: object, told: str) -> None:
    path = tmp_path / "cost.json"
    write_cost(make_cost(), path)
    assert callable(change)
    path.write_text(change(path.read_text()))
    with pytest.raises(ConfigError) as caught:
        read_cost(path)
    assert told in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_a_cost_is_the_same_after_it_was_saved_also_with_a_mark_at_its_start(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cost.json"
    cost = make_cost(host_s=0.25)
    write_cost(cost, path)
    assert read_cost(path) == cost
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_cost(path) == cost
