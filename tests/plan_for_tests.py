"""A cost in round numbers, and ticks, for the tests of `jitney_lab.plan`."""

from dataclasses import replace

import msgspec

from jitney.core.request import RequestId
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.records import Member, TickRecord
from jitney_lab.bench.workload import Job, Workload
from jitney_lab.plan.replica import Configuration
from jitney_lab.plan.search import PlanQuestion
from jitney_lab.plan.tick_cost import BackendTraits, Cost
from jitney_lab.plan.traffic import Traffic
from tests.members_for_tests import in_columns

TRAITS = BackendTraits(
    name="made",
    slots=4,
    slots_max=8,
    kv_tokens=4096,
    model_len_max=1024,
    block_tokens=1,
    can_save=True,
    kv_bytes_per_token=1,
    batch_invariant=True,
    decodes_differ=False,
)


def make_cost(
    decodes: tuple[tuple[int, float], ...] = ((1, 0.01), (32, 0.01)),
    spans: tuple[tuple[int, float], ...] = ((1, 0.001), (1000, 1.0)),
    **terms: object,
) -> Cost:
    """Decodes take 10 ms and a token of a prompt 1 ms, unless others are given; nothing else."""
    cost = Cost(
        model="made",
        machine="none",
        measured_at="never",
        traits=TRAITS,
        decodes=decodes,
        spans_alone=spans,
        spans_beside=spans,
        prompt_s=0.0,
        first_s=0.0,
        contexts=((0, 0.0),),
        prompt_context_s=0.0,
        host_s=0.0,
        host_sequence_s=0.0,
        error=0.0,
        tick_count=1,
    )
    return msgspec.structs.replace(cost, **terms)


def make_configuration(replicas: int = 1, **settings: object) -> Configuration:
    """Four slots unless others are given."""
    values = {"model_len_max": 1024, "max_num_seqs": 4} | settings
    made = SchedulerSettings(**values)  # type: ignore[arg-type]
    return Configuration(made, TRAITS.at(made.max_num_seqs, None), replicas)


def tick(
    at: float, tick_ms: float, *members: Member, active: int = 1, ended: int = 0
) -> TickRecord:
    """A tick with these members, and with so many more that ended while its pass ran."""
    return TickRecord(
        at=at,
        number=1,
        batch_size=len(members) + ended,
        decode_tokens=0,
        prefill_tokens=0,
        active_slots=active,
        queue_depth=0,
        kv_used=0,
        kv_cached=0,
        sampled_tokens=0,
        preempted_count=0,
        forward_ms=tick_ms,
        decode_ms=0.0,
        tick_ms=tick_ms,
        members=in_columns(*members),
    )


def member(start: int, length: int, *, samples: bool) -> Member:
    return Member(RequestId("a"), 0, 0, start, length, samples)


def jobs(*lengths: tuple[int, int]) -> tuple[Job, ...]:
    """Requests with these lengths of prompt and answer."""
    return tuple(
        Job(number=number, prompt_count=prompt, completion_count=completion)
        for number, (prompt, completion) in enumerate(lengths)
    )


def at_times(*times: float) -> Workload:
    """Requests that arrive at these times."""
    arriving = zip(jobs(*[(3, 2)] * len(times)), times, strict=True)
    return Workload(name="made", seed=0, jobs=tuple(replace(job, at_s=at) for job, at in arriving))


COST = make_cost(
    decodes=((1, 0.01), (4, 0.017), (8, 0.2)), spans=((1, 0.001), (100, 0.1)), host_s=0.001
)
LENGTHS = Traffic("made", jobs((20, 8), (40, 12)))
QUESTION = PlanQuestion(
    cost=COST,
    traffic=LENGTHS,
    per_s=40.0,
    limits={"ttft": 500.0, "tpot": 60.0},
    share=0.95,
    settings=make_configuration().settings,
    kv_tokens=None,
    seed=1,
    backend="auto",
    count=60,
)
