"""The picture of a comparison. Needs matplotlib; loaded only to draw."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: results are JSON values

from jitney_lab.bench.drawing import GREY, OTHER, OURS, empty_figure, machine_of, save_figure

SHADES = (OURS, GREY, OTHER, "#dd8452", "#ccb974", "#64b5cd", "#8172b3")


def draw(content: Mapping[str, Any], folder: Path) -> list[Path]:
    """Tokens per second by the number of clients: each of ours beside those it is compared with."""
    rates, compared_with = content["tokens_per_s"], content["compared_with"]
    groups = {
        name: [name, *(peer for peer, ours in compared_with.items() if ours == name)]
        for name in rates
        if name not in compared_with
    }
    clients = sorted({int(count) for each in rates.values() for count in each})
    title = f"Tokens per second, {machine_of(content)}"
    figure, panels = empty_figure(len(groups), title)
    for axes, names in zip(panels, groups.values(), strict=True):
        width = 0.8 / len(names)
        for number, name in enumerate(names):
            first = -0.4 + (number + 0.5) * width
            known = [
                (place + first, statistics.median(rates[name][str(count)]))
                for place, count in enumerate(clients)
                if str(count) in rates[name]
            ]
            places, values = zip(*known, strict=True)
            colour = SHADES[number % len(SHADES)]
            axes.bar(places, values, width=0.9 * width, color=colour, label=name)
        axes.set_xticks(range(len(clients)), [str(count) for count in clients])
        axes.set(xlabel="clients at once", ylabel="tokens per second")
        axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    return save_figure(figure, "compare", folder)
