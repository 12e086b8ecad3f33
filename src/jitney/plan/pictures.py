"""Draws goodput against load, as PNG and SVG. Needs matplotlib; loaded only to draw.

Tests: tests/e2e/test_plan.py.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jitney.models.files import disk_errors
from jitney.plan.recommend import CurvePoint, Recommendation

OURS, OTHER, GREY = "#1f6f5c", "#c44e52", "#9a9a9a"
SIZE = (9.0, 4.2)
DPI = 140


def draw(found: Recommendation, title: str, per_s: float, folder: Path) -> list[Path]:
    """Write plan.png and plan.svg into a folder, which is made if necessary. Raises SetupError."""
    figure = paint(found, title, per_s)
    paths = [folder / f"plan.{ending}" for ending in ("png", "svg")]
    with disk_errors(f"The plot cannot be written to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            is_svg = path.suffix == ".svg"
            figure.savefig(path, dpi=DPI, metadata={"Date": None} if is_svg else None)
    return paths


def paint(found: Recommendation, title: str, per_s: float) -> Figure:
    """Goodput by load: recommended and present settings, the load asked for, and the knee."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    figure.suptitle(title, fontsize=11)
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
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False, loc="upper left")
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
