"""A large fleet over a day, as a sample: what it does, and how far the sample may be off.

A day of a thousand requests a second has too many requests to simulate one by one. So:

    cells     A fleet is simulated as a few replicas with their part of the arrivals. The router
              would find a free replica a little more often in the whole fleet: latencies are
              slightly too high.
    windows   Of every hour a short window is simulated, at the rate of that hour. What arrives
              while the window warms up does not count. After its end, arrivals go on for as long
              as it was, so that its last requests have company too.
    passes    The whole day is sampled several times with other requests. Each pass is an estimate
              of its own, and their spread says how far the mean of all may be off.

In an hour with more load than the fleet bears, the queue of a real fleet grows from window to
window, and here each begins empty. Such hours are named; the figures of their latency are too low.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jitney.errors import ConfigError
from jitney_lab.bench.timing import RequestTimes, is_within, percentile
from jitney_lab.bench.workload import Job, Workload
from jitney_lab.plan.figures import Limits
from jitney_lab.plan.pool import Pool
from jitney_lab.plan.replica import CELL, Configuration, replicas_text
from jitney_lab.plan.simulate import simulate
from jitney_lab.plan.tick_cost import Cost, Curve
from jitney_lab.plan.traffic import Traffic

HOURS = 24
PASSES = 4
HOUR_S = 3600.0
WINDOW_S_MIN = 20.0
WINDOW_COUNT_MIN = 50
"""Requests of a window in the mean."""

WINDOW_COUNT_MAX = 200_000
"""More would not fit the memory of a process."""

TAIL_SHARE = 1.0
"""Arrivals go on for this share of the window after its end."""

STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}
"""Student's t: by the number of passes, how many standard errors hold 95 % of all chances."""

