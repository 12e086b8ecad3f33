"""A large fleet over a day, as a sample: what it does, and how far the sample may be off.

A day of a thousand requests a second has too many requests to simulate one by one. So:

    cells     A fleet is simulated as a few replicas with their part of the arrivals. The router
              would find a free replica a little more often in the whole fleet: latencies are
              slightly too high.
    windows   Of every hour some requests are simulated, at the rate of that hour and in proportion
              to it. As in a search, those that fill the replicas and those at the end do not count.
    passes    The whole day is sampled several times with other requests. Each pass is an estimate
              of its own, and their spread says how far the mean of all may be off.

In an hour with more load than the fleet sustains, the queue of a real fleet grows from window to
window, and here each begins empty. Such hours are named; the figures of their latency are too low.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from jitney_lab.bench.workload import Workload
from jitney_lab.plan import search
from jitney_lab.plan.pool import Pool
from jitney_lab.plan.replica import CELL
from jitney_lab.plan.simulate import SimulatedRun, simulate

HOURS = 24
PASSES = 4
HOUR_S = 3600.0
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}
"""Student's t: by the number of passes, how many standard errors hold 95 % of all chances."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and how far the truth may be from it, with 95 % of certainty."""

    value: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DayFigures:
    """What the fleet does in a day. Latencies are milliseconds."""

    requests: float
    """Of the real day."""
    simulated: int
    share: Estimate
    goodput_per_s: Estimate
    p50_ms: Estimate
    p95_ms: Estimate
    ttft_p95_ms: Estimate
    overloaded: tuple[int, ...]
    """Hours in which more arrives than the fleet sustains."""
    hours: tuple[dict[str, float], ...]
    """For each hour of all passes: the requests that arrive (`per_s`), the part of them that ended
    within the limits (`share`), and `p95_ms`."""


def sinusoid(peak: float) -> tuple[float, ...]:
    """A day whose busiest hour has `peak` times the mean, and whose quietest is as far below it."""
    deep = min(peak - 1.0, 0.98)
    return tuple(1.0 - deep * math.cos(math.tau * (hour + 0.5) / HOURS) for hour in range(HOURS))


def hours_of(workload: Workload) -> tuple[float, ...]:
    """The rates of a recording in 24 equal parts of its time, as shares of its mean."""
    span_s = max(workload.jobs[-1].at_s, 1e-9)
    counts = [0] * HOURS
    for job in workload.jobs:
        counts[min(HOURS - 1, int(HOURS * job.at_s / span_s))] += 1
    return tuple(HOURS * count / len(workload.jobs) for count in counts)


def simulate_day(case: search.LoadCase, hours: Sequence[float], pool: Pool) -> DayFigures:
    """Sample a day on a fleet; `hours` are the rates of all hours, as shares of the question's."""
    rates = [case.question.per_s * share for share in hours]
    places = [(hour, number) for number in range(PASSES) for hour, rate in enumerate(rates) if rate]
    runs = dict(zip(places, pool.map(partial(run_window, case, hours), places), strict=True))
    passes = [
        _figures(case, [run for place, run in runs.items() if place[1] == number])
        for number in range(PASSES)
    ]
    by_hour = [
        _figures(case, [run for place, run in runs.items() if place[0] == hour])
        for hour in range(len(hours))
    ]
    most_per_s, mean_per_s = search.sustained_per_s(case), statistics.fmean(rates)
    share = estimate([each.share for each in passes])
    return DayFigures(
        requests=mean_per_s * HOUR_S * HOURS,
        simulated=sum(len(each.requests) for each in runs.values()),
        share=share,
        goodput_per_s=Estimate(share.value * mean_per_s, share.error * mean_per_s),
        p50_ms=estimate([each.p50_ms for each in passes]),
        p95_ms=estimate([each.p95_ms for each in passes]),
        ttft_p95_ms=estimate([each.ttft_p95_ms for each in passes]),
        overloaded=tuple(hour for hour, rate in enumerate(rates) if rate > most_per_s),
        hours=tuple(
            {"per_s": rate, "share": each.share, "p95_ms": each.p95_ms}
            for rate, each in zip(rates, by_hour, strict=True)
        ),
    )


def run_window(
    case: search.LoadCase, hours: Sequence[float], place: tuple[int, int]
) -> SimulatedRun:
    """Simulate a part of an hour, in one pass, on a cell; only the requests that count."""
    hour, number = place
    question, cell = case.question, min(CELL, case.replicas)
    slots = cell * case.settings.max_num_seqs
    counted = math.ceil(hours[hour] * (question.count or search.count_for(question.traffic)) * cell)
    per_s = question.per_s * hours[hour] * cell / case.replicas
    seed = hash((question.seed, hour, number))
    workload = question.traffic.workload(
        (search.WARM + search.TAIL) * slots + counted, per_s, seed=seed
    )
    run = simulate(workload, question.configuration(case.settings, cell), question.cost)
    by_arrival = sorted(run.requests, key=lambda each: each.sent_at)
    return replace(run, requests=by_arrival[search.WARM * slots : search.WARM * slots + counted])


def _figures(case: search.LoadCase, runs: Sequence[SimulatedRun]) -> search.Figures:
    """The figures of all requests of some windows."""
    requests = [request for run in runs for request in run.requests]
    return search.figures_of(requests, math.inf, case.question.limits, 0.0)


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent estimates and its error; infinite with a single one. NaN is none."""
    known = [each for each in values if not math.isnan(each)]
    if len(known) < 2:
        return Estimate(known[0] if known else math.nan, math.inf)
    factor = STUDENT.get(len(known), 2.0)
    error = factor * statistics.stdev(known) / math.sqrt(len(known))
    return Estimate(statistics.fmean(known), error)
