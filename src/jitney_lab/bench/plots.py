"""Pictures of results, as PNG and SVG. Needs matplotlib; loaded only to draw.

Tests: tests/unit/lab/bench/test_plots.py and tests/e2e/test_bench.py.
"""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: results are JSON values

from matplotlib.figure import Figure

from jitney_lab.bench.drawing import GREY, OTHER, OURS, empty_figure, machine_of, save_figure
from jitney_lab.bench.scaling import rate_limits

COLOURS = {
    "sequential": GREY,
    "static": OTHER,
    "dynamic": "#dd8452",
    "adaptive": "#ccb974",
    "windowed": "#64b5cd",
    "continuous": OURS,
}


def draw(content: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw the result of a benchmark into files NAME.png and NAME.svg; which were written."""
    return save_figure(PAINTERS[content["benchmark"]](content), content["benchmark"], folder)


def _strategies(content: Mapping[str, Any]) -> Figure:
    """p95 latency and throughput of each strategy, workload by workload."""
    workloads = content["workloads"]
    # A quick run has some of them only.
    ways = [name for name in COLOURS if all(name in each for each in workloads.values())]
    title = f"One workload, {len(ways)} ways of batching, {machine_of(content)}"
    figure, (latency, rate) = empty_figure(2, title)
    for axes, key, scale, label in (
        (latency, "p95_e2el_ms", 1e-3, "p95 latency, seconds"),
        (rate, "output_throughput", 1.0, "tokens per second"),
    ):
        for number, name in enumerate(ways):
            values = [
                scale * statistics.median([run[key] for run in strategies[name]])
                for strategies in workloads.values()
            ]
            places = [
                place + (number - (len(ways) - 1) / 2) * 0.14 for place in range(len(workloads))
            ]
            axes.bar(places, values, width=0.13, color=COLOURS[name], label=name)
        axes.set_xticks(range(len(workloads)), list(workloads))
        axes.set_ylabel(label)
    rate.legend(fontsize=8, frameon=False)
    return figure


def _scaling(content: Mapping[str, Any]) -> Figure:
    """Throughput against batch size, and the fit."""
    figure, (rate, tick) = empty_figure(2, f"Batch size, {machine_of(content)}")
    sizes = [int(size) for size in content["tokens_per_s"]]
    rates = list(content["tokens_per_s"].values())
    claimed = {int(size): gain for size, gain in content["claimed"].items()}
    rate.plot(sizes, rates, "o-", color=OURS, label="measured")
    # What was claimed are multiples of the rate of one sequence.
    if 1 in sizes:
        one = content["tokens_per_s"]["1"]
        expected = [one * gain for gain in claimed.values()]
        rate.plot(list(claimed), expected, "--", color=GREY, label="claimed once")
    for (name, limit), label in zip(
        rate_limits(content["fit"]).items(), ("1 / (C + c)", "1 / c"), strict=True
    ):
        if limit is not None:
            colour = OTHER if name == "many" else GREY
            rate.axhline(limit, color=colour, linestyle=":", label=f"{label} = {limit:,.0f}")
    rate.set(xlabel="sequences in a batch", ylabel="tokens per second", ylim=(0, None))
    rate.set_xscale("log", base=2)
    rate.set_xticks(sizes, [str(size) for size in sizes])
    fit = content["fit"]
    medians = [1e3 * statistics.median(values) for values in content["tick_s"].values()]
    line = [1e3 * (fit["fixed_s"] + size * fit["sequence_s"]) for size in sizes]
    tick.plot(sizes, medians, "o", color=OURS, label="measured")
    words = f"T(B) = {1e3 * fit['fixed_s']:.1f} ms + B * {1e3 * fit['sequence_s']:.2f} ms"
    tick.plot(sizes, line, "-", color=OTHER, label=words)
    tick.set(xlabel="sequences in a batch", ylabel="one tick, milliseconds", ylim=(0, None))
    for axes in (rate, tick):
        axes.legend(fontsize=8, frameon=False)
    return figure


def _stalls(content: Mapping[str, Any]) -> Figure:
    """The gaps of one stream from when the long prompt came, both ways."""
    prompt = f"{content['prompt_count']:,} tokens"
    title = f"A stream while a prompt of {prompt} is computed, {machine_of(content)}"
    figure, (axes,) = empty_figure(1, title)
    for (name, runs), colour in zip(content["ways"].items(), (OTHER, OURS), strict=True):
        # A gap is drawn as long as it lasted.
        for at_s, gap_ms in runs[-1]["gaps_of_one_stream"]:
            axes.plot([at_s - gap_ms / 1e3, at_s], [gap_ms / 1e3] * 2, color=colour, linewidth=2)
        worst = max(gap_ms for _, gap_ms in runs[-1]["gaps_of_one_stream"]) / 1e3
        label = f"{name}: at most {worst:.2f} s"
        axes.plot([], [], color=colour, label=label)
        axes.axvline(runs[-1]["ttft_s"], color=colour, linestyle=":", linewidth=1)
    axes.set_yscale("log")
    axes.set(
        xlabel="seconds since the prompt came (dotted: its first token)",
        ylabel="seconds between two tokens",
    )
    axes.legend(fontsize=8, frameon=False)
    return figure


def _overhead(content: Mapping[str, Any]) -> Figure:
    """The parts of a tick, and of a request and a token over HTTP, stacked, as shares."""
    figure, panels = empty_figure(2, f"Where the time goes, {machine_of(content)}")
    ticks, http = content["seconds"], content["http"]
    of_tick = ("pass", "plan", "apply", "rest")
    for axes, bars, parts in zip(panels, (ticks, http), (of_tick, http["token"]), strict=True):
        left = [0.0] * len(bars)
        for number, part in enumerate(parts):
            # Of a token some parts are nothing, give or take the noise.
            known = [{one: max(each[one], 0.0) for one in parts} for each in bars.values()]
            shares = [100 * each[part] / sum(each.values()) for each in known]
            axes.barh(list(bars), shares, left=left, color=f"C{number}", label=part)
            left = [low + share for low, share in zip(left, shares, strict=True)]
        what, label = ("a tick", "sequences") if bars is ticks else ("the processor time", "")
        axes.set(xlabel=f"percent of {what}", ylabel=label)
        axes.legend(fontsize=8, frameon=False, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1))
    return figure


def _serve(content: Mapping[str, Any]) -> Figure:
    """The sorted times of all requests, one panel for each metric."""
    curves = {name: each for name, each in content["percentile_curves_ms"].items() if each}
    rate = f"{content['request_throughput']:.2f} requests/s"
    title = f"{content['model_id']}: {content['completed']:,} requests, {rate}"
    figure, panels = empty_figure(len(curves), title)
    for axes, (metric, values) in zip(panels, curves.items(), strict=True):
        axes.plot(range(len(values)), values, "-", color=OURS)
        for share in (50, 95, 99):
            label = f"p{share}: {_digits(values[share])} ms"
            axes.plot([share], [values[share]], "o", color=OTHER, markersize=4, label=label)
        axes.set(xlabel="percent of the requests", ylabel=f"{metric.upper()}, milliseconds")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8, frameon=False, loc="upper left")
    return figure


def _digits(value: float) -> str:
    """Three digits that say something, also of a small value."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


PAINTERS = {
    "strategies": _strategies,
    "scaling": _scaling,
    "stalls": _stalls,
    "overhead": _overhead,
    "serve": _serve,
}
