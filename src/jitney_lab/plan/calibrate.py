"""Measures what ticks cost on this machine, with the user's model and settings.

It takes about a minute with a small model. Every run has a fixed number of ticks, so that it takes
longer with a larger model, and with more slots; only what is good for accuracy alone has a limit of
time.

Clients ask an engine, so that its ticks have chosen shapes: generating sequences at several
numbers, in neighbouring and in scattered slots, with short and long contexts, prompts of several
lengths alone, and prompts beside generating sequences. A second engine computes prompts in pieces,
which separates the time of a piece from that of a first token. Every tick is used for the fit. The
backend has a process of its own if the settings say so: what the pipe costs is measured too.

Tests: tests/e2e/test_plan.py.
"""

from dataclasses import replace
from datetime import UTC, datetime

from jitney.config import Settings
from jitney.core.backend import Traits
from jitney.core.scheduler_settings import Mix, Policy
from jitney.engine.clock import SystemClock
from jitney.errors import ConfigError, SetupError
from jitney.loading.compose import name_of
from jitney_lab.bench.in_process import JOINING, EngineTarget, engine_target, for_bench
from jitney_lab.bench.report import machine
from jitney_lab.bench.steal import StealWatch
from jitney_lab.bench.workload import Say, Workload, make_workload, mixed
from jitney_lab.plan.fitting import DECODE_KNOTS, MeasuredTick, fit_cost, measured
from jitney_lab.plan.tick_cost import Cost, traits_of

SIZE_TICKS = 5
STAIRS = 8
SLOTS_LEAST = 32
"""Sequences are measured up to here, or up to the user's number if that is larger."""

SHORT, LONG = 8, 400
"""Prompts of the two contexts in which sequences generate."""

SCATTERED = 32
SCATTERED_SHORT, SCATTERED_LONG = 3, 12
"""So many sequences begin together. Most end soon, and the others go on in slots that are apart."""

LONG_SIZE = 4
"""How many sequences generate with the long context."""

SPANS = (16, 64, 256, 512, 32, 128, 1024)
"""Prompts alone, the most telling first."""

BESIDE_SPANS = (16, 16, 32, 64, 128, 256)
"""Prompts beside generating sequences; the first joins before those generate."""

BESIDE = (3, 15)
"""Generating sequences beside which prompts are measured."""

PIECE = 32
PIECES_COUNT, PIECES_CLIENTS = 40, 16
"""Tokens of a piece of a prompt, and the mixed requests that are computed with such pieces."""

LIMIT_S = 45.0
"""After so long, what is only good for accuracy is left out."""

OPTIONAL = ("more prompts alone", "mixed lengths")


def calibrate(settings: Settings, *, seed: int, say: Say) -> Cost:
    """Measure and fit. Raises a SetupError."""
    slots = max(SLOTS_LEAST, settings.max_num_seqs)
    changed = measuring_settings(settings, slots)
    ticks: list[MeasuredTick] = []
    watch = StealWatch()
    say("measuring prompts in pieces")
    with engine_target(replace(changed, prefill_chunk=PIECE)) as target:
        clients = min(PIECES_CLIENTS, slots)
        pieces = mixed(PIECES_COUNT, seed=seed + 6000, clients=clients)
        ticks += _ticks(target, _shortened(pieces, _length_max(target.traits)))
    with engine_target(changed) as target:
        traits = target.traits
        budget = changed.max_num_batched_tokens
        loads = workloads(slots, budget, _length_max(traits), seed=seed)
        clock = SystemClock()
        ends_at = clock.now() + LIMIT_S
        for load in loads:
            if clock.now() > ends_at and load.name in OPTIONAL:
                continue
            say(f"measuring {load.name}")
            ticks += _ticks(target, load)
    stolen_share = watch.share()
    here = machine()
    return fit_cost(
        ticks,
        model=name_of(settings),
        machine=f"{here['processor']}, {here['cores']} cores",
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        traits=traits_of(traits, slots),
        backend_process=settings.backend_process,
        stolen_share=stolen_share,
    )


