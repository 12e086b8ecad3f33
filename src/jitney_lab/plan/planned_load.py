"""The load that was planned for: its rate, where that comes from, and what it can be repeated with.

Its sentence stands among the notes of every result, and all of it in the JSON.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from jitney.core.scheduler_settings import Policy
from jitney_lab.bench.report import Result
from jitney_lab.bench.workload import Workload
from jitney_lab.plan.day import HOUR_S
from jitney_lab.plan.pool import Pool
from jitney_lab.plan.recommend import PlanQuestion
from jitney_lab.plan.results import finite, shown
from jitney_lab.plan.search import LOWEST, find_capacity
from jitney_lab.plan.traffic import Busiest, Traffic, busiest, rate_of

MINUTE_S = 60.0
MAX_TOKENS = "the length of each answer"
"""What callers write as `max_tokens`, in every simulation."""

SJF_NOTE = (
    "The policy sjf was simulated as if max_tokens of every request were the length of its answer. "
    "Where callers write more it gains less, and where chats have none it is as fifo."
)


class RateFrom(StrEnum):
    """Where the rate of a load comes from."""

    GIVEN = "request_rate"
    BUSIEST = "busiest part of the trace"
    TRACE = "mean of the trace"
    CAPACITY = "what one replica bears within the limits"
    IDLE = "nearly idle"
    """No load is within the limits with the present settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The rates of a trace with times, as it was."""

    count: int
    span_s: float
    mean_per_s: float
    busiest: Busiest


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLoad:
    """Requests, and how many of them arrive."""

    traffic: Traffic
    per_s: float
    rate_from: RateFrom
    recorded: Recorded | None = None
    """None without a trace, and with one without times."""
    asked: dict[str, object]
    """The lengths, or the trace, as the user gave them."""

    def as_json(self) -> dict[str, object]:
        """What is in the JSON of every result."""
        kinds = self.traffic.kinds
        return {
            "name": self.traffic.name,
            **self.asked,
            "per_s": self.per_s,
            "per_s_from": self.rate_from.value,
            "burstiness": self.traffic.burstiness,
            "prompt_tokens_mean": sum(each.prompt_count for each in kinds) / len(kinds),
            "prompt_tokens_max": self.traffic.prompt_max,
            "completion_tokens_mean": self.traffic.completion_mean,
            "completion_tokens_max": self.traffic.completion_max,
            "recorded": None if self.recorded is None else asdict(self.recorded),
        }


def recorded_of(workload: Workload) -> Recorded:
    """The rates of a recording with times."""
    return Recorded(
        count=len(workload.jobs),
        span_s=workload.jobs[-1].at_s - workload.jobs[0].at_s,
        mean_per_s=rate_of(workload),
        busiest=busiest(workload),
    )


def chosen_rate(
    given_per_s: float | None, recorded: Recorded | None, *, replays: bool
) -> tuple[float, RateFrom] | None:
    """The rate that the user gave, or that of the trace; None without both.

    A replay and a day have the ups and downs of the trace; a search has one rate. Who is given
    replicas for the mean has too few of them whenever more than that arrives.
    """
    if given_per_s is not None:
        return given_per_s, RateFrom.GIVEN
    if recorded is None:
        return None
    # A short trace has no busiest part.
    if replays or recorded.busiest.is_all:
        return recorded.mean_per_s, RateFrom.TRACE
    return recorded.busiest.per_s, RateFrom.BUSIEST


def bearable(question: PlanQuestion, pool: Pool) -> tuple[float, RateFrom]:
    """As much as one replica bears with the present settings."""
    cases = question.capacity_cases(question.settings)
    found = min(pool.map(find_capacity, cases), key=lambda each: each.per_s)
    if found.per_s:
        return found.per_s, RateFrom.CAPACITY
    # A replica that refuses everything bears nothing, and a what-if still needs a rate.
    return LOWEST * found.most_per_s or 1.0, RateFrom.IDLE


def stated(result: Result, load: PlannedLoad, policies: Iterable[object]) -> Result:
    """The result with its load, for people and for programs; `policies` are those it is of."""
    notes = (load_note(load), *result.notes)
    if Policy.SJF in policies:
        notes += (SJF_NOTE,)
    figures = {
        **result.figures,
        "rate": load.per_s,
        "load": finite(load.as_json()),
        "max_tokens": MAX_TOKENS,
    }
    return replace(result, notes=notes, figures=figures)


def load_note(load: PlannedLoad) -> str:
    """Which rate it is, and why."""
    told = f"Load: {shown(load.per_s)} requests/s, {_reason(load)}."
    recorded = load.recorded
    if recorded is None:
        return told
    told += (
        f" The trace has {recorded.count:,} requests in {span_text(recorded.span_s)}, "
        f"{shown(recorded.mean_per_s)} requests/s in the mean"
    )
    if recorded.busiest.is_all:
        return f"{told}; it is too short to have a busiest part."
    return f"{told} and {shown(recorded.busiest.per_s)} in its {_part_text(recorded.busiest)}."


def _reason(load: PlannedLoad) -> str:
    if load.rate_from is RateFrom.BUSIEST:
        assert load.recorded is not None, "only a trace with times has a busiest part"
        found = load.recorded.busiest
        return f"that of its {_part_text(found)}, {span_text(found.at_s)} after the first request"
    return {
        RateFrom.GIVEN: "as given",
        RateFrom.TRACE: "the mean of the trace",
        RateFrom.CAPACITY: "as many as one replica bears within the limits; none was given",
        RateFrom.IDLE: "nearly nothing: none was given, and with the present settings no load is "
        "within the limits",
    }[load.rate_from]


def span_text(seconds: float) -> str:
    """A length of time in a unit that fits it."""
    for unit, size in (("hours", HOUR_S), ("minutes", MINUTE_S)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.3g} seconds"


def _part_text(found: Busiest) -> str:
    length = "minute" if found.span_s == MINUTE_S else span_text(found.span_s)
    return f"busiest {length}"
