"""`jitney plan`: which settings and how many replicas a load needs. Main thread.

Progress goes to standard error; tables and the last line, which is JSON, to standard output.

Tests: tests/e2e/test_plan.py and tests/unit/plan.
"""

import math
from dataclasses import dataclass, replace

from jitney.bench.timing import read_goodput
from jitney.bench.workload import RandomLengths, Workload, mixed
from jitney.cli.failures import say
from jitney.cli.plan_output import Shown, check_output, finish, simulators, status
from jitney.cli.plan_verb import PEAK, TPOT_MS, TTFT_MS, PlanOptions
from jitney.cli.pull import fetch_model
from jitney.config import Resolved, Settings, resolve
from jitney.engine.clock import SystemClock
from jitney.errors import ConfigError
from jitney.loading.compose import scheduler_settings
from jitney.plan.calibrate import calibrate
from jitney.plan.day import HOUR_S, HOURS, DayCase, hours_of, simulate_day, sinusoid
from jitney.plan.pool import Pool
from jitney.plan.recommend import PlanQuestion, recommend
from jitney.plan.replica import REPLICAS_MAX, Configuration, refusal_of
from jitney.plan.results import day_result, recommended, replayed
from jitney.plan.search import ReplayCase, count_for, run_load, run_replay
from jitney.plan.tick_cost import Cost, read_cost, write_cost
from jitney.plan.traffic import Traffic, arriving, drawn_from, is_timed, rate_of, read_recording
from jitney.plan.what_if import WHOLE_MAX, Change, read_change

KINDS = 1000
"""Lengths are drawn from so many."""

LENGTH_MAX = 1_000_000
RATE_MIN = 1e-6
NEARLY = 0.9
"""A recording of this share of a day is a day."""

