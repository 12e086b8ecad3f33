"""What `jitney plan` predicts against what is measured, over configurations and loads.

`python -m benchmarks.plan_check` calibrates, predicts each run, measures it on the same model and
machine, and prints throughput and p95 latency of both with their relative errors; `--out` has all
figures of both. Measure on a machine that does nothing else: a run that lost much to others on the
same host is measured again. Each configuration is measured under an open load, as a share of
what is simulated as its most, and in a closed loop with twice as many clients as slots.

The calibration is repeated before each configuration with `--calibrate-each`; without, one at the
start serves for all, as for a user.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from jitney.config import Settings
from jitney.core.scheduler_settings import Mix, Policy
from jitney.loading.compose import scheduler_settings
from jitney_lab.bench.in_process import engine_target
from jitney_lab.bench.report import Result, document, written_to
from jitney_lab.bench.steal import CalmParts, with_steal
from jitney_lab.bench.workload import Workload, mixed
from jitney_lab.plan.calibrate import calibrate
from jitney_lab.plan.replica import Configuration
from jitney_lab.plan.search import Figures, figures_of
from jitney_lab.plan.simulate import simulate
from jitney_lab.plan.tick_cost import Cost, read_cost, write_cost

CHANGES: dict[str, dict[str, object]] = {
    "4 slots": {"max_num_seqs": 4},
    "8 slots, decode first": {"max_num_seqs": 8, "mix": Mix.DECODE_FIRST},
    "16 slots": {},
    "16 slots, sjf": {"policy": Policy.SJF},
    "16 slots, chunks of 32": {"prefill_chunk": 32},
    "32 slots, prefill first": {"max_num_seqs": 32, "mix": Mix.PREFILL_FIRST},
}
COLUMNS = {"per_s": "requests/s", "p95_ms": "p95 ms", "ttft_p95_ms": "ttft p95"}
OPEN_SHARE = 0.8
COUNT = 128


@dataclass(frozen=True, slots=True)
class Row:
    """One run, predicted and measured."""

    name: str
    load: str
    cost: Cost
    predicted: Figures
    measured: Figures

    def error(self, key: str) -> float:
        """How far the prediction is off, as a share of what was measured."""
        measured: float = getattr(self.measured, key)
        predicted: float = getattr(self.predicted, key)
        return predicted / measured - 1.0


def predict(settings: Settings, cost: Cost, workload: Workload) -> Figures:
    """What the simulation says."""
    traits = cost.traits.at(settings.max_num_seqs, settings.kv_tokens)
    configuration = Configuration(scheduler_settings(settings, traits), traits)
    run = simulate(workload, configuration, cost)
    return figures_of(run.requests, run.duration_s, {}, run.mean_batch)


def loads(settings: Settings, cost: Cost, count: int, seed: int) -> list[Workload]:
    """A closed loop, and an open load below the most that is sustainable."""
    closed = mixed(count, seed=seed, clients=2 * settings.max_num_seqs)
    most_per_s = predict(settings, cost, closed).per_s
    opened = mixed(count, seed=seed, per_s=OPEN_SHARE * most_per_s)
    return [replace(closed, name="closed"), replace(opened, name="open")]


def check(
    settings: Settings, cost: Cost, name: str, count: int, seed: int, calm: CalmParts
) -> list[Row]:
    """Predict and measure one configuration under its loads."""
    rows = []
    with engine_target(settings) as target:
        for workload in loads(settings, cost, count, seed):
            run = calm.measure(partial(target.run, workload))
            if run.failures:
                sys.exit(
                    f"{name}, {workload.name}: {len(run.failures)} requests failed, so that there "
                    f"is nothing to compare: {run.failures[0]}"
                )
            found = figures_of(run.requests, run.duration_s, {}, run.mean_batch)
            rows.append(Row(name, workload.name, cost, predict(settings, cost, workload), found))
            show(rows[-1])
    return rows


def show(row: Row) -> None:
    """One line."""
    cells = [f"{row.name:26} {row.load:7}"]
    for key, title in COLUMNS.items():
        predicted, measured = getattr(row.predicted, key), getattr(row.measured, key)
        cells.append(f"{title} {predicted:8.4g} {measured:8.4g} {100 * row.error(key):+6.1f} %")
    print("  ".join(cells), flush=True)


def result_of(rows: Sequence[Row], count: int, stolen_share: float | None) -> Result:
    """All figures as a `Result`. Each cost is there once, and rows have its place."""
    costs: list[Cost] = []
    for row in rows:
        if row.cost not in costs:
            costs.append(row.cost)
    errors = {key: [abs(row.error(key)) for row in rows] for key in ("per_s", "p95_ms")}
    found = Result(
        name="plan_check",
        title="",
        columns=(),
        rows=(),
        notes=tuple(
            f"{key}: median error {100 * statistics.median(values):.1f} %, "
            f"worst {100 * max(values):.1f} %"
            for key, values in errors.items()
        ),
        figures={
            "model": costs[0].model,
            "backend": costs[0].traits.name,
            "stolen_share": stolen_share,
            "load": {"num_prompts": count, "open_share": OPEN_SHARE},
            "costs": costs,
            "rows": [
                {
                    "name": row.name,
                    "load": row.load,
                    "cost": costs.index(row.cost),
                    "predicted": row.predicted,
                    "measured": row.measured,
                    "error": {key: row.error(key) for key in COLUMNS},
                }
                for row in rows
            ],
        },
    )
    return with_steal(found, stolen_share)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_check", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="requests of a run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--cost", type=Path, help="a cost that was saved")
    parser.add_argument("--save-cost", type=Path)
    parser.add_argument("--calibrate-each", action="store_true")
    parser.add_argument("--only", help="a part of the names of configurations")
    parser.add_argument("--out", type=Path, help="a JSON file for all figures")
    options = parser.parse_args(words)
    for flag in ("cost", "save_cost"):
        if options.calibrate_each and getattr(options, flag) is not None:
            spelled = f"--{flag.replace('_', '-')}"
            parser.error(f"{spelled} is for one cost, and --calibrate-each measures several.")
    if options.cost is not None and options.backend != "auto":
        parser.error("--backend would not be used with --cost, which is that of one backend.")
    if options.out is not None and not options.out.absolute().parent.is_dir():
        parser.error(f"--out {options.out} lies in no folder that there is; make it first.")
    if not chosen(options.only):
        parser.error(f"--only {options.only} is in no name; the names are: {', '.join(CHANGES)}.")
    return options


def chosen(only: str | None) -> dict[str, dict[str, object]]:
    """The configurations whose names have this part; all without one."""
    return {name: changes for name, changes in CHANGES.items() if only is None or only in name}


def measured_rows(options: argparse.Namespace, calm: CalmParts) -> list[Row]:
    """Calibrate, then predict and measure each configuration."""
    # A prompt that an earlier load computed would be found in the cache.
    base = Settings(backend=options.backend, enable_prefix_caching=False)
    cost = read_cost(options.cost) if options.cost else None
    rows: list[Row] = []
    for name, changes in chosen(options.only).items():
        if cost is None or options.calibrate_each:
            started_at = time.monotonic()
            cost = calibrate(base, seed=options.seed, say=lambda text: None)
            print(f"calibrated in {time.monotonic() - started_at:.0f} s, error {cost.error:.3f}")
            if cost.stolen_share is not None:
                print(f"others took {cost.stolen_share:.1%} of the processors meanwhile")
        if options.save_cost:
            write_cost(cost, options.save_cost)
        # `auto` might take another backend for few slots, and the cost is that of one.
        changes = {**changes, "backend": cost.traits.name}
        settings = replace(base, **changes)  # type: ignore[arg-type]
        rows += check(settings, cost, name, options.count, options.seed, calm)
    return rows


def main() -> None:
    """Predict and measure everything."""
    options = parse(sys.argv[1:])
    calm = CalmParts(print)
    rows = measured_rows(options, calm)
    result = result_of(rows, options.count, calm.share)
    for note in result.notes:
        print(note)
    if options.out:
        content = document(result, options.seed)
        with written_to(options.out, "--out"):
            text = json.dumps(content, indent=1, allow_nan=False) + "\n"
            options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
