"""`jitney plan`: which settings and how many replicas a load needs. Main thread.

Progress goes to standard error; tables and the last line, which is JSON, to standard output.

Tests: tests/e2e/test_plan.py and tests/unit/lab/plan.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from jitney.cli.failures import say
from jitney.cli.pull import fetch_model
from jitney.config import Resolved, Settings, for_serving, resolve
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.clock import SystemClock
from jitney.errors import ConfigError
from jitney.loading import select_backend_if_known
from jitney.loading.compose import scheduler_settings
from jitney.loading.model_source import located
from jitney_lab.bench.report import Result, setup_of
from jitney_lab.bench.timing import read_goodput
from jitney_lab.bench.workload import Workload, mixed, random_lengths
from jitney_lab.cli.bench_result import finish, seed_of
from jitney_lab.cli.plan_checks import SIMULATED, check_numbers, check_unused_settings, check_used
from jitney_lab.cli.plan_output import check_output, simulators
from jitney_lab.cli.plan_verb import BURSTINESS, PEAK, SHARE, TPOT_MS, TTFT_MS, PlanOptions
from jitney_lab.plan import results, search
from jitney_lab.plan.calibrate import calibrate
from jitney_lab.plan.day import HOUR_S, HOURS, hours_of, simulate_day, sinusoid
from jitney_lab.plan.planned_load import CAPACITY, IDLE, PlannedLoad, chosen_rate, span_text
from jitney_lab.plan.pool import Pool
from jitney_lab.plan.recommend import Search, recommend
from jitney_lab.plan.replica import refusal_of
from jitney_lab.plan.tick_cost import Cost, read_cost, write_cost
from jitney_lab.plan.traffic import (
    TraceRates,
    Traffic,
    arriving,
    drawn_from,
    rates_of,
    read_recording,
)
from jitney_lab.plan.what_if import Change, named, read_change

KINDS = 1000
"""Lengths are drawn from so many."""

INPUT_LEN, OUTPUT_LEN = 128, 64
"""Where only the other one is given."""

NEARLY = 0.9
"""A recording of this share of a day is a day."""

PRESENT = "present"


@dataclass(frozen=True, slots=True)
class _PlanCommand:
    """The command line, read and checked before anything is measured."""

    options: PlanOptions
    resolved: Resolved
    seed: int
    limits: dict[str, float]
    changes: list[Change]
    recording: Workload | None
    recorded: TraceRates | None
    """None without a recording that says when its requests arrive."""
    traffic: Traffic

    @property
    def replicas(self) -> int:
        """Of a day and of a what-if."""
        return self.options.replicas or 1


def call(options: PlanOptions, resolved: Resolved) -> None:
    """Run the command."""
    command = _read(options, resolved)
    cost = _cost(command)
    with simulators() as pool:
        question = _question(command, cost)
        load = _load(command, question, pool)
        question = replace(question, per_s=load.per_s)
        if command.changes:
            found = _what_if(command, question, pool)
        elif options.day:
            found = _day(command, question, pool)
        else:
            found = results.plan_result(question, recommend(question, pool))
    result = results.result_of(found, question, load)
    setup = _setup(command, question)
    finish(result, command.seed, options.output, setup, plots="jitney_lab.plan.pictures")


def _read(options: PlanOptions, resolved: Resolved) -> _PlanCommand:
    check_numbers(options)
    check_used(options)
    check_unused_settings(options, resolved)
    limits = read_goodput(options.goodput or (f"ttft:{TTFT_MS}", f"tpot:{TPOT_MS}"))
    changes = [read_change(text) for text in options.what_if]
    seed = seed_of(resolved)
    recording = recorded = None
    if options.trace is not None:
        recording = read_recording(options.trace, seed=seed, say=say)
        recorded = rates_of(recording)
        check_used(options, is_timed=recorded is not None)
        if recorded is None:
            recording = _timed(options, options.trace, recording)
    for change in changes:
        _changed(resolved, change)
    traffic = _traffic(options, recording, seed)
    check_output(options)
    return _PlanCommand(options, resolved, seed, limits, changes, recording, recorded, traffic)


def _timed(options: PlanOptions, path: Path, recording: Workload) -> Workload:
    """A recording without times, with drawn arrivals. Raises ConfigError without a rate."""
    if options.request_rate is None:
        raise ConfigError(
            f"{path} does not say that its requests arrive at different times, and so it has no "
            "rate; give --request-rate, or timestamps in milliseconds that differ."
        )
    return arriving(recording, options.request_rate, options.burstiness or BURSTINESS)


def _traffic(options: PlanOptions, recording: Workload | None, seed: int) -> Traffic:
    if recording is None and options.input_len is None and options.output_len is None:
        recording = mixed(KINDS, seed=seed)
    elif recording is None:
        input_len, output_len = options.input_len or INPUT_LEN, options.output_len or OUTPUT_LEN
        spread = options.range_ratio or 0.0
        recording = random_lengths(KINDS, input_len, output_len, range_ratio=spread, seed=seed)
    return drawn_from(recording, options.burstiness or BURSTINESS)


def _cost(command: _PlanCommand) -> Cost:
    """From a file, or measured."""
    options = command.options
    # What is planned for is a server.
    settings = for_serving(command.resolved)
    if options.cost is not None:
        return read_cost(options.cost)
    fetch_model(settings)
    # A file that is no model is refused before the work is announced.
    select_backend_if_known(located(settings))
    say(
        "measuring what ticks cost here; this takes about a minute with a small model, and "
        "longer with a large one or with many slots"
    )
    # Elsewhere than on a terminal the line is not shown.
    with Console(stderr=True).status("loading the model") as line:
        cost = calibrate(settings, seed=command.seed, say=line.update)
    if options.save_cost is not None:
        write_cost(cost, options.save_cost)
    return cost


def _question(command: _PlanCommand, cost: Cost) -> search.PlanQuestion:
    """Without its rate."""
    settings, traffic = command.resolved.settings, command.traffic
    question = search.PlanQuestion(
        cost=cost,
        traffic=traffic,
        per_s=0.0,
        limits=command.limits,
        share=command.options.share or SHARE,
        settings=_scheduling(cost, settings),
        kv_tokens=settings.kv_tokens,
        seed=command.seed,
        backend=settings.backend,
    )
    reason = refusal_of(question.configuration(question.settings), traffic.kinds)
    if reason is not None and not command.changes:
        raise ConfigError(f"Every request of this load would be refused: {reason}")
    if traffic.length_max > question.settings.model_len_max:
        say(
            f"Some requests have up to {traffic.length_max:,} tokens, and max_model_len is "
            f"{question.settings.model_len_max:,}: those are cut short or refused."
        )
    return question


def _scheduling(cost: Cost, settings: Settings) -> SchedulerSettings:
    """The settings of the scheduler with the backend of a cost. Raises ConfigError."""
    slots, kv_tokens = settings.max_num_seqs, settings.kv_tokens
    return scheduler_settings(settings, cost.traits.at(slots, kv_tokens, settings.max_model_len))


def _load(command: _PlanCommand, question: search.PlanQuestion, pool: Pool) -> PlannedLoad:
    """What is planned for: the given rate, that of the trace, or what one replica sustains."""
    options = command.options
    replays = options.day or bool(command.changes)
    chosen = chosen_rate(options.request_rate, command.recorded, replays=replays)
    if chosen is None:
        found = Search(question, pool).sustained(question.settings)
        # A replica that refuses everything sustains nothing, and a what-if still needs a rate.
        idle_per_s = search.LOWEST * found.most_per_s or 1.0
        chosen = (found.per_s, CAPACITY) if found.per_s else (idle_per_s, IDLE)
    names = ("input_len", "output_len", "range_ratio")
    values: dict[str, object] = {name: getattr(options, name) for name in names}
    values["trace"] = None if options.trace is None else options.trace.name
    return PlannedLoad(command.traffic, *chosen, command.recorded, values)


def _setup(command: _PlanCommand, question: search.PlanQuestion) -> dict[str, object]:
    """What the result was found with, beside the load and the cost."""
    found = setup_of(command.resolved)
    values = found["settings"]
    assert isinstance(values, dict), values
    if command.options.cost is not None:
        # Those of the measurement are not known.
        del found["threads"]
        values = {name: value for name, value in values.items() if name in SIMULATED}
    return {
        **found,
        "model": question.cost.model,
        "backend": question.cost.traits.name,
        "settings": values,
        "scheduler": question.settings,
    }


def _what_if(command: _PlanCommand, question: search.PlanQuestion, pool: Pool) -> Result:
    """The load under the present settings and under each change."""
    rate, workload = command.options.request_rate, command.recording
    if workload is None:
        count = search.count_for(command.traffic, command.replicas)
        workload = command.traffic.workload(count, question.per_s, seed=command.seed)
    elif rate is not None and command.recorded is not None:
        workload = workload.scaled(rate / command.recorded.mean_per_s)
    changes, cases = (Change(PRESENT, {}), *command.changes), []
    for change in changes:
        settings = _changed(command.resolved, change)
        with named(change):
            scheduling = _scheduling(question.cost, settings)
        other = replace(question, settings=scheduling, kv_tokens=settings.kv_tokens)
        replicas = change.replicas or command.replicas
        cases.append(search.LoadCase(question=other, settings=scheduling, replicas=replicas))
    found = pool.map(partial(search.run_replay, workload), cases)
    most: list[float] | list[None] = [None] * len(cases)
    if command.recorded is None:
        # A trace that says when its requests arrive is replayed to its end, and needs no such rate.
        most = pool.map(search.sustained_per_s, cases)
    rows = []
    for change, case, figures, per_s in zip(changes, cases, found, most, strict=True):
        is_overloaded = None if per_s is None else question.per_s > per_s
        rows.append(results.Replay(change.text, case.replicas, figures, is_overloaded))
    return results.what_if_result(question, rows, [case.settings.policy for case in cases])


def _day(command: _PlanCommand, question: search.PlanQuestion, pool: Pool) -> Result:
    peak, recorded = command.options.day_peak, command.recorded
    hours = sinusoid(peak or PEAK)
    if command.recording is not None and recorded is not None and peak is None:
        hours = hours_of(command.recording)
        if recorded.span_s < NEARLY * HOURS * HOUR_S:
            say(
                f"The recording has {span_text(recorded.span_s)} of traffic: each hour of the day "
                "gets the rate of one of 24 equal parts of it."
            )
    clock = SystemClock()
    started_at = clock.now()
    case = search.LoadCase(question=question, settings=question.settings, replicas=command.replicas)
    found = simulate_day(case, hours, pool)
    return results.day_result(question, command.replicas, found, clock.now() - started_at)


def _changed(resolved: Resolved, change: Change) -> Settings:
    """The settings with a change. Raises ConfigError."""
    values = {name: "none" if value is None else value for name, value in resolved.given().items()}
    with named(change):
        return resolve({**values, **change.words}, None, {}, given_as="argument").settings
