"""How fast a backend is alone, beside one and beside two busy loops; with and without giving way.

`python -m benchmarks.neighbours [--rounds 3] [--loops 0 1 2]` runs the embedded model in this
process, four sequences that decode, beside so many busy loops in turn, and prints tokens a second.
`--fixed 1 4 16` measures llama.cpp with so many threads that do not give way, in place of all.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.busy import busy_loops
from jitney.backends.machine.cores import usable_cores
from jitney.backends.machine.neighbours import Neighbours
from jitney.config import Settings
from jitney.config.settings import BackendName
from jitney.core.backend import Backend
from jitney.core.batch import Batch, Entry, Open, Sampling
from jitney.loading import backend_failure, load_backend

SEQUENCES = 4
PROMPT = 64
SECONDS = 4.0
WARM_S = 2.0
"""What happens first is not counted: it takes a moment until others are seen."""
NOWHERE = Path("/nonexistent")
BACKENDS: tuple[BackendName, ...] = ("llamacpp", "openvino")


def decode_speed(backend: Backend) -> float:
    """Tokens a second of four sequences that decode."""
    backend.reset()
    opened = tuple(Open(slot, Sampling(seed=0, prompt_count=PROMPT)) for slot in range(SEQUENCES))
    prompts = tuple(
        Entry(slot, 0, tuple(range(100 + slot, 100 + slot + PROMPT)), wants_token=True)
        for slot in range(SEQUENCES)
    )
    backend.execute(Batch(0, opened, prompts))
    number = 0
    for seconds in (WARM_S, SECONDS):
        started, before = perf_counter(), number
        while perf_counter() - started < seconds:
            entries = tuple(
                Entry(slot, PROMPT + number, (), wants_token=True, continues=True)
                for slot in range(SEQUENCES)
            )
            number += 1
            backend.execute(Batch(number, (), entries))
    return SEQUENCES * (number - before) / (perf_counter() - started)


def set_threads(backend: Backend, threads: int, *, gives_way: bool) -> None:
    """Let llama.cpp's threads give way or not; other backends have no such choice."""
    if backend.traits.name == "llamacpp":
        given = Neighbours(threads) if gives_way else Neighbours(threads, stat=NOWHERE)
        backend._neighbours = given  # type: ignore[attr-defined]


def turns(name: str, fixed: list[int]) -> dict[str, tuple[int, bool]]:
    """How the threads are set in each turn: how many, and whether they give way."""
    cores = usable_cores()
    giving = {"giving way": (cores, True)}
    if name != "llamacpp":
        return {"as it is": (cores, True)}
    return {f"{count} fixed": (count, False) for count in fixed or [cores]} | giving


def main() -> None:
    """Measure every backend that works here, in short turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loops", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--fixed", type=int, nargs="*", default=[])
    asked = parser.parse_args()
    for name in BACKENDS:
        settings = Settings(backend=name)
        if backend_failure(name, settings) is not None:
            print(f"{name} does not work here")
            continue
        backend = load_backend(settings)
        found: dict[str, list[float]] = {}
        for _ in range(asked.rounds):
            for loops in asked.loops:
                for label, (threads, gives_way) in turns(name, asked.fixed).items():
                    with busy_loops(loops):
                        set_threads(backend, threads, gives_way=gives_way)
                        speed = decode_speed(backend)
                    found.setdefault(f"{loops} busy, {label}", []).append(round(speed, 1))
        backend.close()
        for label, speeds in found.items():
            print(f"{name:<9} {label:<24} {median(speeds):7.1f} tokens/s  {speeds}", flush=True)
        print(json.dumps({"backend": name, "tokens_per_s": found}))


if __name__ == "__main__":
    main()
