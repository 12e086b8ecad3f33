"""Searches the smallest fleet, and its settings, that bears a load within limits. Bounded work.

Coarse to fine, one replica at a time: first slots, then one other setting after the other with
those slots, then slots again nearby. A setting is changed only if that gains something: the user's
is better than one that is as good. Last, replicas: the fewest that bear the load, found by
bisection. Each number is checked behind one router at the whole load, with other requests than
those of the search.

The policy `sjf` sorts by `max_tokens`, and in a simulation that is the length of the answer. In
production it is what callers wrote, or one number for all who wrote none. So it is never
recommended: what it would bear is found for the best settings, and told as such.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any  # Any: settings are of several types

from jitney.core.scheduler_settings import Mix, Policy, SchedulerSettings, Strategy
from jitney_lab.plan.figures import Figures, Limits
from jitney_lab.plan.pool import Pool
from jitney_lab.plan.replica import CELL, REPLICAS_MAX, Configuration
from jitney_lab.plan.search import (
    HIGHEST,
    Capacity,
    CapacityCase,
    LoadCase,
    count_for,
    find_capacity,
    run_load,
)
from jitney_lab.plan.tick_cost import Cost
from jitney_lab.plan.traffic import Traffic

SLOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BUDGETS = (256, 512, 1024, 4096)
CHUNKS = (64, 128, 256, 512, 1024)
MIXES = (Mix.BOUNDED_STALL, Mix.DECODE_FIRST, Mix.PREFILL_FIRST)
GAIN = 1.03
"""Another setting must bear this much more than the user's."""

CHECKS = 4
"""How many numbers of replicas are tried behind the router at first."""

LOADS = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5)
"""Of the picture, as shares of the load that the replicas bear one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """What is asked: a load, limits, and where the search begins."""

    cost: Cost
    traffic: Traffic
    per_s: float
    limits: Limits
    share: float
    settings: SchedulerSettings
    kv_tokens: int | None
    """The memory of a replica, if the user gave it."""
    seed: int
    backend: str
    """What the settings say. The cost is that of one backend, and `auto` may take another."""
    count: int | None = None
    """Requests of each simulation for one replica; None: as many as are good."""

    def configuration(self, settings: SchedulerSettings, replicas: int = 1) -> Configuration:
        """So many replicas with these settings."""
        traits = self.cost.traits.at(settings.max_num_seqs, self.kv_tokens, settings.model_len_max)
        return Configuration(settings, traits, replicas)

    @property
    def slots_max(self) -> int:
        """The most slots that are tried."""
        return max(self.settings.max_num_seqs, min(SLOTS[-1], max(self.cost.decodes)[0]))

    def load(
        self, settings: SchedulerSettings, per_s: float, replicas: int = 1, like: int = 1
    ) -> LoadCase:
        """A load on a fleet; a large one is a cell with its part of the load.

        All settings get the same requests, and so does a fleet of `like` replicas if it is larger.
        """
        cell = min(replicas, CELL)
        sized = max(cell, min(like, CELL))
        return LoadCase(
            configuration=self.configuration(settings, cell),
            cost=self.cost,
            traffic=self.traffic,
            limits=self.limits,
            per_s=per_s * cell / replicas,
            seed=self.seed,
            count=sized * (self.count or count_for(self.traffic)),
            slots=sized * self.slots_max,
        )

    def capacity_cases(self, settings: SchedulerSettings) -> tuple[CapacityCase, CapacityCase]:
        """What one replica bears, with the requests of the search, and with those with which a
        fleet is checked: they may be a little harder."""
        load = self.load(settings, 0.0)
        return (
            CapacityCase(load=load, share=self.share),
            CapacityCase(load=replace(load, seed=self.seed + 1), share=self.share),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Settings of one replica, and what it bears."""

    settings: SchedulerSettings
    capacity: Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """How the fleet does at a load."""

    per_s: float
    goodput_per_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Settings, and the fewest replicas with which they bear the load within the limits."""

    settings: SchedulerSettings
    capacity: Capacity
    replicas: int | None
    """None: the limits are not met with any number of replicas."""
    figures: Figures
    """Of all replicas at the whole load; of one that is nearly idle, where `replicas` is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What was found. The curves are of as many replicas as `best` has."""

    best: Fleet
    present: Fleet
    """The same load with the user's settings."""
    tried: tuple[Tried, ...]
    curve: tuple[CurvePoint, ...]
    present_curve: tuple[CurvePoint, ...]
    knee_per_s: float
    """The highest load that the fleet bears within the limits; 0 without a fleet."""
    sjf_per_s: float | None = None
    """What one replica bears with `sjf` in place of `fifo`; None where it has another policy."""


