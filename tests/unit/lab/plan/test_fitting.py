"""A fit to ticks of a known cost finds that cost."""

import random

import msgspec
import pytest

from jitney.core.batch import Batch, Entry
from jitney.errors import SetupError
from jitney_lab.plan.fitting import BatchShape, MeasuredTick, fit_cost, measured, shape_of
from jitney_lab.plan.tick_cost import Cost, TickCost
from tests.plan_for_tests import TRAITS, make_cost, member, tick

MEASURED_ON = {"model": "made", "machine": "none", "measured_at": "never", "traits": TRAITS}
KNOWN = make_cost(
    decodes=((1, 0.010), (2, 0.012), (4, 0.02), (8, 0.03), (16, 0.07)),
    spans=((16, 0.02), (64, 0.05), (256, 0.3), (512, 0.5)),
    prompt_s=0.001,
    first_s=0.002,
    contexts=((20, 0.0), (300, 0.003)),
    prompt_context_s=1e-7,
    host_s=0.001,
    host_sequence_s=0.0001,
)


def batches(source: random.Random) -> list[Batch]:
    """Of all kinds, with sizes at and between the knots."""
    found = []
    for number in range(300):
        decodes = source.choice((0, 1, 2, 3, 4, 6, 8, 12, 16))
        spans = source.choice(((), (16,), (64,), (256,), (512,), (40,), (100, 60), (16, 48, 64)))
        entries = [
            Entry(at, source.choice((20, 300)), (1,), wants_token=True) for at in range(decodes)
        ]
        for span in spans:
            ends = source.random() < 0.5
            start = source.choice((0, 100, 200))
            entries.append(Entry(len(entries), start, (1,) * span, wants_token=ends))
        if entries:
            found.append(Batch(number, (), tuple(entries)))
    return found


def shape(batch: Batch) -> BatchShape:
    decodes = [each for each in batch.entries if each.length == 1]
    prompts = [each for each in batch.entries if each.length > 1]
    return BatchShape(
        contexts=tuple(each.start for each in decodes),
        prompts=len(prompts),
        firsts=sum(each.wants_token for each in prompts),
        span_tokens=sum(each.length for each in prompts),
        pairs=sum(each.length * (each.start + each.length / 2) for each in prompts),
        slots=tuple(each.slot for each in decodes),
    )


def ticks_of(cost: Cost, source: random.Random) -> list[MeasuredTick]:
    known = TickCost(cost)
    return [
        MeasuredTick(shape(each), known.pass_s(each), known.host_s(each))
        for each in batches(source)
    ]


def test_a_fit_finds_a_known_cost() -> None:
    found = fit_cost(ticks_of(KNOWN, random.Random(1)), **MEASURED_ON)
    assert found.error < 0.002
    fitted, known = TickCost(found), TickCost(KNOWN)
    for batch in batches(random.Random(2)):
        assert fitted.pass_s(batch) == pytest.approx(known.pass_s(batch), rel=0.02)
        assert fitted.host_s(batch) == pytest.approx(known.host_s(batch), rel=0.02)


def test_a_fit_is_not_led_astray_by_disturbed_ticks() -> None:
    source = random.Random(3)
    ticks = [
        MeasuredTick(each.shape, each.pass_s * (5.0 if source.random() < 0.05 else 1.0), None)
        for each in ticks_of(KNOWN, source)
    ]
    fitted, known = TickCost(fit_cost(ticks, **MEASURED_ON)), TickCost(KNOWN)
    for batch in batches(random.Random(4)):
        assert fitted.pass_s(batch) == pytest.approx(known.pass_s(batch), rel=0.1)


def scattered(cost: Cost, source: random.Random) -> list[MeasuredTick]:
    """Ticks of sequences in slots here and there."""
    known = TickCost(cost)
    found = []
    for number in range(200):
        slots = sorted(source.sample(range(32), source.choice((1, 2, 4, 8, 16))))
        entries = tuple(Entry(slot, 20, (1,), wants_token=True) for slot in slots)
        batch = Batch(number, (), entries)
        found.append(MeasuredTick(shape(batch), known.pass_s(batch)))
    return found


@pytest.mark.parametrize(("group", "gap"), [(1, None), (1, 2), (4, 2)])
def test_a_fit_finds_how_slots_are_computed_together(group: int, gap: int | None) -> None:
    # Four rows take less than three, as on a real machine.
    points = ((1, 0.010), (3, 0.02), (4, 0.015), (8, 0.03), (32, 0.11))
    cost = msgspec.structs.replace(KNOWN, decodes=points, group=group, gap=gap)
    ticks = [*ticks_of(cost, random.Random(6)), *scattered(cost, random.Random(7))]
    found = fit_cost(ticks, **MEASURED_ON)
    assert (found.group, found.gap) == (group, gap)
    assert found.error < 0.01
    fitted = TickCost(found)
    for each in scattered(cost, random.Random(8)):
        entries = [Entry(slot, 20, (1,), wants_token=True) for slot in each.shape.slots]
        assert fitted.pass_s(Batch(0, (), tuple(entries))) == pytest.approx(each.pass_s, rel=0.05)


def test_no_term_is_below_zero() -> None:
    source = random.Random(5)
    ticks = [
        MeasuredTick(each.shape, each.pass_s * source.uniform(0.7, 1.3), each.host_s)
        for each in ticks_of(make_cost(), source)
    ]
    found = fit_cost(ticks, **MEASURED_ON)
    terms = [found.prompt_s, found.first_s, found.prompt_context_s]
    terms += [
        seconds
        for _, seconds in (*found.decodes, *found.spans_alone, *found.spans_beside, *found.contexts)
    ]
    assert min(terms) >= 0.0


def test_ticks_of_one_kind_are_not_enough() -> None:
    with pytest.raises(SetupError, match="too few to fit a cost"):
        fit_cost([MeasuredTick(BatchShape(contexts=(1,)), 0.01)], **MEASURED_ON)


def test_the_shape_of_a_tick_is_counted_from_its_members() -> None:
    found = shape_of(
        tick(
            1.0,
            10.0,
            member(50, 1, samples=True),
            member(10, 4, samples=False),
            member(0, 6, samples=True),
            member(7, 1, samples=False),
        )
    )
    assert found == BatchShape(
        contexts=(50,), prompts=3, firsts=1, span_tokens=11, pairs=48 + 18 + 7.5, slots=(0,)
    )


def test_time_between_ticks_counts_only_while_there_is_work() -> None:
    each = member(5, 1, samples=True)
    ticks = [tick(1.0, 10, each), tick(1.012, 10, each, active=0), tick(2.0, 10, each)]
    found = measured(ticks)
    assert [one.pass_s for one in found] == [0.01, 0.01, 0.01]
    assert found[0].host_s == pytest.approx(0.002)
    assert [one.host_s for one in found[1:]] == [None, None]


def test_a_tick_with_members_that_ended_meanwhile_is_left_out() -> None:
    """Guards the fit: the time is that of the whole batch, and the shape of a part of it."""
    each = member(5, 1, samples=True)
    whole, cut = tick(1.0, 10.0, each), tick(1.012, 10.0, each, ended=1)
    assert measured([cut]) == []
    (only,) = measured([whole, cut])
    assert only.shape == shape_of(whole)
    assert only.host_s == pytest.approx(0.002)
