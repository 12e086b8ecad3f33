"""The load that one replica bears within limits, and how a fleet does at a load: simulations.

Each is one function of one frozen case, so that a pool of processes can run it.

A load on replicas that begin empty is judged when they have filled, and only while requests still
arrive: the first requests, and the last, share their ticks with fewer others than all between.

Tests: tests/unit/lab/plan/test_recommend.py.
"""

import math
from dataclasses import dataclass, replace

from jitney.core import limits as core_limits
from jitney_lab.bench.workload import Workload
from jitney_lab.plan.figures import Figures, Limits, figures_of
from jitney_lab.plan.replica import Configuration
from jitney_lab.plan.simulate import SimulatedRun, simulate
from jitney_lab.plan.tick_cost import Cost
from jitney_lab.plan.traffic import Traffic

ENTRIES = 8_000
COUNT_MIN, COUNT_MAX = 150, 600
"""A simulation has so many requests that their answers have about `ENTRIES` tokens together."""

WARM, TAIL = 2, 1
"""Requests for each slot, of the first and of the last, that do not count."""

COUNT_SLOTS = 8
"""A simulation has at least so many requests for each slot."""

LOWEST = 0.02
"""A load of this share of the most throughput is as good as an idle replica."""

HIGHEST = 0.97
"""Above this share of it the queue grows without end, though a short run may not show it."""

BISECTIONS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCase:
    """One load on one configuration."""

    configuration: Configuration
    cost: Cost
    traffic: Traffic
    limits: Limits
    per_s: float
    """0: as much as it bears, from clients that ask again and again."""
    seed: int
    count: int | None = None
    slots: int | None = None
    """It has as many requests, and as many of them count, as so many slots need; None: as its own
    slots need. So settings that are compared get the same requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCase:
    """One workload, as it was, on one configuration."""

    configuration: Configuration
    cost: Cost
    workload: Workload
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What one replica bears: the highest load within the limits, and how it does there."""

    most_per_s: float
    """The throughput with requests always waiting, limits aside."""
    per_s: float
    """0 if the limits are not met at any load."""
    figures: Figures
    """At `per_s`; nearly idle if that is 0."""


def count_for(traffic: Traffic, replicas: int = 1) -> int:
    """How many requests a simulation should have."""
    count = round(ENTRIES / traffic.completion_mean)
    return replicas * max(COUNT_MIN, min(COUNT_MAX, count))


def run_load(case: LoadCase) -> Figures:
    """Simulate one load."""
    configuration, traffic = case.configuration, case.traffic
    count = case.count or count_for(traffic, configuration.replicas)
    slots = configuration.settings.max_num_seqs * configuration.replicas
    sized = max(slots, case.slots or 0)
    count = max(count, COUNT_SLOTS * sized)
    warm = WARM * sized
    if case.per_s:
        workload = traffic.workload(count, case.per_s, seed=case.seed)
    else:
        # Its clients all ask at once, and from then on each asks when it has its answer. Twice as
        # many requests: the lengths that happen to end in its time make its rate vary.
        clients = 2 * slots
        warm += clients
        # A client that is refused would ask again at once, and all of them would be used up.
        settings = replace(
            configuration.settings,
            max_num_queued_reqs=clients,
            max_num_queued_tokens=core_limits.TOKENS_MAX,
        )
        configuration = replace(configuration, settings=settings)
        workload = traffic.closed(2 * count + clients, clients, seed=case.seed)
    run = simulate(workload, configuration, case.cost)
    return settled(run, case.limits, warm, TAIL * sized)


def settled(run: SimulatedRun, limits: Limits, warm: int, tail: int) -> Figures:
    """The figures without the first `warm` requests and the last `tail`.

    Rates are those of what ended from the first of these arrivals to the last of all, whichever
    requests those were: the replicas empty after it.
    """
    by_arrival = sorted(run.requests, key=lambda each: each.sent_at)
    counted = by_arrival[warm : len(by_arrival) - tail]
    start, end = counted[0].sent_at, by_arrival[-1].sent_at
    figures = figures_of(counted, math.inf, limits, run.mean_batch)
    good = [each for each in by_arrival if each.error is None and start < each.ended_at <= end]
    span_s = end - start if end > start else math.inf
    return replace(
        figures,
        per_s=len(good) / span_s,
        tokens_per_s=sum(each.completion_count for each in good) / span_s,
    )


def most_per_s(case: LoadCase) -> float:
    """The throughput with requests always waiting, limits aside."""
    return run_load(replace(case, per_s=0.0, limits={})).per_s


def run_replay(case: ReplayCase) -> Figures:
    """Simulate one workload, from its first request to its last."""
    run = simulate(case.workload, case.configuration, case.cost)
    return figures_of(run.requests, run.duration_s, case.limits, run.mean_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityCase:
    """A load without a rate, and the share of requests that must be within the limits."""

    load: LoadCase
    share: float


def find_capacity(case: CapacityCase) -> Capacity:
    """The highest load within the limits, to a few percent."""
    most = most_per_s(case.load)
    low, high = LOWEST * most, HIGHEST * most
    best = run_load(replace(case.load, per_s=low))
    if best.share < case.share:
        return Capacity(most_per_s=most, per_s=0.0, figures=best)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        found = run_load(replace(case.load, per_s=middle))
        if found.share >= case.share:
            low, best = middle, found
        else:
            high = middle
    return Capacity(most_per_s=most, per_s=low, figures=best)
