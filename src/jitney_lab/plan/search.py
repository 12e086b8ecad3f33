"""The load that one replica sustains within limits, and how a fleet does at a load: simulations.

Each is one function of one frozen case, so that a pool of processes can run it.

A load on replicas that begin empty is judged when they have filled, and only while requests still
arrive: the first requests, and the last, share their ticks with fewer others than all between.

Tests: tests/unit/lab/plan/test_recommend.py.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jitney.core import limits as core_limits
from jitney.core.scheduler_settings import SchedulerSettings
from jitney_lab.bench.timing import RequestTimes, is_within, summary
from jitney_lab.bench.workload import Workload
from jitney_lab.plan.replica import CELL, Configuration
from jitney_lab.plan.simulate import SimulatedRun, simulate
from jitney_lab.plan.tick_cost import Cost
from jitney_lab.plan.traffic import Traffic

SLOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The numbers of slots that are tried first."""

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

Limits = Mapping[str, float]
"""The most milliseconds by metric: ttft, tpot, e2el. Empty: there is no limit."""

METRICS = {
    "per_s": ("request_throughput", "requests/s"),
    "tokens_per_s": ("output_throughput", "tokens/s"),
    "p50_ms": ("p50_e2el_ms", "p50 latency ms"),
    "p95_ms": ("p95_e2el_ms", "p95 latency ms"),
    "ttft_p50_ms": ("p50_ttft_ms", "p50 first token ms"),
    "ttft_p95_ms": ("p95_ttft_ms", "p95 first token ms"),
    "tpot_p95_ms": ("p95_tpot_ms", "p95 per token ms"),
}
"""Figures by name: the key in the summary of a run, and the title in tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Rates in requests and tokens per second, latencies in milliseconds.

    A latency that no request has is NaN: that of a second token, where answers have one.
    """

    count: int
    failed: int
    per_s: float
    tokens_per_s: float
    share: float
    """The part of all requests that ended within the limits."""
    p50_ms: float
    p95_ms: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    tpot_p95_ms: float
    mean_batch: float
    failure: str | None = None
    """The most common reason of failures; None where none failed."""


def figures_of(
    requests: Sequence[RequestTimes], duration_s: float, limits: Limits, mean_batch: float
) -> Figures:
    """Sum up a run."""
    # Where every request is refused at once, no time goes by, and no rate is above 0.
    found = summary(requests, duration_s or math.inf)
    known = {name: found[key] for name, (key, _) in METRICS.items()}
    errors = Counter(each.error for each in requests if each.error is not None)
    within = sum(each.error is None and is_within(each, limits) for each in requests)
    return Figures(
        count=len(requests),
        failed=errors.total(),
        share=within / max(1, len(requests)),
        mean_batch=mean_batch,
        failure=max(errors, key=lambda each: errors[each], default=None),
        **{name: math.nan if each is None else float(str(each)) for name, each in known.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """A load, its limits, and the settings with which the search begins."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCase:
    """A load on a fleet; a large fleet is simulated as a cell with its part of the load.

    All settings get the same requests, and so does a fleet of `like` replicas if it is larger.
    """

    question: PlanQuestion
    settings: SchedulerSettings
    per_s: float = 0.0
    """0: as much as possible, from clients that ask again and again."""
    replicas: int = 1
    like: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What one replica sustains: the highest load within the limits, and how it does there."""

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
    question, cell = case.question, min(case.replicas, CELL)
    configuration = question.configuration(case.settings, cell)
    like = max(cell, min(case.like, CELL))
    slots = like * question.slots_max
    count = max(like * (question.count or count_for(question.traffic)), COUNT_SLOTS * slots)
    warm = WARM * slots
    if case.per_s:
        per_s = case.per_s * cell / case.replicas
        workload = question.traffic.workload(count, per_s, seed=question.seed)
    else:
        # Its clients all ask at once, and from then on each asks when it has its answer. Twice as
        # many requests: the lengths that happen to end in its time make its rate vary.
        clients = 2 * cell * case.settings.max_num_seqs
        warm += clients
        # A client that is refused would ask again at once, and all of them would be used up.
        settings = replace(
            case.settings,
            max_num_queued_reqs=clients,
            max_num_queued_tokens=core_limits.TOKENS_MAX,
        )
        configuration = replace(configuration, settings=settings)
        workload = question.traffic.closed(2 * count + clients, clients, seed=question.seed)
    run = simulate(workload, configuration, question.cost)
    return settled(run, question.limits, warm, TAIL * slots)


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


def sustained_per_s(case: LoadCase) -> float:
    """The rate above which the queue of the replicas grows without end; a short run may not show
    it. Infinite where every request is refused."""
    most = run_load(replace(case, replicas=1, per_s=0.0))
    # Those that are refused arrive too.
    answered = (most.count - most.failed) / max(1, most.count)
    return HIGHEST * case.replicas * most.per_s / answered if answered else math.inf


def run_replay(workload: Workload, case: LoadCase) -> Figures:
    """Simulate one workload on all replicas, from its first request to its last."""
    question = case.question
    configuration = question.configuration(case.settings, case.replicas)
    run = simulate(workload, configuration, question.cost)
    return figures_of(run.requests, run.duration_s, question.limits, run.mean_batch)


def find_capacity(case: LoadCase) -> Capacity:
    """The highest load within the limits, to a few percent."""
    share = case.question.share
    most = run_load(replace(case, per_s=0.0)).per_s
    low, high = LOWEST * most, HIGHEST * most
    best = run_load(replace(case, per_s=low))
    if best.share < share:
        return Capacity(most_per_s=most, per_s=0.0, figures=best)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        found = run_load(replace(case, per_s=middle))
        if found.share >= share:
            low, best = middle, found
        else:
            high = middle
    return Capacity(most_per_s=most, per_s=low, figures=best)
