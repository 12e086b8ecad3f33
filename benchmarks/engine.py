"""What the engine is worth: `python -m benchmarks [SECTION ...]`.

Generating reads every weight once per forward pass, whoever is in the batch; prompts are bound
by arithmetic. So sixteen sequences in one pass cost little more than one, until arithmetic
catches up. Each section compares two ways of doing the same work, alternating between them in one
run, because this machine's speed is not its own. The last line is JSON.

    bare        the engine against its own batches through a bare llama_decode loop
    peer        the engine against llama-server (xllamacpp), 16 slots, same file
    slots       16 sequences at once against one at a time
    scheduler   plan and apply, fake backend, 256 running: microseconds per sequence and tick
    prefix      16 requests behind one 512-token system prompt, with and without reuse
    strategies  static, dynamic and continuous on answers of mixed length

Run only when they are named; `openvino` takes about half an hour:

    mixes            decode-first and bounded-stall, long prompts beside short ones
    openvino         the OpenVINO backend against a bare loop, one slot, GenAI, llama-server and
                     llama.cpp
    openvino-prefix  as prefix, on the OpenVINO backend
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
    Job,
    make_backend,
    make_engine,
    model_path,
    percentile,
    random_jobs,
    say,
    serve,
    spread,
)
from benchmarks.mixes import measure_mixes
from benchmarks.peer import Peer
from benchmarks.reuse import LENGTH_MAX, measure_reuse
from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.scheduler import Scheduler
from jitney.core.scheduler_settings import SchedulerSettings, Strategy


def bare() -> Figures:
    """64 requests, 16 at once, 128 in, 64 out."""
    path = model_path()
    loop = BareLoop(path, slots=SLOTS, slot_tokens=256)
    ratios, rates = [], []
    for number in range(RUNS):
        recorder = Recorder(make_backend(path))
        engine = make_engine(recorder, cache_tokens=0)
        jobs = random_jobs(64, 128, 64, seed=number, vocabulary_size=VOCABULARY)
        run = serve(engine, jobs)
        bare_s = loop.run(recorder.batches)
        engine.close()
        ratios.append(bare_s / run.seconds)
        rates.append(run.tokens_per_s)
        say(f"engine {run.seconds:.2f} s, bare {bare_s:.2f} s, ratio {ratios[-1]:.3f}")
    loop.close()
    return {"engine_over_bare": ratios, "tokens_per_s": rates}


def peer() -> Figures:
    """64 requests, 16 at once, 128 in, 64 out."""
    path = model_path()
    ratios, ours, theirs = [], [], []
    for number in range(RUNS):
        jobs = random_jobs(64, 128, 64, seed=100 + number, vocabulary_size=VOCABULARY)
        engine = make_engine(make_backend(path), cache_tokens=0)
        run = serve(engine, jobs)
        engine.close()
        server = Peer(path, 16, 8192)
        seconds = server.serve(jobs, 16)
        server.close()
        ours.append(run.tokens_per_s)
        theirs.append(64 * 64 / seconds)
        ratios.append(ours[-1] / theirs[-1])
        say(f"jitney {ours[-1]:.0f} tok/s, llama-server {theirs[-1]:.0f}, ratio {ratios[-1]:.2f}")
    return {"over_llama_server": ratios, "tokens_per_s": ours, "llama_server_tokens_per_s": theirs}


def slots() -> Figures:
    """32 in, 128 out; 64 requests at 16, 8 of them at one (they take as long)."""
    path = model_path()
    ratios, many, single = [], [], []
    for number in range(RUNS):
        jobs = random_jobs(64, 32, 128, seed=200 + number, vocabulary_size=VOCABULARY)
        rates = []
        for max_num_seqs, part in ((16, jobs), (1, jobs[:8])):
            engine = make_engine(make_backend(path), max_num_seqs=max_num_seqs, cache_tokens=0)
            rates.append(serve(engine, part).tokens_per_s)
            engine.close()
        many.append(rates[0])
        single.append(rates[1])
        ratios.append(rates[0] / rates[1])
        say(f"16 slots {rates[0]:.0f} tok/s, one slot {rates[1]:.0f}, ratio {ratios[-1]:.2f}")
    return {"over_one_slot": ratios, "tokens_per_s": many, "one_slot_tokens_per_s": single}


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
        if batch.token_count == count == len(batch.entries):
            spent_s += planned_at - started + time.perf_counter() - executed
            ticks += 1
    return spent_s / ticks / count * 1e6


def prefix() -> Figures:
    """16 requests of 30 tokens behind one system prompt of 512, all at once; 32 out."""
    path = model_path()
    return measure_reuse(lambda: make_backend(path, slot_tokens=LENGTH_MAX))


def strategies() -> Figures:
    """120 requests of mixed length (3, 10, 30 and 60 tokens) arriving as a Poisson stream."""
    path = model_path()
    figures: dict[str, list[tuple[float, float]]] = {}
    order = (Strategy.STATIC, Strategy.DYNAMIC, Strategy.CONTINUOUS)
    for number in range(RUNS):
        jobs = _mixed_jobs(120, seed=500 + number)
        line = []
        for strategy in order:
            engine = make_engine(make_backend(path), strategy=strategy, cache_tokens=0)
            run = serve(engine, jobs)
            engine.close()
            p95 = percentile([answer.total_s for answer in run.answers], 0.95)
            figures.setdefault(strategy, []).append((p95, run.tokens_per_s))
            line.append(f"{strategy} p95 {p95:.2f} s at {run.tokens_per_s:.0f} tok/s")
        say("; ".join(line))
    static = figures[Strategy.STATIC]
    saved = [1 - c[0] / s[0] for c, s in zip(figures[Strategy.CONTINUOUS], static, strict=True)]
    rate = [c[1] / s[1] for c, s in zip(figures[Strategy.CONTINUOUS], static, strict=True)]
    return {
        "p95_below_static": saved,
        "throughput_over_static": rate,
        "p95_s": {str(name): [f[0] for f in values] for name, values in figures.items()},
        "tokens_per_s": {str(name): [f[1] for f in values] for name, values in figures.items()},
    }


def mixes() -> Figures:
    """48 requests of 24 to 1,400 tokens, 48 out, two a second; then all at once."""
    path = model_path()
    return {
        name: measure_mixes(path, per_s=per_s)
        for name, per_s in (("two_per_s", 2.0), ("at_once", None))
    }


def _mixed_jobs(count: int, *, seed: int) -> list[Job]:
    generator = random.Random(seed)
    jobs = random_jobs(count, 24, 1, seed=seed, vocabulary_size=VOCABULARY)
    at_s = 0.0
    mixed = []
    for job in jobs:
        at_s += generator.expovariate(12.0)
        mixed.append(Job(job.prompt, generator.choice((3, 3, 10, 30, 30, 60)), at_s))
    return mixed


SECTIONS: dict[str, Callable[[], Figures]] = {
    "bare": bare,
    "peer": peer,
    "slots": slots,
    "scheduler": scheduler,
    "prefix": prefix,
    "strategies": strategies,
}
NAMED_SECTIONS: dict[str, Callable[[], Figures]] = {
    "mixes": mixes,
    "openvino": openvino.compare,
    "openvino-prefix": openvino.reuse,
}


def main(names: list[str]) -> None:
    """Run the named sections, or all that need no name."""
    sections = SECTIONS | NAMED_SECTIONS
    figures: dict[str, Figures] = {}
    for name in names or list(SECTIONS):
        print(f"{name}: {sections[name].__doc__}", flush=True)
        figures[name] = sections[name]()
        for key, values in figures[name].items():
            if isinstance(values, list):
                print(f"    {key}: {spread(values)}", flush=True)
    print(json.dumps(figures))
