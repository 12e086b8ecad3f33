"""The load that one replica bears within limits, and how a fleet does at a load: simulations.

Each is one function of one frozen case, so that a pool of processes can run it.

Tests: tests/unit/plan/test_recommend.py.
"""

from dataclasses import dataclass, replace

from jitney.bench.workload import Workload
from jitney.plan.figures import Figures, Limits, figures_of
from jitney.plan.replica import Configuration
from jitney.plan.simulate import simulate
from jitney.plan.tick_cost import Cost
from jitney.plan.traffic import Traffic

ENTRIES = 8_000
COUNT_MIN, COUNT_MAX = 150, 600
"""A simulation has so many requests that their answers have about `ENTRIES` tokens together."""

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
    if case.per_s:
        workload = traffic.workload(count, case.per_s, seed=case.seed)
    else:
        clients = 2 * configuration.settings.max_num_seqs * configuration.replicas
        workload = traffic.closed(max(count, 2 * clients), clients, seed=case.seed)
    return run_replay(
        ReplayCase(
            configuration=configuration, cost=case.cost, workload=workload, limits=case.limits
        )
    )


def run_replay(case: ReplayCase) -> Figures:
    """Simulate one workload."""
    run = simulate(case.workload, case.configuration, case.cost)
    return figures_of(run.requests, run.duration_s, case.limits, run.mean_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityCase:
    """A load without a rate, and the share of requests that must be within the limits."""

    load: LoadCase
    share: float


def find_capacity(case: CapacityCase) -> Capacity:
    """The highest load within the limits, to a few percent."""
    most_per_s = run_load(replace(case.load, per_s=0.0, limits={})).per_s
    low, high = LOWEST * most_per_s, HIGHEST * most_per_s
    best = run_load(replace(case.load, per_s=low))
    if best.share < case.share:
        return Capacity(most_per_s=most_per_s, per_s=0.0, figures=best)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        found = run_load(replace(case.load, per_s=middle))
        if found.share >= case.share:
            low, best = middle, found
        else:
            high = middle
    return Capacity(most_per_s=most_per_s, per_s=low, figures=best)
