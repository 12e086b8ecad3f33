"""The load that was planned for: its rate, where that comes from, and what repeats it.

Its sentence stands among the notes of every result, and all of it in the JSON.
"""

from dataclasses import dataclass

from jitney_lab.plan.day import HOUR_S
from jitney_lab.plan.traffic import BUSIEST_S, BusiestPart, TraceRates, Traffic

RATE_FLAG = "request_rate"
BUSIEST = "busiest part of the trace"
TRACE = "mean of the trace"
CAPACITY = "what one replica sustains within the limits"
IDLE = "nearly idle"
REASONS = {
    RATE_FLAG: "as given",
    TRACE: "the mean of the trace",
    CAPACITY: "as many as one replica sustains within the limits; none was given",
    IDLE: "nearly nothing: none was given, and with the present settings no load is within the "
    "limits",
}
"""Where a rate comes from, in the JSON and in words."""


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """Requests, and how many of them arrive."""

    traffic: Traffic
    per_s: float
    rate_from: str
    recorded: TraceRates | None
    """None without a trace, and with one without times."""
    options: dict[str, object]
    """The lengths, or the trace, as the user gave them."""

    def as_json(self) -> dict[str, object]:
        """What is in the JSON of every result."""
        kinds = self.traffic.kinds
        return {
            "name": self.traffic.name,
            **self.options,
            "per_s": self.per_s,
            "per_s_from": self.rate_from,
            "burstiness": self.traffic.burstiness,
            "prompt_tokens_mean": sum(each.prompt_count for each in kinds) / len(kinds),
            "prompt_tokens_max": self.traffic.prompt_max,
            "completion_tokens_mean": self.traffic.completion_mean,
            "completion_tokens_max": self.traffic.completion_max,
            "recorded": self.recorded,
        }


def chosen_rate(
    flag_per_s: float | None, recorded: TraceRates | None, *, replays: bool
) -> tuple[float, str] | None:
    """The rate that the user gave, or that of the trace, and its source; None without both.

    A replay and a day have the ups and downs of the trace; a search has one rate. A fleet for the
    mean would have too few replicas whenever more than that arrives.
    """
    if flag_per_s is not None:
        return flag_per_s, RATE_FLAG
    if recorded is None:
        return None
    if replays or recorded.busiest is None:
        return recorded.mean_per_s, TRACE
    return recorded.busiest.per_s, BUSIEST


def load_note(load: PlannedLoad) -> str:
    """Which rate it is, and why."""
    recorded = load.recorded
    if recorded is None:
        return f"Load: {number_text(load.per_s)} requests/s, {REASONS[load.rate_from]}."
    reason, parts = REASONS.get(load.rate_from), "; it is too short to have a busiest part."
    if recorded.busiest is not None:
        busiest, part = recorded.busiest, _part_text(recorded.busiest)
        parts = f" and {number_text(busiest.per_s)} in its {part}."
        at_text = span_text(busiest.at_s)
        reason = reason or f"that of its {part}, {at_text} after the first request"
    return (
        f"Load: {number_text(load.per_s)} requests/s, {reason}. The trace has "
        f"{recorded.count:,} requests in {span_text(recorded.span_s)}, "
        f"{number_text(recorded.mean_per_s)} requests/s in the mean{parts}"
    )


def number_text(value: float) -> str:
    """A number for people."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def span_text(seconds: float) -> str:
    """A length of time in a unit that fits it."""
    for unit, size in (("hours", HOUR_S), ("minutes", HOUR_S / 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.3g} seconds"


def _part_text(busiest: BusiestPart) -> str:
    length = "minute" if busiest.span_s == BUSIEST_S else span_text(busiest.span_s)
    return f"busiest {length}"
