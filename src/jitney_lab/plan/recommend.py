"""Searches the smallest fleet, and its settings, that sustains a load within limits. Bounded work.

Coarse to fine, one replica at a time: first slots, then one other setting after the other with
those slots, then slots again nearby. A setting is changed only if that gains something: the user's
is better than one that is as good. Last, replicas: the fewest that sustain the load, found by
bisection. Each number is checked behind one router at the whole load, with other requests than
those of the search.

The policy `sjf` sorts by `max_tokens`, and in a simulation that is the length of the answer. In
production it is what callers wrote, or one number for all who wrote none. So it is never
recommended: what it would sustain is found for the best settings, and reported as such.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any  # Any: settings are of several types

from jitney.core.scheduler_settings import Mix, Policy, SchedulerSettings, Strategy
from jitney_lab.plan.pool import Pool
from jitney_lab.plan.replica import CELL, REPLICAS_MAX
from jitney_lab.plan.search import (
    HIGHEST,
    SLOTS,
    Capacity,
    Figures,
    LoadCase,
    PlanQuestion,
    find_capacity,
    run_load,
)
from jitney_lab.plan.traffic import Traffic

BUDGETS = (256, 512, 1024, 4096)
CHUNKS = (64, 128, 256, 512, 1024)
MIXES = (Mix.BOUNDED_STALL, Mix.DECODE_FIRST, Mix.PREFILL_FIRST)
GAIN = 1.03
"""Another setting must sustain this much more than the user's."""

CHECKS = 4
"""How many numbers of replicas are tried behind the router at first."""

LOADS = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5)
"""Of the picture, as shares of the load that the replicas sustain one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """How the fleet does at a load."""

    per_s: float
    goodput_per_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Settings, and the fewest replicas with which they sustain the load within the limits."""

    settings: SchedulerSettings
    capacity: Capacity
    replicas: int | None
    """None: the limits are not met with any number of replicas."""
    figures: Figures
    """Of all replicas at the whole load; of one that is nearly idle, where `replicas` is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The result of a search. The curves are of as many replicas as `best` has."""

    best: Fleet
    present: Fleet
    """The same load with the user's settings."""
    tried: dict[SchedulerSettings, Capacity]
    curve: tuple[CurvePoint, ...]
    present_curve: tuple[CurvePoint, ...]
    knee_per_s: float
    """The highest load that the fleet sustains within the limits; 0 without a fleet."""
    sjf_per_s: float | None = None
    """What one replica sustains with `sjf` in place of `fifo`; None where it has another policy."""


def recommend(question: PlanQuestion, pool: Pool) -> Recommendation:
    """Search settings and replicas."""
    search = Search(question, pool)
    present = question.settings
    search.measure([present])
    best = search.run(present)
    search.check(present, best)
    if search.tried[best].per_s <= GAIN * search.tried[present].per_s:
        best = present
    sjf_per_s = None
    if best.policy is Policy.FIFO:
        sjf_per_s = search.sustained(replace(best, policy=Policy.SJF)).per_s
    fleet, present_fleet = _fleets(search, best, present)
    about_per_s = max((fleet.replicas or 0) * fleet.capacity.per_s, question.per_s)
    curve = present_curve = _curve(question, fleet, about_per_s, pool)
    if present != best:
        other = replace(present_fleet, replicas=fleet.replicas)
        present_curve = _curve(question, other, about_per_s, pool)
    return Recommendation(
        best=fleet,
        present=present_fleet,
        tried=search.tried,
        curve=curve,
        present_curve=present_curve,
        knee_per_s=_sustained_per_s(question, fleet, curve),
        sjf_per_s=sjf_per_s,
    )


