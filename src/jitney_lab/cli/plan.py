"""`jitney plan`: which settings and how many replicas a load needs. Main thread.

Progress goes to standard error; tables and the last line, which is JSON, to standard output.

Tests: tests/e2e/test_plan.py and tests/unit/lab/plan.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jitney.cli.failures import say
from jitney.cli.pull import fetch_model
from jitney.config import Resolved, Settings, for_serving, resolve
from jitney.engine.clock import SystemClock
from jitney.errors import ConfigError
from jitney.loading import select_backend_if_known
from jitney.loading.compose import scheduler_settings
from jitney.loading.model_source import located
from jitney_lab.bench.report import setup_of
from jitney_lab.bench.timing import read_goodput
from jitney_lab.bench.workload import RandomLengths, Workload, mixed
from jitney_lab.cli.plan_checks import SIMULATED, check_numbers, check_used, unused_settings
from jitney_lab.cli.plan_output import Shown, check_output, finish, simulators, status
from jitney_lab.cli.plan_verb import BURSTINESS, PEAK, SHARE, TPOT_MS, TTFT_MS, PlanOptions
from jitney_lab.plan.calibrate import calibrate
from jitney_lab.plan.day import HOUR_S, HOURS, DayCase, hours_of, simulate_day, sinusoid
from jitney_lab.plan.planned_load import (
    PlannedLoad,
    bearable,
    chosen_rate,
    recorded_of,
    span_text,
    stated,
)
from jitney_lab.plan.pool import Pool
from jitney_lab.plan.recommend import PlanQuestion, recommend
from jitney_lab.plan.replica import Configuration, refusal_of, replicas_text
from jitney_lab.plan.results import day_result, recommended, replayed, scheduler_shown
from jitney_lab.plan.search import (
    HIGHEST,
    ReplayCase,
    count_for,
    run_load,
    run_replay,
)
from jitney_lab.plan.tick_cost import Cost, read_cost, write_cost
from jitney_lab.plan.traffic import (
    Traffic,
    arriving,
    drawn_from,
    is_timed,
    rate_of,
    read_recording,
    why_untimed,
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
class _Asked:
    """What the command line says, read and checked before anything is measured."""

    options: PlanOptions
    resolved: Resolved
    seed: int
    limits: dict[str, float]
    changes: list[Change]
    recording: Workload | None
    is_timed: bool
    """Whether the recording says when its requests arrive."""
    traffic: Traffic

    @property
    def has_hours(self) -> bool:
        """Whether the hours of a day are those of the recording."""
        return self.is_timed and self.options.day_peak is None

    @property
    def replicas(self) -> int:
        """Of a day and of a what-if."""
        return self.options.replicas or 1


def call(options: PlanOptions, resolved: Resolved) -> None:
    """Run the command."""
    asked = _read(options, resolved)
    cost = _cost(asked)
    with simulators() as pool:
        question = _question(asked, cost)
        load = _load(asked, question, pool)
        question = replace(question, per_s=load.per_s)
        if asked.changes:
            shown = _what_if(asked, question, pool)
        elif options.day:
            shown = _day(asked, question, pool)
        else:
            shown = _recommended(question, pool)
    shown = replace(shown, result=stated(shown.result, load, shown.policies))
    finish(shown, asked.seed, options.output, _setup(asked, question))


def _read(options: PlanOptions, resolved: Resolved) -> _Asked:
    check_numbers(options)
    check_used(options)
    unused = unused_settings(options, resolved)
    if unused is not None:
        say(unused)
    limits = read_goodput(options.goodput or (f"ttft:{TTFT_MS}", f"tpot:{TPOT_MS}"))
    changes = [read_change(text) for text in options.what_if]
    seed = resolved.settings.seed or 0
    recording, has_times = None, False
    if options.trace is not None:
        recording = read_recording(options.trace, seed=seed, say=say)
        has_times = is_timed(recording)
        check_used(options, is_timed=has_times)
        recording = _timed(options, recording)
    for change in changes:
        _changed(resolved, change)
    traffic = _traffic(options, recording, seed)
    check_output(options)
    return _Asked(options, resolved, seed, limits, changes, recording, has_times, traffic)


def _timed(options: PlanOptions, recording: Workload) -> Workload:
    """The recording, with drawn arrivals if it has none. Raises ConfigError."""
    if is_timed(recording):
        return recording
    if options.request_rate is None:
        assert options.trace is not None, "a recording is that of a trace"
        raise ConfigError(
            f"{why_untimed(options.trace, recording)}; give --request-rate, or timestamps in "
            "milliseconds that differ."
        )
    return arriving(recording, options.request_rate, options.burstiness or BURSTINESS)


def _traffic(options: PlanOptions, recording: Workload | None, seed: int) -> Traffic:
    burstiness = options.burstiness or BURSTINESS
    if recording is not None:
        return drawn_from(recording, burstiness)
    if options.input_len is None and options.output_len is None:
        return Traffic("mixed", mixed(KINDS, seed=seed).jobs, burstiness)
    lengths = RandomLengths(
        input_len=options.input_len or INPUT_LEN,
        output_len=options.output_len or OUTPUT_LEN,
        range_ratio=options.range_ratio or 0.0,
    )
    drawn = lengths.workload(KINDS, per_s=math.inf, burstiness=1.0, seed=seed)
    return Traffic("random", drawn.jobs, burstiness)


def _cost(asked: _Asked) -> Cost:
    """From a file, or measured."""
    options = asked.options
    # What is planned for is a server.
    settings = for_serving(asked.resolved)
    if options.cost is not None:
        cost = read_cost(options.cost)
    else:
        fetch_model(settings)
        # A file that is no model is told before the work is announced.
        select_backend_if_known(located(settings))
        say(
            "measuring what ticks cost here; this takes about a minute with a small model, and "
            "longer with a large one or with many slots"
        )
        with status() as tell:
            cost = calibrate(settings, seed=asked.seed, say=tell)
    if options.save_cost is not None:
        write_cost(cost, options.save_cost)
    return cost


def _question(asked: _Asked, cost: Cost) -> PlanQuestion:
    """Without its rate."""
    options, settings = asked.options, asked.resolved.settings
    traits = cost.traits.at(settings.max_num_seqs, settings.kv_tokens, settings.max_model_len)
    question = PlanQuestion(
        cost=cost,
        traffic=asked.traffic,
        per_s=0.0,
        limits=asked.limits,
        share=options.share or SHARE,
        settings=scheduler_settings(settings, traits),
        kv_tokens=settings.kv_tokens,
        seed=asked.seed,
        backend=settings.backend,
    )
    reason = refusal_of(question.configuration(question.settings), asked.traffic.kinds)
    if reason is not None and not asked.changes:
        raise ConfigError(f"Every request of this load would be refused: {reason}")
    if asked.traffic.length_max > question.settings.model_len_max:
        say(
            f"Some requests have up to {asked.traffic.length_max:,} tokens, and max_model_len is "
            f"{question.settings.model_len_max:,}: those are cut short or refused."
        )
    return question


def _load(asked: _Asked, question: PlanQuestion, pool: Pool) -> PlannedLoad:
    """What is planned for: the given rate, that of the trace, or what one replica bears."""
    options = asked.options
    recorded = None
    if asked.recording is not None and asked.is_timed:
        recorded = recorded_of(asked.recording)
    replays = options.day or bool(asked.changes)
    per_s, rate_from = chosen_rate(options.request_rate, recorded, replays=replays) or bearable(
        question, pool
    )
    names = ("input_len", "output_len", "range_ratio")
    given: dict[str, object] = {name: getattr(options, name) for name in names}
    given["trace"] = None if options.trace is None else options.trace.name
    return PlannedLoad(
        traffic=asked.traffic, per_s=per_s, rate_from=rate_from, recorded=recorded, asked=given
    )


def _setup(asked: _Asked, question: PlanQuestion) -> dict[str, object]:
    """What the result was found with, beside the load and the cost."""
    found = setup_of(asked.resolved)
    given = found["settings"]
    assert isinstance(given, dict), given
    if asked.options.cost is not None:
        # Those of the measurement are not known.
        del found["threads"]
        given = {name: value for name, value in given.items() if name in SIMULATED}
    return {
        **found,
        "model": question.cost.model,
        "backend": question.cost.traits.name,
        "settings": given,
        "scheduler": scheduler_shown(question.settings),
    }


def _recommended(question: PlanQuestion, pool: Pool) -> Shown:
    found = recommend(question, pool)
    result = recommended(question, found)
    policies = (found.present.settings.policy, found.best.settings.policy)
    if not found.curve:
        return Shown(result, policies)
    replicas = found.best.replicas or 0
    title = _title(question.cost, replicas_text(replicas))
    return Shown(
        result, policies, lambda pictures: pictures.paint_plan(found, title, question.per_s)
    )


def _title(cost: Cost, what: str) -> str:
    return f"{cost.model} with {cost.traits.name} on {cost.machine}, {what}"


def _what_if(asked: _Asked, question: PlanQuestion, pool: Pool) -> Shown:
    """The load under the present settings and under each change."""
    options = asked.options
    workload = asked.recording
    if workload is None:
        count = count_for(asked.traffic, asked.replicas)
        workload = asked.traffic.workload(count, question.per_s, seed=asked.seed)
    elif options.request_rate is not None and asked.is_timed:
        workload = workload.scaled(options.request_rate / rate_of(workload))
    present = Change(PRESENT, {})
    cases = []
    for change in (present, *asked.changes):
        settings = _changed(asked.resolved, change)
        with named(change):
            traits = question.cost.traits.at(
                settings.max_num_seqs, settings.kv_tokens, settings.max_model_len
            )
            scheduling = scheduler_settings(settings, traits)
        configuration = Configuration(scheduling, traits, change.replicas or asked.replicas)
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
    overloaded = None
    if not asked.is_timed:
        overloaded = [names[each] for each in _overloaded(question, cases, pool)]
    rows = [
        (name, case.configuration.replicas, figures)
        for name, case, figures in zip(names, cases, found, strict=True)
    ]
    title = _title(question.cost, f"{workload.name}: {len(workload.jobs):,} requests")
    return Shown(
        replayed(question.cost, workload.name, asked.limits, rows, overloaded),
        tuple(case.configuration.settings.policy for case in cases),
        lambda pictures: pictures.paint_what_if(rows, title),
    )


def _overloaded(question: PlanQuestion, cases: Sequence[ReplayCase], pool: Pool) -> list[int]:
    """The cases with replicas that bear less than what arrives; a short run may not show it.

    Where a trace says when its requests arrive, it is replayed to its end, and needs no such rate.
    """
    loads = [
        replace(
            question.load(case.configuration.settings, 0.0),
            configuration=replace(case.configuration, replicas=1),
            limits={},
        )
        for case in cases
    ]
    places = []
    for place, most in enumerate(pool.map(run_load, loads)):
        # Those that are refused arrive too. Where all are, nothing is overloaded.
        answered = (most.count - most.failed) / max(1, most.count)
        bears_per_s = HIGHEST * cases[place].configuration.replicas * most.per_s
        if 0 < bears_per_s < answered * question.per_s:
            places.append(place)
    return places


def _day(asked: _Asked, question: PlanQuestion, pool: Pool) -> Shown:
    options = asked.options
    hours = sinusoid(options.day_peak or PEAK)
    if asked.recording is not None and asked.has_hours:
        hours = hours_of(asked.recording)
        span_s = asked.recording.jobs[-1].at_s
        if span_s < NEARLY * HOURS * HOUR_S:
            say(
                f"The recording has {span_text(span_s)} of traffic: each hour of the day gets the "
                "rate of one of 24 equal parts of it."
            )
    clock = SystemClock()
    started_at = clock.now()
    case = DayCase(
        configuration=question.configuration(question.settings, asked.replicas),
        cost=question.cost,
        traffic=asked.traffic,
        per_s=question.per_s,
        hours=hours,
        limits=asked.limits,
        seed=asked.seed,
    )
    found = simulate_day(case, pool)
    title = _title(question.cost, f"a day on {replicas_text(asked.replicas)}")
    return Shown(
        day_result(question, asked.replicas, found, clock.now() - started_at),
        (question.settings.policy,),
        lambda pictures: pictures.paint_day(found, title),
    )


def _changed(resolved: Resolved, change: Change) -> Settings:
    """The settings with a change. Raises ConfigError."""
    given = {name: "none" if value is None else value for name, value in resolved.given().items()}
    with named(change):
        return resolve({**given, **change.words}, None, {}, given_as="argument").settings