def measuring_settings(settings: Settings, slots: int) -> Settings:
    """Settings under which every batch has the shape that is to be measured."""
    if not isinstance(settings.policy, Policy):
        raise ConfigError("jitney plan knows the policies fifo, priority, sjf and fair only.")
    budget = max(settings.max_num_batched_tokens, slots)
    shapes: dict[str, object] = {
        "max_num_seqs": slots,
        "max_num_batched_tokens": budget,
        "prefill_chunk": budget,
        "mix": Mix.DECODE_FIRST,
        "policy": Policy.FIFO,
        # Long prompts are measured too, and the memory is that of the user's server.
        "max_model_len": settings.max_model_len,
    }
    return for_bench(settings, **(JOINING | shapes))


def _ticks(target: EngineTarget, load: Workload) -> list[MeasuredTick]:
    """The ticks of a load. Raises SetupError if a request failed: the shapes are then others."""
    run = target.run(load)
    if run.failures:
        raise SetupError(
            f"{len(run.failures):,} of {len(run.requests):,} requests failed while measuring "
            f"{load.name}, so that nothing can be planned: {run.failures[0].rstrip('.')}."
        )
    return measured(run.ticks)


def _length_max(traits: Traits) -> int:
    """The longest sequence that is measured: two of them fit into memory."""
    return min(traits.model_len_max, traits.kv_tokens // 2)


def workloads(slots: int, budget: int, length_max: int, *, seed: int) -> list[Workload]:
    """What is measured, the most important first; sequences stay within `length_max` tokens."""
    loads: list[Workload] = []

    def add(name: str, place: int, pairs: list[tuple[int, int]], clients: int) -> None:
        loads.append(make_workload(name, seed + place, pairs, clients=clients))

    spans = [span for span in SPANS if span <= budget and span < length_max]
    alone = [(span, 1) for span in spans]
    add("prompts alone", 0, alone[:4], 1)
    for place, pairs in enumerate(staircases(slots)):
        add(f"up to {len(pairs)} at once", 1000 + place, pairs, len(pairs))
    for size in (size for size in BESIDE if size < slots):
        # One client more asks for the prompts, one after the other, while the others generate.
        prompts = [
            (span, 1) for span in BESIDE_SPANS if span + size <= budget and span < length_max
        ]
        pairs = [(SHORT, 2 * len(prompts) + 2)] * size + prompts
        add(f"prompts beside {size}", 2000 + size, pairs, size + 1)
    for lasting in (1, 2, 3):
        pairs = _scattered(slots, lasting)
        add(f"{lasting} of 5 slots", 5000 + lasting, pairs, len(pairs))
    size = min(LONG_SIZE, slots)
    add("long contexts", 3000, [(min(LONG, length_max // 4), 2 * SIZE_TICKS)] * size, size)
    lengths = _shortened(mixed(2 * slots, seed=seed, clients=slots), length_max)
    loads.append(replace(lengths, name="mixed lengths"))
    add("more prompts alone", 4000, alone, 1)
    return loads


def staircases(slots: int) -> list[list[tuple[int, int]]]:
    """Lengths of sequences that begin together and end one after the other, so that every number
    of them generates for a few ticks. Several, so that no number has long contexts only."""
    sizes = [size for size in DECODE_KNOTS if size <= slots]
    found = []
    for first in range(0, len(sizes), STAIRS):
        pairs: list[tuple[int, int]] = []
        stairs = sizes[first : first + STAIRS]
        for place, size in enumerate(stairs):
            ticks = SIZE_TICKS * (len(stairs) - place) + 1
            pairs += [(SHORT, ticks)] * (size - len(pairs))
        found.append(pairs)
    return found


def _shortened(load: Workload, length_max: int) -> Workload:
    """The load with prompts that a small model takes."""
    longest = max(1, length_max // 2)
    jobs = [replace(job, prompt_count=min(job.prompt_count, longest)) for job in load.jobs]
    return replace(load, jobs=tuple(jobs))


def _scattered(slots: int, lasting: int) -> list[tuple[int, int]]:
    """Lengths with which, of every 5 slots, the first `lasting` go on after the others have ended.

    With 1 or 2 of them, the gap is wider than what any backend fills.
    """
    return [
        (SHORT, SCATTERED_LONG if slot % 5 < lasting else SCATTERED_SHORT)
        for slot in range(min(slots, SCATTERED))
    ]