class Search:
    """What one replica sustains with each of the settings that were tried."""

    def __init__(self, question: PlanQuestion, pool: Pool) -> None:
        self.question = question
        self.pool = pool
        self.tried: dict[SchedulerSettings, Capacity] = {}

    def run(self, best: SchedulerSettings) -> SchedulerSettings:
        """The best settings from here, coarse to fine."""
        slots_max = max(self.question.cost.decodes)[0]
        best = self._better(best, [_with_slots(best, each) for each in SLOTS if each <= slots_max])
        for name, values in _steps(best, self.question.traffic):
            best = self._better(best, [_changed(best, name, value) for value in values])
        near = [round(best.max_num_seqs * factor) for factor in (0.75, 1.5)]
        near = [min(self.question.slots_max, slots_max, max(1, each)) for each in near]
        return self._better(best, [_with_slots(best, each) for each in near])

    def measure(self, choices: Sequence[SchedulerSettings]) -> None:
        """Find what one replica sustains with each of these settings, once."""
        fresh = [each for each in dict.fromkeys(choices) if each not in self.tried]
        cases = [LoadCase(question=self.question, settings=each) for each in fresh]
        self.tried |= zip(fresh, self.pool.map(find_capacity, cases), strict=True)

    def check(self, *chosen: SchedulerSettings) -> None:
        """Find it again with the requests with which a fleet is checked, which may be a little
        harder. The lower of the two counts."""
        settings = list(dict.fromkeys(chosen))
        cases = [LoadCase(question=_checking(self.question), settings=each) for each in settings]
        for each, other in zip(settings, self.pool.map(find_capacity, cases), strict=True):
            self.tried[each] = min(self.tried[each], other, key=lambda known: known.per_s)

    def sustained(self, settings: SchedulerSettings) -> Capacity:
        """What one replica sustains with these settings, checked."""
        self.measure([settings])
        self.check(settings)
        return self.tried[settings]

    def _better(
        self, best: SchedulerSettings, choices: Sequence[SchedulerSettings]
    ) -> SchedulerSettings:
        self.measure(choices)
        found = max(choices, key=lambda each: self.tried[each].per_s, default=best)
        return found if self.tried[found].per_s > GAIN * self.tried[best].per_s else best


def _checking(question: PlanQuestion) -> PlanQuestion:
    """The question with other requests."""
    return replace(question, seed=question.seed + 1)


def _with_slots(settings: SchedulerSettings, slots: int) -> SchedulerSettings:
    budget = max(settings.max_num_batched_tokens, slots)
    return replace(settings, max_num_seqs=slots, max_num_batched_tokens=budget)


def _steps(settings: SchedulerSettings, traffic: Traffic) -> list[tuple[str, Sequence[object]]]:
    """The other settings, in the order in which they are tried; only values that matter here."""
    tokens = settings.max_num_seqs * traffic.prompt_max
    chunk_max = min(traffic.prompt_max - 1, settings.max_num_batched_tokens)
    steps: list[tuple[str, Sequence[object]]] = []
    if settings.strategy is Strategy.CONTINUOUS:
        budgets = [each for each in BUDGETS if settings.max_num_seqs <= each < tokens]
        steps.append(("mix", MIXES))
        steps.append(("prefill_chunk", [each for each in CHUNKS if each <= chunk_max]))
        steps.append(("max_num_batched_tokens", budgets))
    if settings.policy is Policy.SJF:
        # It is simulated at its best: what sustains more than that, does so in production.
        steps.append(("policy", (Policy.FIFO,)))
    return steps


def _changed(settings: SchedulerSettings, name: str, value: Any) -> SchedulerSettings:
    """The settings with another value."""
    if name == "max_num_batched_tokens":
        settings = replace(settings, prefill_chunk=min(settings.prefill_chunk, value))
    return replace(settings, **{name: value})


def _fleets(
    search: Search, best: SchedulerSettings, present: SchedulerSettings
) -> tuple[Fleet, Fleet]:
    """Both fleets. Their figures are of the same requests, also where one has more replicas."""
    present_fleet = find_fleet(search, present)
    if best == present:
        return present_fleet, present_fleet
    fleet = find_fleet(search, best, like=present_fleet.replicas or 1)
    if (fleet.replicas or 1) > (present_fleet.replicas or 1):
        present_fleet = find_fleet(search, present, like=fleet.replicas or 1)
    return fleet, present_fleet


