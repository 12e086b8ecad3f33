"""Tables, sentences and figures of plans, what-ifs and days, as `Result` for people and programs.

Each result also says its load and its cost, which `result_of` adds.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from jitney.core.scheduler_settings import Policy, SchedulerSettings
from jitney_lab.bench.report import Result
from jitney_lab.bench.steal import SHARE_NOTED
from jitney_lab.plan.day import DayFigures, Estimate
from jitney_lab.plan.planned_load import PlannedLoad, load_note, number_text
from jitney_lab.plan.recommend import GAIN, Fleet, Recommendation
from jitney_lab.plan.replica import CELL, REPLICAS_MAX, replicas_text
from jitney_lab.plan.search import METRICS, Figures, PlanQuestion
from jitney_lab.plan.tick_cost import DOUBTED, Cost

CHOSEN = ("max_num_seqs", "max_num_batched_tokens", "prefill_chunk", "mix", "policy")
"""The settings that are searched."""

WITHIN = "within the limits"
COST = (
    *("model", "machine", "measured_at", "backend_process", "error", "tick_count"),
    "stolen_share",
)
"""What a result has of its cost, beside the backend."""

MAX_TOKENS = "the length of each answer"
"""What callers write as `max_tokens`, in every simulation."""

SJF_NOTE = (
    "The policy sjf was simulated as if max_tokens of every request were the length of its answer. "
    "Where callers write more it gains less, and where chats have none it is as fifo."
)
PLACES = {
    None: "",
    True: " The backend ran in a process of its own, as under jitney serve.",
    False: " The backend ran in the engine's process, which jitney serve does only if told so.",
}
"""Where the backend ran while a cost was measured; nothing for a file that does not say."""


def result_of(found: Result, question: PlanQuestion, load: PlannedLoad) -> Result:
    """The result with its load and its cost, for people and for programs."""
    cost = question.cost
    figures = {
        "limits_ms": question.limits,
        "cost": {"backend": cost.traits.name, **{name: getattr(cost, name) for name in COST}},
        "rate": load.per_s,
        "load": load.as_json(),
        "max_tokens": MAX_TOKENS,
        **found.figures,
    }
    notes = (load_note(load), cost_note(cost), *found.notes)
    return replace(found, notes=notes, figures=figures)


def plan_result(question: PlanQuestion, found: Recommendation) -> Result:
    """What to set, beside what is set now."""
    pair = (found.present, found.best)
    rows: list[tuple[object, ...]] = [
        (name, *(str(getattr(each.settings, name)) for each in pair)) for name in CHOSEN
    ]
    rows.append(("replicas", *(each.replicas or "no number" for each in pair)))
    rows.append(("one sustains requests/s", *(each.capacity.per_s for each in pair)))
    for name, (_, title) in METRICS.items():
        rows.append((title, *(getattr(each.figures, name) for each in pair)))
    rows.append((WITHIN, *(_percent(each.figures.share) for each in pair)))
    limits = ", ".join(f"{metric} {limit:g} ms" for metric, limit in question.limits.items())
    limits_note = f"Limits: {limits}, for {_percent(question.share)} of the requests."
    policies = [each.settings.policy for each in pair]
    return Result(
        name="plan",
        title=f"{question.traffic.name}, {number_text(question.per_s)} requests/s",
        columns=("", "present", "recommended"),
        rows=table(rows),
        notes=(limits_note, *_advice(question, found), *_sjf_notes(policies)),
        figures={
            "share": question.share,
            "present": _fleet_figures(found.present),
            "recommended": _fleet_figures(found.best),
            "knee_per_s": found.knee_per_s,
            "sjf_bears_per_s": found.sjf_per_s,
            "curve": found.curve,
            "present_curve": found.present_curve,
            "tried": [
                {**_chosen(settings), "bears_per_s": capacity.per_s}
                for settings, capacity in found.tried.items()
            ],
        },
    )


@dataclass(frozen=True, slots=True)
class Replay:
    """One workload under some settings; `is_overloaded` is None where that is not known."""

    settings: str
    replicas: int
    figures: Figures
    is_overloaded: bool | None = None


def what_if_result(
    question: PlanQuestion, rows: Sequence[Replay], policies: Iterable[object]
) -> Result:
    """One workload under several settings, side by side."""
    first = rows[0].figures
    notes = [_failures(each) for each in rows if each.figures.failed]
    overloaded = "; ".join(each.settings for each in rows if each.is_overloaded)
    if overloaded:
        notes.append(
            f"More arrives than the replicas sustain under these settings: {overloaded}. Latencies "
            "there grow as long as that lasts, or requests are refused; the latencies and shares "
            "above are those of the first requests only, and too good."
        )
    return Result(
        name="plan-what-if",
        title=f"{question.traffic.name}: {first.count:,} requests",
        columns=("settings", "replicas", *(name for _, name in METRICS.values()), WITHIN, "failed"),
        rows=table(
            (
                *(each.settings, str(each.replicas)),
                *(_beside(getattr(each.figures, key), getattr(first, key)) for key in METRICS),
                *(_percent(each.figures.share), each.figures.failed),
            )
            for each in rows
        ),
        notes=(*notes, *_sjf_notes(policies)),
        figures={
            "runs": [
                {
                    "settings": each.settings,
                    "replicas": each.replicas,
                    **asdict(each.figures),
                    "overloaded": each.is_overloaded,
                }
                for each in rows
            ]
        },
    )


def _failures(row: Replay) -> str:
    """How many requests failed under some settings, and why."""
    figures = row.figures
    number = "All" if figures.failed == figures.count else f"{figures.failed:,} of"
    why = "" if figures.failure is None else f", for example: {figures.failure.rstrip('.')}"
    return f"{number} {figures.count:,} requests were refused or failed under {row.settings}{why}."


def day_result(question: PlanQuestion, replicas: int, found: DayFigures, seconds: float) -> Result:
    """A day on a fleet, with the errors of its sample."""
    fleet = replicas_text(replicas)
    notes = [
        f"A sample: {found.simulated:,} of {found.requests:,.0f} requests were simulated, in "
        f"windows of every hour and cells of up to {CELL} of {fleet}, in "
        f"{seconds:.0f} s. The errors are those of the sample, with 95 % certainty; that of the "
        "cost comes on top."
    ]
    if found.overloaded:
        hours = ", ".join(map(str, found.overloaded))
        notes.append(
            f"More arrives than {fleet} can sustain in these hours: {hours}. "
            "Latencies there grow as long as that lasts, or requests are refused; the latencies "
            "above are too low."
        )

    def row(title: str, estimate: Estimate) -> tuple[object, ...]:
        return title, estimate.value, f"± {cell_text(estimate.error)}"

    return Result(
        name="plan-day",
        title=f"A day: {question.per_s:,.4g} requests/s in the mean, {fleet}",
        columns=("what", "value", "error"),
        rows=table(
            [
                ("requests of the day", f"{found.requests:,.0f}", ""),
                (WITHIN, _percent(found.share.value), f"± {100 * found.share.error:.2f}"),
                row("goodput requests/s", found.goodput_per_s),
                row("p50 latency ms", found.p50_ms),
                row("p95 latency ms", found.p95_ms),
                row("p95 first token ms", found.ttft_p95_ms),
            ]
        ),
        notes=(*notes, *_sjf_notes([question.settings.policy])),
        figures={"replicas": replicas, "wall_s": seconds, **asdict(found)},
    )


def _sjf_notes(policies: Iterable[object]) -> tuple[str, ...]:
    """A sentence about `sjf`, if it is one of the policies of a table."""
    return (SJF_NOTE,) if Policy.SJF in policies else ()


def _chosen(settings: SchedulerSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in CHOSEN}


def _fleet_figures(fleet: Fleet) -> dict[str, object]:
    return {
        **_chosen(fleet.settings),
        "replicas": fleet.replicas,
        "replica_bears_per_s": fleet.capacity.per_s,
        "replica_most_per_s": fleet.capacity.most_per_s,
        **asdict(fleet.figures),
    }


def cost_note(cost: Cost) -> str:
    """Which cost was used, and how good it is."""
    doubt = ""
    if cost.stolen_share is not None and cost.stolen_share > SHARE_NOTED:
        doubt = (
            f" Other machines on the same host took {100 * cost.stolen_share:.0f} % of the "
            "processors while it was measured: measure again at another time."
        )
    elif cost.error > DOUBTED:
        doubt = " With so large an error it says little: measure again on a quiet machine."
    return (
        f"Cost: {cost.model} with {cost.traits.name} on {cost.machine}, {cost.measured_at}; fitted "
        f"to {cost.tick_count:,} ticks with a mean error of {100 * cost.error:.0f} % each. "
        f"It holds for --backend {cost.traits.name}: auto may take another for other slots."
        f"{PLACES[cost.backend_process]}{doubt}"
    )


def _advice(question: PlanQuestion, found: Recommendation) -> list[str]:
    best, figures = found.best, found.best.figures
    if best.replicas is None:
        known = {"first token": figures.ttft_p95_ms, "per token": figures.tpot_p95_ms}
        p95s = [f"{name} {cell_text(ms)} ms" for name, ms in known.items() if not math.isnan(ms)]
        return [
            f"No setting meets these limits, whatever the number of replicas: with nearly nothing "
            f"else to do, {_percent(figures.share)} of the requests are within them (p95: "
            f"{', '.join(p95s) or 'no request ended'}). "
            "Raise the limits, or take a faster machine or a smaller model."
        ]
    if figures.share < question.share and best.replicas == REPLICAS_MAX:
        return [
            f"This load needs more than {REPLICAS_MAX:,} replicas, the most that is planned; give "
            "a lower --request-rate."
        ]
    lines = [f"Recommended: {replicas_text(best.replicas)} with {_flags(question, best)}."]
    if figures.share < question.share:
        lines.append(
            f"At this load {_percent(figures.share)} of the requests are within the limits, "
            f"not {_percent(question.share)}: it is at the edge; take one replica more."
        )
    knee = number_text(found.knee_per_s)
    lines.append(f"The fleet sustains {knee} requests/s within the limits.")
    per_s = best.capacity.per_s
    if found.sjf_per_s is not None and found.sjf_per_s > GAIN * per_s:
        lines.append(
            f"With --policy sjf one replica would sustain {number_text(found.sjf_per_s)} "
            f"requests/s and not {number_text(per_s)}, if max_tokens of every request were the "
            "length of its answer. "
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
    flags = [] if backend == question.backend else [f"--backend {backend}"]
    if changed:
        return " ".join([*flags, *changed])
    return " and ".join([*flags, "the present settings: no others are better"])


def table(rows: Iterable[Sequence[object]]) -> tuple[tuple[str, ...], ...]:
    """The rows of a table as text."""
    return tuple(tuple(map(cell_text, row)) for row in rows)


def cell_text(value: object) -> str:
    """A cell of a table: a dash for a number that is not known."""
    if isinstance(value, float):
        return number_text(value) if math.isfinite(value) else "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _beside(value: float, first: float) -> str:
    """A value, with its change from the first row."""
    if value == first or not first > 0 or not math.isfinite(value):
        return cell_text(value)
    return f"{cell_text(value)} ({100 * (value / first - 1):+.0f} %)"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
