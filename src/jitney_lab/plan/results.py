"""Tables, sentences and figures of what was simulated, for `jitney_lab.bench.report`.

Tests: tests/unit/lab/plan/test_recommend.py, test_day.py and test_what_if.py.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields

from jitney.core.scheduler_settings import SchedulerSettings
from jitney_lab.bench.report import Result
from jitney_lab.bench.steal import SHARE_TOLD
from jitney_lab.plan.day import DayFigures, Estimate
from jitney_lab.plan.figures import Figures, Limits
from jitney_lab.plan.recommend import GAIN, Fleet, PlanQuestion, Recommendation
from jitney_lab.plan.replica import CELL, REPLICAS_MAX, replicas_text
from jitney_lab.plan.tick_cost import DOUBTED, Cost

CHOSEN = ("max_num_seqs", "max_num_batched_tokens", "prefill_chunk", "mix", "policy")
"""The settings that are searched."""

UNKNOWN = "-"

_PLACES = {
    None: "",
    True: " The backend ran in a process of its own, as under jitney serve.",
    False: " The backend ran in the engine's process, which jitney serve does only if told so.",
}
"""What the result says of where a cost was measured; nothing for a file that does not tell."""

TITLES = {
    "per_s": "requests/s",
    "tokens_per_s": "tokens/s",
    "p50_ms": "p50 latency ms",
    "p95_ms": "p95 latency ms",
    "ttft_p50_ms": "p50 first token ms",
    "ttft_p95_ms": "p95 first token ms",
    "tpot_p95_ms": "p95 per token ms",
}


def recommended(question: PlanQuestion, found: Recommendation) -> Result:
    """What to set, beside what is set now."""
    present, best = found.present, found.best
    rows: list[tuple[str, ...]] = [
        (name, str(getattr(present.settings, name)), str(getattr(best.settings, name)))
        for name in CHOSEN
    ]
    rows.append(("replicas", *(_replicas(each) for each in (present, best))))
    bears = [shown(each.capacity.per_s) for each in (present, best)]
    rows.append(("one bears requests/s", *bears))
    rows += [
        (title, *(shown(getattr(each.figures, name)) for each in (present, best)))
        for name, title in TITLES.items()
    ]
    rows.append(("within the limits", *(_percent(each.figures.share) for each in (present, best))))
    return Result(
        name="plan",
        title=f"{question.traffic.name}, {shown(question.per_s)} requests/s",
        columns=("", "present", "recommended"),
        rows=tuple(rows),
        notes=(cost_note(question.cost), _asked(question), *_advice(question, found)),
        figures=_figures(
            rate=question.per_s,
            limits_ms=dict(question.limits),
            share=question.share,
            cost=_plain_cost(question.cost),
            present=_fleet_figures(present),
            recommended=_fleet_figures(best),
            knee_per_s=found.knee_per_s,
            sjf_bears_per_s=found.sjf_per_s,
            curve=[asdict(each) for each in found.curve],
            present_curve=[asdict(each) for each in found.present_curve],
            tried=[
                {**settings_shown(each.settings), "bears_per_s": each.capacity.per_s}
                for each in found.tried
            ],
        ),
    )


def replayed(
    cost: Cost,
    workload_name: str,
    limits: Limits,
    rows: Sequence[tuple[str, int, Figures]],
    overloaded: Sequence[str] | None = None,
) -> Result:
    """One workload under several settings, side by side.

    `overloaded` are names of rows; None where that is not known.
    """
    first = rows[0][2]
    table = tuple(
        (
            name,
            str(replicas),
            *(_beside(getattr(figures, key), getattr(first, key)) for key in TITLES),
            _percent(figures.share),
            f"{figures.failed:,}",
        )
        for name, replicas, figures in rows
    )
    notes = [cost_note(cost)]
    notes += [_failures(name, figures) for name, _, figures in rows if figures.failed]
    if overloaded:
        notes.append(
            f"More arrives than the replicas bear under these settings: {'; '.join(overloaded)}. "
            "Latencies there grow as long as that lasts, or requests are refused; the latencies "
            "and shares above are those of the first requests only, and too good."
        )
    return Result(
        name="plan-what-if",
        title=f"{workload_name}: {first.count:,} requests",
        columns=("settings", "replicas", *TITLES.values(), "within the limits", "failed"),
        rows=table,
        notes=tuple(notes),
        figures=_figures(
            limits_ms=dict(limits),
            cost=_plain_cost(cost),
            runs=[
                {
                    "settings": name,
                    "replicas": replicas,
                    **asdict(figures),
                    "overloaded": None if overloaded is None else name in overloaded,
                }
                for name, replicas, figures in rows
            ],
        ),
    )


def _failures(name: str, figures: Figures) -> str:
    """How many requests failed under some settings, and what they were told."""
    number = "All" if figures.failed == figures.count else f"{figures.failed:,} of"
    told = "" if figures.failure is None else f", for example: {figures.failure.rstrip('.')}"
    return f"{number} {figures.count:,} requests were refused or failed under {name}{told}."


def day_result(question: PlanQuestion, replicas: int, found: DayFigures, seconds: float) -> Result:
    """A day on a fleet, with the errors of its sample."""
    rows = [
        ("requests of the day", f"{found.requests:,.0f}", ""),
        ("within the limits", _percent(found.share.value), f"± {100 * found.share.error:.2f}"),
        ("goodput requests/s", *_estimated(found.goodput_per_s)),
        ("p50 latency ms", *_estimated(found.p50_ms)),
        ("p95 latency ms", *_estimated(found.p95_ms)),
        ("p95 first token ms", *_estimated(found.ttft_p95_ms)),
    ]
    notes = [
        cost_note(question.cost),
        f"A sample: {found.simulated:,} of {found.requests:,.0f} requests were simulated, in "
        f"windows of every hour and cells of up to {CELL} of {replicas_text(replicas)}, in "
        f"{seconds:.0f} s. The errors are those of the sample, with 95 % certainty; that of the "
        "cost comes on top.",
    ]
    if found.overloaded:
        hours = ", ".join(map(str, found.overloaded))
        notes.append(
            f"More arrives than {replicas_text(replicas)} can bear in these hours: {hours}. "
            "Latencies there grow as long as that lasts, or requests are refused; the latencies "
            "above are too low."
        )
    return Result(
        name="plan-day",
        title=f"A day: {question.per_s:,.4g} requests/s in the mean, {replicas_text(replicas)}",
        columns=("what", "value", "error"),
        rows=tuple(rows),
        notes=tuple(notes),
        figures=_figures(
            rate=question.per_s,
            replicas=replicas,
            limits_ms=dict(question.limits),
            cost=_plain_cost(question.cost),
            wall_s=seconds,
            **asdict(found),
        ),
    )


def settings_shown(settings: SchedulerSettings) -> dict[str, object]:
    """The searched settings by name."""
    return {name: value for name, value in scheduler_shown(settings).items() if name in CHOSEN}


def scheduler_shown(settings: SchedulerSettings) -> dict[str, object]:
    """All settings of the scheduler by name, for JSON."""
    values = {each.name: getattr(settings, each.name) for each in fields(settings)}
    return {
        name: value if value is None or type(value) in (bool, int, float) else str(value)
        for name, value in values.items()
    }


def cost_note(cost: Cost) -> str:
    """Which cost was used, and how good it is."""
    return (
        f"Cost: {cost.model} with {cost.traits.name} on {cost.machine}, {cost.measured_at}; fitted "
        f"to {cost.tick_count:,} ticks with a mean error of {100 * cost.error:.0f} % each. "
        f"It holds for --backend {cost.traits.name}: auto may take another for other slots."
        f"{_PLACES[cost.backend_process]}{_doubt(cost)}"
    )


def _doubt(cost: Cost) -> str:
    """Why a cost should be measured again, if it should."""
    if cost.stolen_share is not None and cost.stolen_share > SHARE_TOLD:
        return (
            f" Other machines on the same host took {100 * cost.stolen_share:.0f} % of the "
            "processors while it was measured: measure again at another time."
        )
    if cost.error > DOUBTED:
        return " With so large an error it says little: measure again on a quiet machine."
    return ""


def limits_text(limits: Limits) -> str:
    """The limits in words."""
    return ", ".join(f"{metric} {limit:g} ms" for metric, limit in limits.items())


def _asked(question: PlanQuestion) -> str:
    return (
        f"Limits: {limits_text(question.limits)}, for {_percent(question.share)} of the requests."
    )


def _advice(question: PlanQuestion, found: Recommendation) -> list[str]:
    best = found.best
    if best.replicas is None:
        figures = best.figures
        known = {"first token": figures.ttft_p95_ms, "per token": figures.tpot_p95_ms}
        p95s = [f"{name} {shown(value)} ms" for name, value in known.items() if value == value]
        return [
            f"No setting meets these limits, whatever the number of replicas: with nearly nothing "
            f"else to do, {_percent(figures.share)} of the requests are within them (p95: "
            f"{', '.join(p95s) or 'no request ended'}). "
            "Raise the limits, or take a faster machine or a smaller model."
        ]
    number = replicas_text(best.replicas)
    lines = [f"Recommended: {number} with {_flags(question, best)}."]
    if best.figures.share < question.share and best.replicas == REPLICAS_MAX:
        return [
            f"This load needs more than {REPLICAS_MAX:,} replicas, the most that is planned; give "
            "a lower --request-rate."
        ]
    if best.figures.share < question.share:
        lines.append(
            f"At this load {_percent(best.figures.share)} of the requests are within the limits, "
            f"not {_percent(question.share)}: it is at the edge; take one replica more."
        )
    lines.append(f"The fleet bears {shown(found.knee_per_s)} requests/s within the limits.")
    bears_per_s = best.capacity.per_s
    if found.sjf_per_s is not None and found.sjf_per_s > GAIN * bears_per_s:
        lines.append(
            f"With --policy sjf one replica would bear {shown(found.sjf_per_s)} requests/s and not "
            f"{shown(bears_per_s)}, if max_tokens of every request were the length of its answer. "
            "Callers who write more, or nothing, take from that gain; so it is not recommended."
        )
    return lines


def _flags(question: PlanQuestion, best: Fleet) -> str:
    """What must be given beside the present settings to run what was simulated."""
    changed = [
        f"--{name.replace('_', '-')} {getattr(best.settings, name)}"
        for name in CHOSEN
        if getattr(best.settings, name) != getattr(question.settings, name)
    ]
    backend = question.cost.traits.name
    named = [] if backend == question.backend else [f"--backend {backend}"]
    if changed:
        return " ".join([*named, *changed])
    return " and ".join([*named, "the present settings: no others are better"])


def _figures(**values: object) -> dict[str, object]:
    return {name: finite(value) for name, value in values.items()}


def finite(value: object) -> object:
    """The value for JSON, which has no word for NaN and infinity: they are None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value


def _replicas(fleet: Fleet) -> str:
    return "no number" if fleet.replicas is None else f"{fleet.replicas:,}"


def _fleet_figures(fleet: Fleet) -> dict[str, object]:
    return {
        **settings_shown(fleet.settings),
        "replicas": fleet.replicas,
        "replica_bears_per_s": fleet.capacity.per_s,
        "replica_most_per_s": fleet.capacity.most_per_s,
        **asdict(fleet.figures),
    }


def _plain_cost(cost: Cost) -> dict[str, object]:
    return {
        "model": cost.model,
        "backend": cost.traits.name,
        "backend_process": cost.backend_process,
        "machine": cost.machine,
        "measured_at": cost.measured_at,
        "error": cost.error,
        "tick_count": cost.tick_count,
        "stolen_share": cost.stolen_share,
    }


def _estimated(found: Estimate) -> tuple[str, str]:
    return shown(found.value), f"± {shown(found.error)}"


def _beside(value: float, first: float) -> str:
    """A value, with its change from the first row."""
    if value == first or not first > 0 or not math.isfinite(value):
        return shown(value)
    return f"{shown(value)} ({100 * (value / first - 1):+.0f} %)"


def shown(value: float) -> str:
    """A number for people; a dash if there is none."""
    if not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
