"""What the engine is worth: `python -m benchmarks [SECTION ...]`.

Generating reads every weight once per forward pass, whoever is in the batch; prompts are bound
by arithmetic. So sixteen sequences in one pass cost little more than one, until arithmetic
catches up. Each section compares two ways of doing the same work, alternating between them in one
run, because this machine's speed is not its own. The last line is JSON.

    bare        the engine against its own batches through a bare llama_decode loop
    scheduler   plan and apply, fake backend, 256 running: microseconds per sequence and tick
    tick        a whole tick on the fake backend, with the recorder: processor time per token
    prefix      16 requests behind one 512-token system prompt, with and without reuse

Run only when they are named:

    openvino         the OpenVINO backend against a bare loop and llama.cpp
    openvino-prefix  as prefix, on the OpenVINO backend

Other systems, strategies, batch sizes and long prompts are measured by `jitney bench`.
"""

import json
import random
import time
from collections.abc import Callable

from benchmarks import openvino
from benchmarks.bare import BareLoop, Recorder
from benchmarks.load import (
    RUNS,
    SLOTS,
    VOCABULARY,
    Figures,
    make_backend,
    make_engine,
    model_path,
    random_jobs,
    say,
    serve,
    spread,
)
from benchmarks.reuse import LENGTH_MAX, measure_reuse
from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.scheduler import Scheduler
from jitney.core.scheduler_settings import Mix, SchedulerSettings
from jitney.engine.clock import SystemClock
from jitney.engine.mailbox import Mailbox
from jitney.engine.observe import Observers
from jitney.engine.tick import Tick
from jitney.server.observe.recorder import Recorder as FlightRecorder


def bare() -> Figures:
    """64 requests, 16 at once, 128 in, 64 out."""
    path = model_path()
    loop = BareLoop(path, slots=SLOTS, slot_tokens=256)
    ratios, rates = [], []
    for number in range(RUNS):
        recorder = Recorder(make_backend(path))
        engine = make_engine(recorder, enable_prefix_caching=False)
        jobs = random_jobs(64, 128, 64, seed=number, vocabulary_size=VOCABULARY)
        run = serve(engine, jobs)
        bare_s = loop.run(recorder.batches)
        engine.close()
        ratios.append(bare_s / run.seconds)
        rates.append(run.tokens_per_s)
        say(f"engine {run.seconds:.2f} s, bare {bare_s:.2f} s, ratio {ratios[-1]:.3f}")
    loop.close()
    return {"engine_over_bare": ratios, "tokens_per_s": rates}


def scheduler() -> Figures:
    """256 running, 50 waiting, decode ticks only."""
    costs = []
    for _ in range(RUNS):
        costs.append(_scheduler_cost(256))
        say(f"{costs[-1]:.2f} us per sequence and tick")
    return {"us_per_sequence_and_tick": costs}


def _scheduler_cost(count: int) -> float:
    settings = SchedulerSettings(model_len_max=4096, max_num_seqs=count)
    backend = FakeBackend(FakeSettings(slots=2 * count, kv_tokens=200_000, eos_period=0))
    core = Scheduler(settings, backend.traits, backend.vocabulary.eos_tokens)
    generator = random.Random(0)
    params = SamplingParams(max_tokens=2000, temperature=0)
    for number in range(count + 50):
        prompt = tuple(generator.randrange(250) for _ in range(128))
        core.submit(Request(id=RequestId(str(number)), prompt=prompt, params=params, seed=1), 0.0)
    spent_s, ticks = 0.0, 0
    while ticks < 200:
        started = time.perf_counter()
        planned = core.plan(0.0)
        planned_at = time.perf_counter()
        assert planned is not None
        batch = planned.batch
        outcome = backend.execute(batch)
        executed = time.perf_counter()
        core.apply(planned, outcome, 0.0)
        if batch.token_count == count == batch.entry_count:
            spent_s += planned_at - started + time.perf_counter() - executed
            ticks += 1
    return spent_s / ticks / count * 1e6


def tick() -> Figures:
    """1, 16, 64 and 256 sequences that generate; the tenth percentile of all ticks, in us."""
    costs: Figures = {}
    for count in (1, 16, 64, 256):
        costs[f"us_per_token_{count}"] = [_tick_cost(count) for _ in range(RUNS)]
        say(f"{count}: {costs[f'us_per_token_{count}']}")
    return costs


def _tick_cost(count: int) -> float:
    tokens_max = max(2048, 40 * count)
    settings = SchedulerSettings(
        model_len_max=4096,
        max_num_seqs=count,
        mix=Mix.DECODE_FIRST,
        max_num_batched_tokens=tokens_max,
    )
    room = 1000 * count + 4096
    fake = FakeSettings(
        slots=2 * count, kv_tokens=room, eos_period=0, max_num_batched_tokens=tokens_max
    )
    backend = FakeBackend(fake)
    core = Scheduler(settings, backend.traits, backend.vocabulary.eos_tokens)
    observers = Observers()
    observers.add(FlightRecorder(4096).take)
    one = Tick(core, backend, SystemClock(), observers)
    params = SamplingParams(max_tokens=max(60, 8000 // count), temperature=0, ignore_eos=True)
    for number in range(count):
        prompt = tuple(random.Random(number).choices(range(250), k=32))
        request = Request(id=RequestId(str(number)), prompt=prompt, params=params, seed=1)
        one.submit(request, Mailbox(streams=True))
    costs = []
    while one.has_work:
        started = time.thread_time()
        one.run()
        costs.append((time.thread_time() - started) / count * 1e6)
    return sorted(costs)[len(costs) // 10]


def prefix() -> Figures:
    """16 requests of 30 tokens behind one system prompt of 512, all at once; 32 out."""
    path = model_path()
    return measure_reuse(lambda: make_backend(path, slot_tokens=LENGTH_MAX))


SECTIONS: dict[str, Callable[[], Figures]] = {
    "bare": bare,
    "scheduler": scheduler,
    "tick": tick,
    "prefix": prefix,
}
NAMED_SECTIONS: dict[str, Callable[[], Figures]] = {
    "openvino": openvino.compare,
    "openvino-prefix": openvino.reuse,
}


def main(names: list[str]) -> None:
    """Run the named sections, or all that need no name. Raises SystemExit."""
    sections = SECTIONS | NAMED_SECTIONS
    unknown = [name for name in names if name not in sections]
    if unknown:
        raise SystemExit(
            f"There is no section {', '.join(unknown)}; there are {', '.join(sections)}, gpu."
        )
    figures: dict[str, Figures] = {}
    for name in names or list(SECTIONS):
        print(f"{name}: {sections[name].__doc__}", flush=True)
        figures[name] = sections[name]()
        for key, values in figures[name].items():
            if isinstance(values, list):
                print(f"    {key}: {spread(values)}", flush=True)
    print(json.dumps(figures))
