"""How fast a backend is alone, beside one and beside two busy loops; with and without giving way.

`python -m benchmarks neighbours` runs the embedded model in this process, four sequences that
decode, for each number of busy loops in turn, and prints tokens a second.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

from jitney.backends.neighbours import Neighbours
from jitney.config import Settings
from jitney.core.backend import Backend
from jitney.core.batch import Batch, Entry, Open, Sampling
from jitney.loading import backend_failure, installed_backends, load_backend

SEQUENCES = 4
PROMPT = 64
SECONDS = 4.0
NOWHERE = Path("/nonexistent")


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def decode_speed(backend: Backend) -> float:
    """Tokens a second of four sequences that decode."""
    backend.reset()
    opened = tuple(Open(slot, Sampling(seed=0, prompt_count=PROMPT)) for slot in range(SEQUENCES))
    prompts = tuple(
        Entry(slot, 0, tuple(range(100 + slot, 100 + slot + PROMPT)), wants_token=True)
        for slot in range(SEQUENCES)
    )
    backend.execute(Batch(0, opened, prompts))
    started, number = perf_counter(), 0
    while perf_counter() - started < SECONDS and number < 400:
        entries = tuple(
            Entry(slot, PROMPT + number, (), wants_token=True, continues=True)
            for slot in range(SEQUENCES)
        )
        number += 1
        backend.execute(Batch(number, (), entries))
    return SEQUENCES * number / (perf_counter() - started)


def set_giving_way(backend: Backend, threads: int, *, gives_way: bool) -> None:
    """Let llama.cpp's threads give way or not; other backends have no such choice."""
    if backend.traits.name == "llamacpp":
        given = Neighbours(threads) if gives_way else Neighbours(threads, stat=NOWHERE)
        backend._neighbours = given  # type: ignore[attr-defined]


def main(arguments: list[str]) -> None:
    """Measure every backend that works here, in short turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(arguments)
    for name in sorted(installed_backends()):
        settings = Settings(backend=name)  # type: ignore[arg-type]
        failure = backend_failure(name, settings)
        if failure is not None:
            print(f"{name}: does not work here: {failure}")
            continue
        backend = load_backend(settings)
        found: dict[str, list[float]] = {}
        for _ in range(asked.rounds):
            for loops in (0, 1, 2):
                for gives_way in (False, True) if name == "llamacpp" else (True,):
                    set_giving_way(backend, settings.threads or 2, gives_way=gives_way)
                    with busy_loops(loops):
                        speed = decode_speed(backend)
                    label = f"{loops} busy" + (", threads fixed" if not gives_way else "")
                    found.setdefault(label, []).append(round(speed, 1))
        backend.close()
        for label, speeds in found.items():
            print(f"{name:<9} {label:<24} {median(speeds):7.1f} tokens/s  {speeds}")
        print(json.dumps({"backend": name, "tokens_per_s": found}))
