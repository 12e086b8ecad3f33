"""Pictures of plans, what-ifs and days, as PNG and SVG. Needs matplotlib; loaded only to draw.

Tests: tests/unit/lab/plan/test_pictures.py and tests/e2e/test_plan.py.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jitney_lab.bench.drawing import GREY, OTHER, OURS, empty_figure
from jitney_lab.plan.day import DayFigures
from jitney_lab.plan.figures import Figures
from jitney_lab.plan.recommend import CurvePoint, Recommendation

ROOM = 1.08
"""The highest point of a line has this much room."""

FRAME_INCHES, LINE_INCHES = 1.2, 0.17
"""What is around the bars of a what-if, and a line of a name beside them."""

TICKS_MAX = 6


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
        # Its words are in the legend: curves run on every side of it.
        label = f"the knee: {_shown(found.knee_per_s)} requests/s"
        axes.axvline(found.knee_per_s, color=OURS, linewidth=0.8, linestyle="--", label=label)
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
    _legend_above(rates)
    p95_s = [each.p95_ms / 1e3 for each in found.hours]
    latency.plot(hours, p95_s, "o-", markersize=4, color=OURS, label="p95")
    late = [hour for hour in found.overloaded if hour in hours]
    if late:
        values = [p95_s[hour] for hour in late]
        latency.plot(late, values, "x", markersize=9, color=OTHER, label="overloaded: too low")
    highest = max((each for each in p95_s if math.isfinite(each)), default=0.0)
    # A limit of None would be that of the line so far, on which half of the marks lies.
    latency.set(xlabel="hour", ylabel="p95 latency, seconds", ylim=(0, ROOM * highest or 1.0))
    _legend_above(latency)
    return figure


def paint_what_if(rows: Sequence[tuple[str, int, Figures]], title: str) -> Figure:
    """The latency of one load, and its share within the limits, under each of the settings."""
    figure, (latency, shares) = empty_figure(2, title)
    names = [name.replace(",", ",\n") for name, _, _ in rows]
    heights = [name.count("\n") + 1 for name in names]
    needed = FRAME_INCHES + LINE_INCHES * sum(heights)
    figure.set_figheight(max(figure.get_figheight(), needed))
    # The first on top. A name of several lines needs their room.
    places = [-(sum(heights[:at]) + height / 2) for at, height in enumerate(heights)]
    colours = [GREY, *[OURS] * (len(rows) - 1)]
    p95_s = [each.p95_ms / 1e3 for _, _, each in rows]
    latency.barh(places, [each if math.isfinite(each) else 0.0 for each in p95_s], color=colours)
    for place, seconds in zip(places, p95_s, strict=True):
        if not math.isfinite(seconds):
            # No bar: one of no length would look like the best.
            latency.annotate(" none", (0.0, place), verticalalignment="center", fontsize=8)
    latency.set_yticks(places, names, fontsize=8)
    latency.set(xlabel="p95 latency, seconds", xlim=(0, None))
    latency.xaxis.set_major_locator(MaxNLocator(TICKS_MAX))
    shares.barh(places, [100 * each.share for _, _, each in rows], color=colours)
    shares.set_yticks(places, [""] * len(rows))
    shares.set(xlabel="percent of the requests within the limits", xlim=(0, 100))
    return figure


def _legend_above(axes: Axes) -> None:
    """Where it covers nothing."""
    axes.legend(fontsize=8, frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0.0, 1.0))


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
