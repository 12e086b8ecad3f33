"""Pictures of plans, what-ifs and days, as PNG and SVG. Needs matplotlib; loaded only to draw.

Tests: tests/e2e/test_plan.py.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jitney.bench.drawing import GREY, OTHER, OURS, empty_figure
from jitney.plan.day import DayFigures
from jitney.plan.figures import Figures
from jitney.plan.recommend import CurvePoint, Recommendation


def paint_plan(found: Recommendation, title: str, per_s: float) -> Figure:
    """Goodput by load: recommended and present settings, the load asked for, and the knee."""
    figure, (axes,) = empty_figure(1, title)
    highest = max(each.per_s for each in found.curve)
    axes.plot([0, highest], [0, highest], ":", color=GREY, label="every request within the limits")
    if found.present_curve != found.curve:
        _line(axes, found.present_curve, OTHER, "present settings")
    _line(axes, found.curve, OURS, "recommended settings")
    axes.axvline(per_s, color=GREY, linewidth=1, label=f"the load: {_shown(per_s)} requests/s")
    if found.knee_per_s:
        good = _at(found.curve, found.knee_per_s)
        axes.plot([found.knee_per_s], [good], "o", markersize=11, fillstyle="none", color=OURS)
        axes.annotate(
            f"knee: {_shown(found.knee_per_s)} requests/s",
            (found.knee_per_s, good),
            (-4, -22),
            textcoords="offset points",
            color=OURS,
        )
    axes.set(
        xlabel="requests that arrive per second",
        ylabel="requests per second within the limits",
        xlim=(0, None),
        ylim=(0, None),
    )
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    return figure


def paint_day(found: DayFigures, title: str) -> Figure:
    """What arrives in each hour and how much of it is within the limits, beside the latency."""
    figure, (rates, latency) = empty_figure(2, title)
    hours = range(len(found.hours))
    good = [each.per_s * each.share for each in found.hours]
    rates.bar(hours, [each.per_s for each in found.hours], color=GREY, alpha=0.5, label="arrive")
    rates.bar(hours, good, width=0.5, color=OURS, label="within the limits")
    rates.set(xlabel="hour", ylabel="requests per second")
    rates.legend(fontsize=8, frameon=False)
    p95_s = [each.p95_ms / 1e3 for each in found.hours]
    latency.plot(hours, p95_s, "o-", markersize=4, color=OURS, label="p95")
    late = [hour for hour in found.overloaded if hour in hours]
    if late:
        values = [p95_s[hour] for hour in late]
        latency.plot(late, values, "x", markersize=9, color=OTHER, label="overloaded: too low")
    latency.set(xlabel="hour", ylabel="p95 latency, seconds", ylim=(0, None))
    latency.legend(fontsize=8, frameon=False)
    return figure


def paint_what_if(rows: Sequence[tuple[str, int, Figures]], title: str) -> Figure:
    """The latency of one load, and its share within the limits, under each of the settings."""
    figure, (latency, shares) = empty_figure(2, title)
    # The first on top.
    places = range(len(rows), 0, -1)
    colours = [GREY, *[OURS] * (len(rows) - 1)]
    p95_s = [each.p95_ms / 1e3 if math.isfinite(each.p95_ms) else 0.0 for _, _, each in rows]
    latency.barh(places, p95_s, color=colours)
    names = [name.replace(",", ",\n") for name, _, _ in rows]
    latency.set_yticks(places, names, fontsize=8)
    latency.set(xlabel="p95 latency, seconds")
    shares.barh(places, [100 * each.share for _, _, each in rows], color=colours)
    shares.set_yticks(places, [""] * len(rows))
    shares.set(xlabel="percent of the requests within the limits", xlim=(0, 100))
    return figure


def _line(axes: Axes, curve: Sequence[CurvePoint], colour: str, label: str) -> None:
    loads, goods = [each.per_s for each in curve], [each.goodput_per_s for each in curve]
    axes.plot(loads, goods, "o-", markersize=4, color=colour, label=label)


def _shown(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _at(curve: Sequence[CurvePoint], per_s: float) -> float:
    """The goodput at a load between two points."""
    for low, high in pairwise(curve):
        if low.per_s <= per_s <= high.per_s:
            share = (per_s - low.per_s) / (high.per_s - low.per_s)
            return low.goodput_per_s + share * (high.goodput_per_s - low.goodput_per_s)
    return curve[-1].goodput_per_s