LATE = 1.5
"""A window whose last third waits this much longer than its first third may be overloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayCase:
    """A day on a fleet. `hours` are the rates of all hours, as shares of `per_s`."""

    configuration: Configuration
    cost: Cost
    traffic: Traffic
    per_s: float
    hours: tuple[float, ...]
    limits: Limits
    seed: int
    passes: int = PASSES


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and how far the truth may be from it, with 95 % of certainty."""

    value: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HourFigures:
    """One hour of all passes."""

    per_s: float
    """Requests that arrive."""
    share: float
    """The part of them that ended within the limits."""
    p95_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DayFigures:
    """What the fleet does in a day. Latencies are milliseconds."""

    requests: float
    """Of the real day."""
    simulated: int
    entry_count: int
    share: Estimate
    goodput_per_s: Estimate
    p50_ms: Estimate
    p95_ms: Estimate
    ttft_p95_ms: Estimate
    overloaded: tuple[int, ...]
    """Hours in which more arrives than the fleet bears."""
    hours: tuple[HourFigures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCase:
    """One window of one pass."""

    case: DayCase
    hour: int
    number: int
    warm_s: float
    window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DayWindow:
    """What the requests of a window took, in milliseconds."""

    hour: int
    number: int
    e2el_ms: tuple[float, ...]
    ttft_ms: tuple[float, ...]
    within: int
    simulated: int
    entry_count: int
    is_late: bool


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


def simulate_day(case: DayCase, pool: Pool) -> DayFigures:
    """Sample a day on a fleet. Raises ConfigError if that is too much for one process."""
    warm_s = _warm_s(case)
    cell_per_s = case.per_s * min(CELL, case.configuration.replicas) / case.configuration.replicas
    window_s = max(WINDOW_S_MIN, 2.0 * warm_s, WINDOW_COUNT_MIN / cell_per_s)
    most = max(case.hours) * cell_per_s * (warm_s + (1.0 + TAIL_SHARE) * window_s)
    if most > WINDOW_COUNT_MAX:
        raise ConfigError(
            f"{case.per_s:,.4g} requests/s are too many to simulate on "
            f"{replicas_text(case.configuration.replicas)}: one window has {most:,.0f} requests; "
            "give more --replicas, or a lower --request-rate."
        )
    cases = [
        WindowCase(case=case, hour=hour, number=number, warm_s=warm_s, window_s=window_s)
        for number in range(case.passes)
        for hour in range(len(case.hours))
        if case.hours[hour] > 0
    ]
    return _sum_up(case, pool.map(run_window, cases))


def run_window(window: WindowCase) -> DayWindow:
    """Simulate one window on a cell."""
    case = window.case
    fleet = case.configuration.replicas
    cell = replace(case.configuration, replicas=min(CELL, fleet))
    per_s = case.per_s * case.hours[window.hour] * cell.replicas / fleet
    end_s = window.warm_s + window.window_s
    until_s = end_s + TAIL_SHARE * window.window_s
    seed = hash((case.seed, window.hour, window.number))
    workload = case.traffic.workload(max(2, math.ceil(1.2 * per_s * until_s)), per_s, seed=seed)

    def is_counted(job: Job) -> bool:
        return window.warm_s <= job.at_s < end_s

    run = simulate(workload, cell, case.cost, is_counted)
    good = [each for each in run.requests if each.error is None]
    return DayWindow(
        hour=window.hour,
        number=window.number,
        e2el_ms=tuple(1e3 * each.e2el_s for each in good),
        ttft_ms=tuple(1e3 * each.ttft_s for each in good if each.ttft_s is not None),
        within=sum(is_within(each, case.limits) for each in good),
        simulated=len(run.requests),
        entry_count=run.entry_count,
        is_late=run.crowded_out_count > 0 or _is_late(run.requests),
    )


def _warm_s(case: DayCase) -> float:
    """Three times the longest answer in a full batch: then arrivals and ends are in balance."""
    slots = case.configuration.settings.max_num_seqs
    tick_s = Curve(case.cost.decodes).seconds(slots) + case.cost.host_s
    return 3.0 * tick_s * case.traffic.completion_max


def _is_late(requests: Sequence[RequestTimes]) -> bool:
    """Whether first tokens come later and later, or in the end mostly not at all.

    A request that is too long for the model is refused at once, and is no load.
    """
    taken = [each for each in requests if each.error is None or each.ended_at > each.sent_at]
    by_arrival = sorted(taken, key=lambda each: each.sent_at)
    third = len(by_arrival) // 3
    if third < 10:
        return False
    waits = [each.ttft_s if each.ttft_s is not None else math.inf for each in by_arrival]
    first, last = statistics.median(waits[:third]), statistics.median(waits[-third:])
    return math.isinf(last) or last > LATE * first


def _sum_up(case: DayCase, windows: Sequence[DayWindow]) -> DayFigures:
    passes = [[each for each in windows if each.number == number] for number in range(case.passes)]
    mean_per_s = case.per_s * statistics.fmean(case.hours)
    shares = [
        sum(each.within for each in part) / max(1, sum(each.simulated for each in part))
        for part in passes
    ]
    share = estimate(shares)
    hours = range(len(case.hours))
    late = {
        hour: sum(each.is_late for each in windows if each.hour == hour) > case.passes / 2
        for hour in hours
    }
    return DayFigures(
        requests=mean_per_s * HOUR_S * HOURS,
        simulated=sum(each.simulated for each in windows),
        entry_count=sum(each.entry_count for each in windows),
        share=share,
        goodput_per_s=Estimate(share.value * mean_per_s, share.error * mean_per_s),
        p50_ms=_estimated(passes, "e2el_ms", 50.0),
        p95_ms=_estimated(passes, "e2el_ms", 95.0),
        ttft_p95_ms=_estimated(passes, "ttft_ms", 95.0),
        overloaded=tuple(hour for hour in hours if late[hour]),
        hours=tuple(
            _hour(case, hour, [each for each in windows if each.hour == hour]) for hour in hours
        ),
    )


def _hour(case: DayCase, hour: int, windows: Sequence[DayWindow]) -> HourFigures:
    count = sum(each.simulated for each in windows)
    values = sorted(value for each in windows for value in each.e2el_ms)
    return HourFigures(
        per_s=case.per_s * case.hours[hour],
        share=sum(each.within for each in windows) / max(1, count),
        p95_ms=percentile(values, 95.0) if values else math.nan,
    )


def _estimated(passes: Sequence[Sequence[DayWindow]], metric: str, share: float) -> Estimate:
    values = [
        sorted(value for window in part for value in getattr(window, metric)) for part in passes
    ]
    return estimate([percentile(each, share) for each in values if each])


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent estimates and its error; infinite with a single one."""
    if not values:
        return Estimate(math.nan, math.inf)
    if len(values) == 1:
        return Estimate(values[0], math.inf)
    factor = STUDENT.get(len(values), 2.0)
    error = factor * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(statistics.fmean(values), error)
