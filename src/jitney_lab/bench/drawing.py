"""What all pictures of results share: an empty figure, colours, files. Needs matplotlib.

Tests: tests/e2e/test_bench.py and tests/e2e/test_plan.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: results are JSON values

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jitney.models.files import disk_errors

OURS, OTHER, GREY = "#1f6f5c", "#c44e52", "#9a9a9a"
SIZE = (9.0, 4.1)
DPI = 140


def empty_figure(columns: int, title: str) -> tuple[Figure, list[Axes]]:
    """Axes side by side under one title."""
    figure = Figure(figsize=SIZE, layout="constrained")
    figure.suptitle(title, fontsize=11)
    found = list(figure.subplots(1, columns, squeeze=False)[0])
    for axes in found:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.set_axisbelow(True)
    return figure, found


def save_figure(figure: Figure, name: str, folder: Path) -> list[Path]:
    """Write NAME.png and NAME.svg into a folder, which is made if necessary. Raises SetupError."""
    paths = [folder / f"{name}.{ending}" for ending in ("png", "svg")]
    with disk_errors(f"The plot cannot be written to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            # Without a date the same result is the same file.
            is_svg = path.suffix == ".svg"
            figure.savefig(path, dpi=DPI, metadata={"Date": None} if is_svg else None)
    return paths


def machine_of(content: Mapping[str, Any]) -> str:
    """The machine of a result, for a title."""
    machine = content["machine"]
    return f"{machine['processor']}, {machine['cores']} cores"