def recommend(question: PlanQuestion, pool: Pool) -> Recommendation:
    """Search settings and replicas."""
    search = _Search(question, pool)
    first = search.measure([question.settings])[0]
    present, best = search.checked([first, search.run(first)])
    if best.capacity.per_s <= GAIN * present.capacity.per_s:
        best = present
    sjf_per_s = None
    if best.settings.policy is Policy.FIFO:
        sjf_per_s = search.bears_per_s(replace(best.settings, policy=Policy.SJF))
    fleet, present_fleet = _fleets(question, best, present, pool)
    curve: tuple[CurvePoint, ...] = ()
    present_curve: tuple[CurvePoint, ...] = ()
    if fleet.replicas is not None:
        about_per_s = max(fleet.replicas * best.capacity.per_s, question.per_s)
        curve = present_curve = _curve(question, fleet, about_per_s, pool)
        if present is not best:
            other = replace(present_fleet, replicas=fleet.replicas)
            present_curve = _curve(question, other, about_per_s, pool)
    return Recommendation(
        best=fleet,
        present=present_fleet,
        tried=tuple(search.tried),
        curve=curve,
        present_curve=present_curve,
        knee_per_s=_bears_per_s(question, fleet, curve),
        sjf_per_s=sjf_per_s,
    )


def _fleets(question: PlanQuestion, best: Tried, present: Tried, pool: Pool) -> tuple[Fleet, Fleet]:
    """Both fleets. Their figures are of the same requests, also where one has more replicas."""
    present_fleet = find_fleet(question, present, pool)
    if best is present:
        return present_fleet, present_fleet
    fleet = find_fleet(question, best, pool, like=present_fleet.replicas or 1)
    if (fleet.replicas or 1) > (present_fleet.replicas or 1):
        present_fleet = find_fleet(question, present, pool, like=fleet.replicas or 1)
    return fleet, present_fleet


def _bears_per_s(question: PlanQuestion, fleet: Fleet, curve: Sequence[CurvePoint]) -> float:
    """The highest load that a fleet bears within the limits.

    One replica bears what the search found. The curve, of few points, would say something else.
    """
    if fleet.replicas == 1:
        return fleet.capacity.per_s
    borne = question.per_s if fleet.figures.share >= question.share else 0.0
    return min(max(knee(curve, question.share), borne), _most_per_s(fleet))


def _most_per_s(fleet: Fleet) -> float:
    """The load above which the queue grows without end."""
    return HIGHEST * (fleet.replicas or 0) * fleet.capacity.most_per_s


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


class _Search:
    """The settings that were tried, each once."""

    def __init__(self, question: PlanQuestion, pool: Pool) -> None:
        self._question = question
        self._pool = pool
        self.tried: list[Tried] = []

    def run(self, best: Tried) -> Tried:
        """Coarse to fine."""
        slots_max = max(self._question.cost.decodes)[0]
        slots = [each for each in SLOTS if each <= slots_max]
        best = self._better(best, [self._slots(best.settings, each) for each in slots])
        for name, values in _steps(best.settings, self._question.traffic):
            changed = [_changed(best.settings, name, value) for value in values]
            best = self._better(best, [each for each in changed if each is not None])
        near = [round(best.settings.max_num_seqs * factor) for factor in (0.75, 1.5)]
        near = [min(self._question.slots_max, slots_max, max(1, each)) for each in near]
        return self._better(best, [self._slots(best.settings, each) for each in near])

    def measure(self, choices: Sequence[SchedulerSettings]) -> list[Tried]:
        """What one replica bears with each of these settings."""
        cases = [self._question.capacity_cases(each)[0] for each in choices]
        found = self._pool.map(find_capacity, cases)
        tried = [
            Tried(settings=settings, capacity=capacity)
            for settings, capacity in zip(choices, found, strict=True)
        ]
        self.tried += tried
        return tried

    def checked(self, chosen: Sequence[Tried]) -> list[Tried]:
        """What one replica bears with these settings, also with the requests with which a fleet is
        checked: they may be a little harder."""
        cases = [self._question.capacity_cases(each.settings)[1] for each in chosen]
        found = [
            replace(each, capacity=min(each.capacity, other, key=lambda known: known.per_s))
            for each, other in zip(chosen, self._pool.map(find_capacity, cases), strict=True)
        ]
        known = {each.settings: each for each in found}
        self.tried = [known.get(each.settings, each) for each in self.tried]
        return found

    def bears_per_s(self, settings: SchedulerSettings) -> float:
        """What one replica bears with these settings."""
        known = [each for each in self.tried if each.settings == settings]
        return self.checked(known or self.measure([settings]))[0].capacity.per_s

    def _better(self, best: Tried, choices: list[SchedulerSettings]) -> Tried:
        known = [each.settings for each in self.tried]
        fresh: list[SchedulerSettings] = []
        for each in choices:
            if each not in known and each not in fresh:
                fresh.append(each)
        if not fresh:
            return best
        found = max(self.measure(fresh), key=lambda each: each.capacity.per_s)
        is_better = found.capacity.per_s > GAIN * best.capacity.per_s
        return found if is_better else best

    def _slots(self, settings: SchedulerSettings, slots: int) -> SchedulerSettings:
        budget = max(settings.max_num_batched_tokens, slots)
        return replace(settings, max_num_seqs=slots, max_num_batched_tokens=budget)


