"""Pictures: nothing lies on what it explains, and what has no figure has no bar."""

from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any  # Any: JSON, and figures

import pytest

from jitney_lab.plan.day import sinusoid

COST = {"model": "made", "backend": "made", "machine": "none"}
POINTS = [{"per_s": per_s, "goodput_per_s": min(per_s, 3.0)} for per_s in (1.0, 2.0, 3.0, 4.0)]
PLAN: dict[str, Any] = {
    "benchmark": "plan",
    "cost": COST,
    "rate": 2.0,
    "knee_per_s": 2.5,
    "recommended": {"replicas": 1},
    "curve": POINTS,
    "present_curve": POINTS[:2],
}
DAY: dict[str, Any] = {
    "benchmark": "plan-day",
    "cost": COST,
    "replicas": 9,
    "overloaded": [11, 12],
    "hours": [
        {"per_s": 5 * share, "share": 0.9, "p95_ms": 1e3 * share if share > 0.6 else None}
        for share in sinusoid(1.5)
    ],
}


def what_if(**p95s_ms: float | None) -> dict[str, Any]:
    runs = [
        {"settings": name, "count": 40, "share": 0.5, "p95_ms": value}
        for name, value in p95s_ms.items()
    ]
    return {"benchmark": "plan-what-if", "cost": COST, "load": {"name": "made"}, "runs": runs}


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    """No import at the head: each worker reads all heads, and few run this file."""
    found: ModuleType = pytest.importorskip("jitney_lab.plan.pictures", reason="needs matplotlib")
    return found


def drawn(figure: Any) -> Any:
    """The figure with everything in its place."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).draw()
    return figure


def test_the_legend_of_a_day_is_not_on_its_bars_and_the_line_is_not_cut(
    pictures: ModuleType,
) -> None:
    figure = drawn(pictures.paint_day(DAY))
    for axes in figure.axes:
        legend = axes.get_legend()
        assert legend is not None
        assert not legend.get_window_extent().overlaps(axes.get_window_extent())
    assert figure.axes[1].get_ylim()[1] > 1.05 * max(sinusoid(1.5))


def test_settings_under_which_all_fail_have_no_bar(pictures: ModuleType) -> None:
    axes = pictures.paint_what_if(what_if(present=100.0, other=None)).axes[0]
    assert [each.get_text().strip() for each in axes.texts] == ["none"]


def test_the_names_of_settings_do_not_run_into_each_other(pictures: ModuleType) -> None:
    names = ["present", *(f"max_num_seqs={number},mix=separate,replicas=2" for number in range(12))]
    figure = drawn(pictures.paint_what_if(what_if(**dict.fromkeys(names, 1.0))))
    boxes = [each.get_window_extent() for each in figure.axes[0].get_yticklabels()]
    tops = sorted((box.y0, box.y1) for box in boxes)
    assert all(low[1] <= high[0] for low, high in pairwise(tops))


def test_the_knee_is_named_in_the_legend(pictures: ModuleType) -> None:
    axes = pictures.paint_plan(PLAN).axes[0]
    legend = axes.get_legend()
    assert legend is not None
    assert "the knee: 2.5 requests/s" in [each.get_text() for each in legend.get_texts()]
    assert not axes.texts


@pytest.mark.parametrize("content", [PLAN, DAY, what_if(present=100.0, other=None)])
def test_each_picture_is_two_files(
    pictures: ModuleType, content: dict[str, Any], tmp_path: Path
) -> None:
    assert [path.suffix for path in pictures.draw(content, tmp_path)] == [".png", ".svg"]
    assert pictures.draw(PLAN | {"curve": []}, tmp_path) == []
