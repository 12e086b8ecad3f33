"""Pictures: nothing lies on what it explains, and what has no figure has no bar."""

from dataclasses import replace
from itertools import pairwise

import pytest

pytest.importorskip("matplotlib", reason="needs matplotlib")

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jitney_lab.plan.day import DayFigures, Estimate, HourFigures, sinusoid
from jitney_lab.plan.figures import figures_of
from jitney_lab.plan.pictures import paint_day, paint_plan, paint_what_if
from jitney_lab.plan.recommend import CurvePoint, Fleet, Recommendation
from jitney_lab.plan.search import Capacity
from tests.plan_for_tests import QUESTION

NONE = figures_of([], 0.0, {}, 0.0)


def drawn(figure: Figure) -> Figure:
    """The figure with everything in its place."""
    FigureCanvasAgg(figure).draw()
    return figure


def legend_of(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert legend is not None
    return [each.get_text() for each in legend.get_texts()]


def day() -> DayFigures:
    known = Estimate(1.0, 0.1)
    return DayFigures(
        requests=1.0,
        simulated=1,
        entry_count=1,
        share=known,
        goodput_per_s=known,
        p50_ms=known,
        p95_ms=known,
        ttft_p95_ms=known,
        overloaded=(11, 12),
        hours=tuple(
            HourFigures(per_s=5 * share, share=0.9, p95_ms=1e3 * share) for share in sinusoid(1.5)
        ),
    )


def test_the_legend_of_a_day_is_not_on_its_bars_and_the_line_is_not_cut() -> None:
    figure = drawn(paint_day(day(), "made"))
    for axes in figure.axes:
        legend = axes.get_legend()
        assert legend is not None
        assert not legend.get_window_extent().overlaps(axes.get_window_extent())
    highest = max(each.p95_ms for each in day().hours) / 1e3
    assert figure.axes[1].get_ylim()[1] > 1.05 * highest


def test_settings_under_which_all_fail_have_no_bar() -> None:
    rows = [("present", 1, replace(NONE, p95_ms=100.0)), ("kv_tokens=10", 1, NONE)]
    axes = paint_what_if(rows, "made").axes[0]
    assert [each.get_text().strip() for each in axes.texts] == ["none"]


def test_the_names_of_settings_do_not_run_into_each_other() -> None:
    names = ["present", *(f"max_num_seqs={number},mix=separate,replicas=2" for number in range(12))]
    figure = drawn(paint_what_if([(name, 1, replace(NONE, p95_ms=1.0)) for name in names], "made"))
    boxes = [each.get_window_extent() for each in figure.axes[0].get_yticklabels()]
    tops = sorted((box.y0, box.y1) for box in boxes)
    assert all(low[1] <= high[0] for low, high in pairwise(tops))


def test_the_knee_is_named_in_the_legend() -> None:
    curve = tuple(
        CurvePoint(per_s=per_s, goodput_per_s=min(per_s, 3.0), share=min(1.0, 3.0 / per_s))
        for per_s in (1.0, 2.0, 3.0, 4.0)
    )
    capacity = Capacity(most_per_s=3.0, per_s=2.5, figures=NONE)
    fleet = Fleet(settings=QUESTION.settings, capacity=capacity, replicas=1, figures=NONE)
    found = Recommendation(
        best=fleet, present=fleet, tried=(), curve=curve, present_curve=curve, knee_per_s=2.5
    )
    axes = paint_plan(found, "made", 2.0).axes[0]
    assert "the knee: 2.5 requests/s" in legend_of(axes)
    assert not axes.texts