def _steps(settings: SchedulerSettings, traffic: Traffic) -> list[tuple[str, Sequence[object]]]:
    """The other settings, in the order in which they are tried; only values that matter here."""
    chunks = [each for each in CHUNKS if each < traffic.prompt_max]
    tokens = settings.max_num_seqs * traffic.prompt_max
    budgets = [each for each in BUDGETS if settings.max_num_seqs <= each < tokens]
    steps: list[tuple[str, Sequence[object]]] = [
        ("mix", MIXES),
        ("prefill_chunk", chunks),
        ("max_num_batched_tokens", budgets),
    ]
    if settings.policy is Policy.SJF:
        # It is simulated at its best: what bears more than that, bears more in production.
        steps.append(("policy", (Policy.FIFO,)))
    return steps if settings.strategy is Strategy.CONTINUOUS else steps[3:]


def _changed(settings: SchedulerSettings, name: str, value: object) -> SchedulerSettings | None:
    """The settings with another value; None if that is not possible."""
    values: dict[str, Any] = {name: value}
    if name == "max_num_batched_tokens":
        assert isinstance(value, int), value
        values["prefill_chunk"] = min(settings.prefill_chunk, value)
    if name == "prefill_chunk":
        assert isinstance(value, int), value
        if value > settings.max_num_batched_tokens:
            return None
    return replace(settings, **values)


def find_fleet(question: PlanQuestion, tried: Tried, pool: Pool, like: int = 1) -> Fleet:
    """The fewest replicas that meet the limits behind one router, and how they do.

    They get at least as many requests as a fleet of `like` replicas.

    It takes for granted that more replicas are never worse. If 10 % more than the load needs by the
    capacity of one do not meet the limits either, those are given, with their figures.
    """
    settings, capacity = tried.settings, tried.capacity
    if capacity.per_s == 0.0:
        return Fleet(settings=settings, capacity=capacity, replicas=None, figures=capacity.figures)
    other = replace(question, seed=question.seed + 1)

    def run(numbers: list[int]) -> dict[int, Figures]:
        cases = [other.load(settings, question.per_s, number, like) for number in numbers]
        return dict(zip(numbers, pool.map(run_load, cases), strict=True))

    # With fewer the queue grows without end, and a short run may not show it.
    least = _bounded(question.per_s / (HIGHEST * capacity.most_per_s), 1)
    guess = _bounded(question.per_s / capacity.per_s, least)
    # A shared queue smooths: fewer replicas may do. Chance may ask for more.
    spare = max(1, guess // 20)
    numbers = {_bounded(guess + spare * place, least) for place in range(-1, CHECKS - 1)}
    found = run(sorted(numbers))
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
        # The search of what one bears is a little coarse.
        capacity = replace(capacity, per_s=max(capacity.per_s, question.per_s))
    return Fleet(
        settings=settings, capacity=capacity, replicas=replicas, figures=_whole(figures, replicas)
    )


def _bounded(replicas: float, least: int) -> int:
    return min(REPLICAS_MAX, max(least, math.ceil(replicas)))


def _whole(figures: Figures, replicas: int) -> Figures:
    """The figures of a fleet from those of its cell."""
    factor = replicas / min(replicas, CELL)
    return replace(
        figures, per_s=figures.per_s * factor, tokens_per_s=figures.tokens_per_s * factor
    )


def _curve(
    question: PlanQuestion, fleet: Fleet, about_per_s: float, pool: Pool
) -> tuple[CurvePoint, ...]:
    """Goodput by load, from nearly idle to well beyond what the fleet bears.

    Never more than its throughput: a short run ends before its queue has grown.
    """
    assert fleet.replicas is not None, "without a fleet there is no curve"
    replicas = fleet.replicas
    most_per_s = replicas * fleet.capacity.most_per_s
    loads = [share * about_per_s for share in LOADS]
    cases = [question.load(fleet.settings, per_s, replicas) for per_s in loads]
    points = []
    for per_s, figures in zip(loads, pool.map(run_load, cases), strict=True):
        share = min(figures.share, most_per_s / per_s)
        # Not the throughput of the run: what arrived by chance is a little more or less.
        points.append(CurvePoint(per_s=per_s, goodput_per_s=share * per_s, share=share))
    return tuple(points)