def find_fleet(search: Search, settings: SchedulerSettings, like: int = 1) -> Fleet:
    """The fewest replicas that meet the limits behind one router, and how they do.

    They get at least as many requests as a fleet of `like` replicas.

    It takes for granted that more replicas are never worse. If 10 % more than the load needs by the
    capacity of one do not meet the limits either, those are given, with their figures.
    """
    question, capacity = search.question, search.tried[settings]
    if capacity.per_s == 0.0:
        return Fleet(settings=settings, capacity=capacity, replicas=None, figures=capacity.figures)
    case = LoadCase(
        question=_checking(question), settings=settings, per_s=question.per_s, like=like
    )

    def run(numbers: Sequence[int]) -> dict[int, Figures]:
        cases = [replace(case, replicas=number) for number in numbers]
        return dict(zip(numbers, search.pool.map(run_load, cases), strict=True))

    # With fewer the queue grows without end, and a short run may not show it.
    least = _bounded(question.per_s / (HIGHEST * capacity.most_per_s), 1)
    guess = _bounded(question.per_s / capacity.per_s, least)
    # A shared queue smooths: fewer replicas may do. Chance may ask for more.
    spare = max(1, guess // 20)
    found = run(sorted({_bounded(guess + spare * at, least) for at in range(-1, CHECKS - 1)}))
    good = [number for number in found if found[number].share >= question.share]
    replicas = min(good, default=max(found))
    low = max((each for each in found if each < replicas), default=least - 1)
    while good and replicas - low > 1:
        middle = (low + replicas) // 2
        found |= run([middle])
        if found[middle].share >= question.share:
            replicas = middle
        else:
            low = middle
    figures = found[replicas]
    if replicas == 1 and figures.share >= question.share:
        # The search of what one sustains is a little coarse.
        capacity = replace(capacity, per_s=max(capacity.per_s, question.per_s))
    # Rates of a fleet from those of its cell.
    factor = replicas / min(replicas, CELL)
    figures = replace(
        figures, per_s=figures.per_s * factor, tokens_per_s=figures.tokens_per_s * factor
    )
    return Fleet(settings=settings, capacity=capacity, replicas=replicas, figures=figures)


def _bounded(replicas: float, least: int) -> int:
    return min(REPLICAS_MAX, max(least, math.ceil(replicas)))


def _curve(
    question: PlanQuestion, fleet: Fleet, about_per_s: float, pool: Pool
) -> tuple[CurvePoint, ...]:
    """Goodput by load, from nearly idle to well beyond what the fleet sustains; empty without one.

    Never more than its throughput: a short run ends before its queue has grown.
    """
    if fleet.replicas is None:
        return ()
    most_per_s = fleet.replicas * fleet.capacity.most_per_s
    case = LoadCase(question=question, settings=fleet.settings, replicas=fleet.replicas)
    loads = [share * about_per_s for share in LOADS]
    points = []
    results = pool.map(run_load, [replace(case, per_s=per_s) for per_s in loads])
    for per_s, figures in zip(loads, results, strict=True):
        share = min(figures.share, most_per_s / per_s)
        # Not the throughput of the run: what arrived by chance is a little more or less.
        points.append(CurvePoint(per_s=per_s, goodput_per_s=share * per_s, share=share))
    return tuple(points)


def _sustained_per_s(question: PlanQuestion, fleet: Fleet, curve: Sequence[CurvePoint]) -> float:
    """The highest load that a fleet sustains within the limits.

    One replica sustains what the search found. The curve, of few points, would say something else.
    """
    if fleet.replicas == 1:
        return fleet.capacity.per_s
    tested = question.per_s if fleet.figures.share >= question.share else 0.0
    # Above this load the queue grows without end.
    most_per_s = HIGHEST * (fleet.replicas or 0) * fleet.capacity.most_per_s
    return min(max(knee(curve, question.share), tested), most_per_s)


def knee(curve: Sequence[CurvePoint], share: float) -> float:
    """The load up to which this share of requests is within the limits; 0 if at none."""
    reached = 0.0
    for low, high in pairwise(curve):
        if low.share < share:
            return reached
        reached = low.per_s
        if high.share < share:
            part = (low.share - share) / (low.share - high.share)
            return low.per_s + part * (high.per_s - low.per_s)
    return curve[-1].per_s if curve else 0.0