PRESENT = "present"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the command line says, read and checked before anything is measured."""

    options: PlanOptions
    resolved: Resolved
    seed: int
    limits: dict[str, float]
    changes: list[Change]
    recording: Workload | None
    traffic: Traffic
    has_hours: bool
    """Whether the hours of a day are those of the recording."""


def call(options: PlanOptions, resolved: Resolved) -> None:
    """Run the command."""
    asked = _read(options, resolved)
    cost = _cost(asked)
    with simulators() as pool:
        question = _question(asked, cost, pool)
        if asked.changes:
            shown = _what_if(asked, question, pool)
        elif options.day:
            shown = _day(asked, question, pool)
        else:
            shown = _recommended(question, pool)
    finish(shown, asked.seed, options.output)


def _read(options: PlanOptions, resolved: Resolved) -> _Asked:
    _check(options)
    limits = read_goodput(options.goodput or (f"ttft:{TTFT_MS}", f"tpot:{TPOT_MS}"))
    changes = [read_change(text) for text in options.what_if]
    seed = resolved.settings.seed or 0
    recording = None
    has_hours = False
    if options.trace is not None:
        recording = read_recording(options.trace, seed=seed, say=say)
        has_hours = is_timed(recording) and options.day_peak is None
        recording = _timed(options, recording)
    for change in changes:
        _changed(resolved, change)
    traffic = _traffic(options, recording, seed)
    check_output(options)
    return _Asked(options, resolved, seed, limits, changes, recording, traffic, has_hours)


def _timed(options: PlanOptions, recording: Workload) -> Workload:
    """The recording, with drawn arrivals if it has none. Raises ConfigError."""
    if is_timed(recording):
        return recording
    if options.request_rate is None:
        raise ConfigError(
            f"{options.trace} does not say when its requests arrive; give --request-rate, or a "
            "timestamp in milliseconds in every line."
        )
    return arriving(recording, options.request_rate, options.burstiness)


def _check(options: PlanOptions) -> None:
    """Refuse numbers that mean nothing. Raises ConfigError."""
    bounds = {
        "--request-rate": (options.request_rate, RATE_MIN, 1e6),
        "--input-len": (options.input_len, 0, LENGTH_MAX),
        "--output-len": (options.output_len, 0, LENGTH_MAX),
        "--burstiness": (options.burstiness, 0.0, 1e6),
        "--replicas": (options.replicas, 0, REPLICAS_MAX if options.day else WHOLE_MAX),
        "--share": (options.share, 0.0, 1.0),
    }
    for name, (value, low, high) in bounds.items():
        if value is not None and not low < value <= high:
            raise ConfigError(f"{name} is {value:g}; expected above {low:g}, up to {high:g}.")
    if not 0.0 <= options.range_ratio <= 1.0:
        raise ConfigError(f"--random-range-ratio is {options.range_ratio:g}; expected 0 to 1.")
    if options.day_peak is not None and not 1.0 <= options.day_peak <= 1.98:
        raise ConfigError(f"--day-peak is {options.day_peak:g}; expected 1 to 1.98.")
    if options.day and options.what_if:
        raise ConfigError("--day and --what-if do not go together; leave one out.")


def _traffic(options: PlanOptions, recording: Workload | None, seed: int) -> Traffic:
    if recording is not None:
        return drawn_from(recording, options.burstiness)
    if options.input_len is None and options.output_len is None:
        return Traffic("mixed", mixed(KINDS, seed=seed).jobs, options.burstiness)
    lengths = RandomLengths(
        input_len=options.input_len or 128,
        output_len=options.output_len or 64,
        range_ratio=options.range_ratio,
    )
    drawn = lengths.workload(KINDS, per_s=math.inf, burstiness=1.0, seed=seed)
    return Traffic("random", drawn.jobs, options.burstiness)


def _cost(asked: _Asked) -> Cost:
    """From a file, or measured."""
    options = asked.options
    if options.cost is not None:
        cost = read_cost(options.cost)
    else:
        fetch_model(asked.resolved.settings)
        say(
            "measuring what ticks cost here; this takes about a minute with a small model, and "
            "longer with a large one or with many slots"
        )
        with status() as tell:
            cost = calibrate(asked.resolved.settings, seed=asked.seed, say=tell)
    if options.save_cost is not None:
        write_cost(cost, options.save_cost)
    return cost


def _question(asked: _Asked, cost: Cost, pool: Pool) -> PlanQuestion:
    options, settings = asked.options, asked.resolved.settings
    traits = cost.traits.at(settings.max_num_seqs, settings.kv_tokens)
    question = PlanQuestion(
        cost=cost,
        traffic=asked.traffic,
        per_s=options.request_rate or 0.0,
        limits=asked.limits,
        share=options.share,
        settings=scheduler_settings(settings, traits),
        kv_tokens=settings.kv_tokens,
        seed=asked.seed,
    )
    reason = refusal_of(question.configuration(question.settings), asked.traffic.kinds)
    if reason is not None and not asked.changes:
        raise ConfigError(f"Every request of this load would be refused: {reason}")
    if asked.traffic.length_max > question.settings.model_len_max:
        say(
            f"Some requests have up to {asked.traffic.length_max:,} tokens, and max_model_len is "
            f"{question.settings.model_len_max:,}: those are cut short or refused."
        )
    if question.per_s:
        return question
    if asked.recording is not None:
        return replace(question, per_s=rate_of(asked.recording))
    load = question.load(question.settings, 0.0)
    # A replica that refuses everything bears nothing, and a what-if still needs a rate.
    return replace(question, per_s=pool.map(run_load, [load])[0].per_s or 1.0)


def _recommended(question: PlanQuestion, pool: Pool) -> Shown:
    found = recommend(question, pool)
    result = recommended(question, found)
    if not found.curve:
        return Shown(result)
    replicas = found.best.replicas or 0
    title = _title(question.cost, "1 replica" if replicas == 1 else f"{replicas:,} replicas")
    return Shown(result, lambda pictures: pictures.paint_plan(found, title, question.per_s))


def _title(cost: Cost, what: str) -> str:
    return f"{cost.model} with {cost.traits.name} on {cost.machine}, {what}"


def _what_if(asked: _Asked, question: PlanQuestion, pool: Pool) -> Shown:
    """The load under the present settings and under each change."""
    options = asked.options
    workload = asked.recording
    if workload is None:
        count = count_for(asked.traffic, options.replicas)
        workload = asked.traffic.workload(count, question.per_s, seed=asked.seed)
    elif options.request_rate is not None:
        workload = workload.scaled(options.request_rate / rate_of(workload))
    present = Change(PRESENT, {})
    cases = []
    for change in (present, *asked.changes):
        settings = _changed(asked.resolved, change)
        traits = question.cost.traits.at(settings.max_num_seqs, settings.kv_tokens)
        scheduling = scheduler_settings(settings, traits)
        configuration = Configuration(scheduling, traits, change.replicas or options.replicas)
        cases.append(
            ReplayCase(
                configuration=configuration,
                cost=question.cost,
                workload=workload,
                limits=asked.limits,
            )
        )
    found = pool.map(run_replay, cases)
    names = [PRESENT, *(change.text for change in asked.changes)]
    rows = [
        (name, case.configuration.replicas, figures)
        for name, case, figures in zip(names, cases, found, strict=True)
    ]
    title = _title(question.cost, f"{workload.name}: {len(workload.jobs):,} requests")
    return Shown(
        replayed(question.cost, workload.name, asked.limits, rows),
        lambda pictures: pictures.paint_what_if(rows, title),
    )


def _day(asked: _Asked, question: PlanQuestion, pool: Pool) -> Shown:
    options = asked.options
    hours = sinusoid(options.day_peak or PEAK)
    if asked.recording is not None and asked.has_hours:
        hours = hours_of(asked.recording)
        span_s = asked.recording.jobs[-1].at_s
        if span_s < NEARLY * HOURS * HOUR_S:
            say(
                f"The recording has {_span(span_s)} of traffic: each hour of the day gets the rate "
                "of one of 24 equal parts of it."
            )
    clock = SystemClock()
    started_at = clock.now()
    case = DayCase(
        configuration=question.configuration(question.settings, options.replicas),
        cost=question.cost,
        traffic=asked.traffic,
        per_s=question.per_s,
        hours=hours,
        limits=asked.limits,
        seed=asked.seed,
    )
    found = simulate_day(case, pool)
    title = _title(question.cost, f"a day on {options.replicas:,} replicas")
    return Shown(
        day_result(question, options.replicas, found, clock.now() - started_at),
        lambda pictures: pictures.paint_day(found, title),
    )


def _span(seconds: float) -> str:
    for unit, size in (("hours", HOUR_S), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.3g} seconds"


def _changed(resolved: Resolved, change: Change) -> Settings:
    """The settings with a change. Raises ConfigError."""
    given = {name: "none" if value is None else value for name, value in resolved.given().items()}
    return resolve({**given, **change.words}, None, {}, given_as="argument").settings
