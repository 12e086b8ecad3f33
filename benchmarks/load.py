"""Loads and engines that the benchmarks share.

A load is a list of prompts (token ids, seeded) with the length of each answer; lengths are exact
because the end token is ignored. Everything is greedy.
"""

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jitney.backends.llamacpp.backend import LlamaCppModel
from jitney.backends.llamacpp.bindings import LlamaCppSettings
from jitney.backends.machine.cores import usable_cores
from jitney.backends.shared.model_backend import ModelBackend
from jitney.config import Settings
from jitney.core.backend import Backend
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.answer import Answer
from jitney.engine.engine import Engine
from jitney.loading import ready_model

RUNS = 3
VOCABULARY = 49_000
WAIT_S = 600.0
SLOTS = 24
"""16 that run, and 8 for cached prefixes."""

Figures = dict[str, object]
"""What a section found, by name; lists have one figure per run."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a load; `at_s` is when it arrives after the start."""

    prompt: tuple[int, ...]
    completion_count: int
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """What a load took, in seconds, and its answers in order."""

    seconds: float
    answers: tuple[Answer, ...]

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens per second, start to end."""
        count = sum(answer.usage.completion_count for answer in self.answers)
        return count / self.seconds


def model_path() -> Path:
    """The embedded model as llama.cpp reads it, fetched and converted if need be."""
    return ready_model(Settings(backend="llamacpp"))


def make_backend(model: Path, *, slots: int = SLOTS, slot_tokens: int = 256) -> Backend:
    """llama.cpp in this process, laid out as it is by default where memory allows."""
    settings = LlamaCppSettings(
        model=str(model),
        kv_tokens=slots * slot_tokens,
        slots=slots,
        slot_tokens_max=slot_tokens,
        max_num_batched_tokens=2048,
        threads=usable_cores(),
        flash_attention=False,
    )
    return ModelBackend(LlamaCppModel(settings))


def make_engine(backend: Backend, **settings: object) -> Engine:
    """A started engine on the backend; keywords are those of SchedulerSettings."""
    values: dict[str, object] = {"model_len_max": backend.traits.model_len_max, **settings}
    engine = Engine(backend, SchedulerSettings(**values))  # type: ignore[arg-type]
    engine.start()
    return engine


def random_jobs(
    count: int, prompt_count: int, completion_count: int, *, seed: int, vocabulary_size: int
) -> list[Job]:
    """Prompts that share nothing, so that no prefix can be reused."""
    generator = random.Random(seed)
    return [
        Job(
            tuple(generator.randrange(100, vocabulary_size) for _ in range(prompt_count)),
            completion_count,
        )
        for _ in range(count)
    ]


def serve(engine: Engine, jobs: Sequence[Job]) -> Run:
    """Hand every job in at its time and wait for all answers."""
    started = time.perf_counter()
    handles = []
    for number, job in enumerate(jobs):
        pause = job.at_s - (time.perf_counter() - started)
        if pause > 0:
            time.sleep(pause)
        params = SamplingParams(temperature=0, max_tokens=job.completion_count, ignore_eos=True)
        request_id = RequestId(f"job-{started}-{number}")
        request = Request(id=request_id, prompt=job.prompt, params=params, seed=number)
        handles.append(engine.send(request, streams=False))
    answers = tuple(handle.result(WAIT_S) for handle in handles)
    return Run(time.perf_counter() - started, answers)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: Sequence[float]) -> str:
    """Median and range, for people."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def say(text: str) -> None:
    """One line about one run, at once."""
    print("   ", text, flush=True)
