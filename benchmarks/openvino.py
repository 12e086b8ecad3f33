"""What the OpenVINO backend is worth: `python -m benchmarks openvino openvino-prefix`.

Everybody runs the embedded model from one Q8_0 file, on the same number of threads: 128 tokens in,
64 out, greedy, prompts that share nothing. All are loaded and warm before the first clock starts.
In each of the three runs the engine is measured before and after every other contender, and the
ratio is its mean over theirs, so that what drifts on a shared machine cancels out; every other run
goes through them backwards. Neither section is part of a plain run: they need OpenVINO as well as
llama.cpp.

    bare          the engine's own batches over the compiled model (`benchmarks.paged`)
    llamacpp      jitney's llama.cpp backend
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bare import Recorder
from benchmarks.load import (
    RUNS,
    VOCABULARY,
    Figures,
    Job,
    make_backend,
    make_engine,
    model_path,
    random_jobs,
    say,
    serve,
)
from benchmarks.paged import PagedLoop
from benchmarks.reuse import LENGTH_MAX, measure_reuse
from jitney.backends.machine.cores import usable_cores
from jitney.backends.openvino import families
from jitney.backends.openvino.graph import GraphShape
from jitney.config import Settings
from jitney.core.backend import Backend
from jitney.engine.engine import Engine
from jitney.loading import load_backend, ready_model

SLOT_TOKENS = 256
Rate = Callable[[list[Job]], float]
"""Serves a load; completion tokens per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured; less than the default only shows that it works."""

    runs: int = RUNS
    prompt_count: int = 128
    completion_count: int = 64
    loads: tuple[tuple[int, int], ...] = ((16, 48), (64, 128), (4, 16), (1, 6))
    """Sequences at once, and requests in all."""


FULL = Scale()


@dataclass(frozen=True, slots=True)
class Contest:
    """The engine at so many sequences, and those it is compared with."""

    at_once: int
    engine: Rate
    contenders: dict[str, Rate]


def compare(scale: Scale = FULL) -> Figures:
    """128 in, 64 out, at 1, 4, 16 and 64 sequences; the engine's rate over each contender's."""
    path = model_path()
    figures: Figures = {}
    for at_once, count in scale.loads:
        with ExitStack() as stack:
            figures |= _hold(_load(stack, path, at_once), count, scale)
    return figures


def reuse(runs: int = RUNS) -> Figures:
    """16 requests of 30 tokens behind one system prompt of 512, all at once; 32 out."""
    path = model_path()
    return measure_reuse(lambda: _backend(path, 24, LENGTH_MAX), runs=runs, warms_up=True)


def _hold(contest: Contest, count: int, scale: Scale) -> Figures:
    at_once, engine, contenders = contest.at_once, contest.engine, contest.contenders

    def jobs_of(number: int, count: int, completion_count: int) -> list[Job]:
        return random_jobs(
            count,
            scale.prompt_count,
            completion_count,
            seed=600 + number,
            vocabulary_size=VOCABULARY,
        )

    for rate in (engine, *contenders.values()):
        rate(jobs_of(99, at_once, 4))
    ratios: dict[str, list[float]] = {name: [] for name in contenders}
    theirs: dict[str, list[float]] = {name: [] for name in contenders}
    ours: list[float] = []
    for number in range(scale.runs):
        jobs = jobs_of(number, count, scale.completion_count)
        ours.append(engine(jobs))
        for name in contenders if number % 2 == 0 else reversed(contenders):
            theirs[name].append(contenders[name](jobs))
            ours.append(engine(jobs))
            ratios[name].append((ours[-2] + ours[-1]) / 2 / theirs[name][-1])
            say(
                f"{at_once} at once: engine {ours[-2]:.0f} and {ours[-1]:.0f} tok/s, "
                f"{name} {theirs[name][-1]:.0f}, ratio {ratios[name][-1]:.3f}"
            )
    figures: Figures = {f"over_{name}_at_{at_once}": each for name, each in ratios.items()}
    figures[f"tokens_per_s_at_{at_once}"] = ours
    return figures | {f"{name}_tokens_per_s_at_{at_once}": each for name, each in theirs.items()}


def _load(stack: ExitStack, path: Path, at_once: int) -> Contest:
    """Load everybody; the stack closes what has to be closed."""
    slots = at_once + max(4, at_once // 2)
    recorder = Recorder(_backend(path, slots, SLOT_TOKENS))
    engine = _started(stack, recorder, at_once)

    def recorded(jobs: list[Job]) -> float:
        recorder.batches.clear()
        return serve(engine, jobs).tokens_per_s

    contenders: dict[str, Rate] = {}
    if at_once >= 16:
        contenders["bare"] = _bare(path, recorder)
    other = _started(stack, make_backend(path, slots=slots, slot_tokens=SLOT_TOKENS), at_once)
    contenders["llamacpp"] = lambda jobs: serve(other, jobs).tokens_per_s
    return Contest(at_once, recorded, contenders)


def _backend(path: Path, slots: int, slot_tokens: int) -> Backend:
    """OpenVINO in this process as it is by default, with room for so many sequences."""
    return load_backend(
        Settings(backend="openvino", model=path, max_num_seqs=slots, kv_tokens=slots * slot_tokens)
    )


def _started(stack: ExitStack, backend: Backend, max_num_seqs: int) -> Engine:
    engine = make_engine(
        backend, max_num_seqs=max_num_seqs, enable_prefix_caching=False, model_len_max=SLOT_TOKENS
    )
    stack.callback(engine.close)
    return engine


def _bare(path: Path, recorder: Recorder) -> Rate:
    traits = recorder.traits
    dtypes = families.dtypes("auto", "auto", usable_cores())
    shape = GraphShape(
        threads=usable_cores(),
        inference_precision=dtypes.inference,
        kv_precision=dtypes.kv,
        activation_group=dtypes.activation_group,
    )
    folder = ready_model(Settings(backend="openvino", model=path))
    blocks = traits.kv_tokens // traits.block_tokens
    loop = PagedLoop(folder, shape, blocks, traits.slots_max)
    return lambda jobs: _token_count(jobs) / loop.run(recorder.batches)


def _token_count(jobs: list[Job]) -> int:
    return sum(job.completion_count for job in jobs)
