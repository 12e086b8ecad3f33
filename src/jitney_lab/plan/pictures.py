"""Pictures of plans, what-ifs and days, as PNG and SVG. Needs matplotlib; loaded only to draw.

They are drawn from what is in the JSON of a result.

Tests: tests/unit/lab/plan/test_pictures.py and tests/e2e/test_plan.py.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any  # Any: JSON values

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from jitney_lab.bench.drawing import GREY, OTHER, OURS, empty_figure, save_figure
from jitney_lab.plan.planned_load import number_text
from jitney_lab.plan.replica import replicas_text

ROOM = 1.08
"""The highest point of a line has this much room."""

FRAME_INCHES, LINE_INCHES = 1.2, 0.17
"""What is around the bars of a what-if, and a line of a name beside them."""

TICKS_MAX = 6


def draw(content: dict[str, Any], folder: Path) -> list[Path]:
    """Draw a result into a folder; its files, none where there is nothing to draw."""
    paint = {"plan": paint_plan, "plan-what-if": paint_what_if, "plan-day": paint_day}
    if content["benchmark"] == "plan" and not content["curve"]:
        return []
    figure = paint[content["benchmark"]](content)
    return save_figure(figure, content["benchmark"], folder)


def _figure(columns: int, content: dict[str, Any], what: str) -> tuple[Figure, list[Axes]]:
    cost = content["cost"]
    title = f"{cost['model']} with {cost['backend']} on {cost['machine']}, {what}"
    return empty_figure(columns, title)


def paint_plan(content: dict[str, Any]) -> Figure:
    """Goodput by load with recommended and present settings; the planned load, and the knee."""
    curve, per_s, knee_per_s = content["curve"], content["rate"], content["knee_per_s"]
    figure, (axes,) = _figure(1, content, replicas_text(content["recommended"]["replicas"]))
    highest = max(each["per_s"] for each in curve)
    axes.plot([0, highest], [0, highest], ":", color=GREY, label="every request within the limits")
    curves = [("recommended settings", OURS, curve)]
    if content["present_curve"] != curve:
        curves.insert(0, ("present settings", OTHER, content["present_curve"]))
    for label, colour, points in curves:
        loads = [each["per_s"] for each in points]
        goods = [each["goodput_per_s"] for each in points]
        axes.plot(loads, goods, "o-", markersize=4, color=colour, label=label)
    label = f"the load: {number_text(per_s)} requests/s"
    axes.axvline(per_s, color=GREY, linewidth=1, label=label)
    if knee_per_s:
        good = np.interp(knee_per_s, loads, goods)
        axes.plot([knee_per_s], [good], "o", markersize=11, fillstyle="none", color=OURS)
        # Its words are in the legend: curves run on every side of it.
        label = f"the knee: {number_text(knee_per_s)} requests/s"
        axes.axvline(knee_per_s, color=OURS, linewidth=0.8, linestyle="--", label=label)
    axes.set(
        xlabel="requests that arrive per second",
        ylabel="requests per second within the limits",
        xlim=(0, None),
        ylim=(0, None),
    )
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    return figure


def paint_day(content: dict[str, Any]) -> Figure:
    """What arrives in each hour and how much of it is within the limits, beside the latency."""
    hours = content["hours"]
    what = f"a day on {replicas_text(content['replicas'])}"
    figure, (rates, latency) = _figure(2, content, what)
    places = range(len(hours))
    rates.bar(places, [each["per_s"] for each in hours], color=GREY, alpha=0.5, label="arrive")
    good = [each["per_s"] * each["share"] for each in hours]
    rates.bar(places, good, width=0.5, color=OURS, label="within the limits")
    rates.set(xlabel="hour", ylabel="requests per second")
    p95_s = _seconds(each["p95_ms"] for each in hours)
    latency.plot(places, p95_s, "o-", markersize=4, color=OURS, label="p95")
    late = content["overloaded"]
    if late:
        label = "overloaded: too low"
        latency.plot(late, p95_s[late], "x", markersize=9, color=OTHER, label=label)
    highest = float(np.nan_to_num(p95_s).max())
    # A limit of None would be that of the line so far, on which half of the marks lies.
    latency.set(xlabel="hour", ylabel="p95 latency, seconds", ylim=(0, ROOM * highest or 1.0))
    for axes in (rates, latency):
        # Above the axes the legend covers nothing.
        axes.legend(fontsize=8, frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    return figure


def paint_what_if(content: dict[str, Any]) -> Figure:
    """The latency of one load, and its share within the limits, under each of the settings."""
    runs = content["runs"]
    what = f"{content['load']['name']}: {runs[0]['count']:,} requests"
    figure, (latency, shares) = _figure(2, content, what)
    names = [each["settings"].replace(",", ",\n") for each in runs]
    heights = [name.count("\n") + 1 for name in names]
    needed = FRAME_INCHES + LINE_INCHES * sum(heights)
    figure.set_figheight(max(figure.get_figheight(), needed))
    # The first on top. A name of several lines needs their room.
    places = [-(sum(heights[:at]) + height / 2) for at, height in enumerate(heights)]
    colours = [GREY, *[OURS] * (len(runs) - 1)]
    p95_s = _seconds(each["p95_ms"] for each in runs)
    latency.barh(places, np.nan_to_num(p95_s), color=colours)
    for place, seconds in zip(places, p95_s, strict=True):
        if np.isnan(seconds):
            # No bar: one of no length would look like the best.
            latency.annotate(" none", (0.0, place), verticalalignment="center", fontsize=8)
    latency.set_yticks(places, names, fontsize=8)
    latency.set(xlabel="p95 latency, seconds", xlim=(0, None))
    latency.xaxis.set_major_locator(MaxNLocator(TICKS_MAX))
    shares.barh(places, [100 * each["share"] for each in runs], color=colours)
    shares.set_yticks(places, [""] * len(runs))
    shares.set(xlabel="percent of the requests within the limits", xlim=(0, 100))
    return figure


def _seconds(values_ms: Iterable[float | None]) -> NDArray[np.float64]:
    """Milliseconds of a result as seconds; NaN for what no request has."""
    return np.array([np.nan if each is None else each / 1e3 for each in values_ms])
