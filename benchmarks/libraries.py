"""llama.cpp libraries compared: one wheel of `jitney_llama` against others, in short turns.

    python -m benchmarks.libraries WHEEL ... [--threads 2] [--rounds 3] [--model FILE]

Each wheel is unpacked beside the others and run in a child of its own: prompts of 128 tokens, then
decoding at 1, 4, 16 and 64 sequences, flash attention on and off. Rounds alternate between the
wheels. Figures are tokens a second, and ratios to the first wheel. The last line is JSON.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from statistics import median
from time import perf_counter

from jitney.config import Settings
from jitney.core.backend import Backend
from jitney.core.batch import Batch, Entry, Open, Release, Sampling

SIZES = (1, 4, 16, 64)
PROMPT = 128
SECONDS = 1.5
CHILD_S_MAX = 600
Figures = dict[str, float]


def measured(backend: Backend) -> Figures:
    """Tokens a second of prompts, and of decoding at each size."""
    figures: Figures = {}
    number = 0
    taken = []
    for slot in range(max(SIZES)):
        opened = Open(slot, Sampling(seed=0, prompt_count=PROMPT))
        tokens = tuple((slot * 37 + at * 7) % 40_000 for at in range(PROMPT))
        started = perf_counter()
        number += 1
        backend.execute(Batch(number, (opened,), (Entry(slot, 0, tokens, wants_token=True),)))
        taken.append(perf_counter() - started)
    figures["prefill"] = PROMPT / median(taken)
    for size in reversed(SIZES):
        started, passes = perf_counter(), 0
        while perf_counter() - started < SECONDS and passes < 30:
            passes += 1
            number += 1
            entries = tuple(
                Entry(slot, _length(backend, slot), (), wants_token=True, continues=True)
                for slot in range(size)
            )
            backend.execute(Batch(number, (), entries))
        figures[str(size)] = size * passes / (perf_counter() - started)
    backend.execute(Batch(number + 1, tuple(Release(slot) for slot in range(max(SIZES))), ()))
    return figures


def _length(backend: Backend, slot: int) -> int:
    length: int = backend._memory.contents(slot).length  # type: ignore[attr-defined]
    return length


def child(given: dict[str, str]) -> None:
    """Measure the library that this child finds, and print the figures."""
    from jitney.backends.llamacpp.backend import LlamaCppModel
    from jitney.backends.llamacpp.bindings import LlamaCppSettings
    from jitney.backends.shared.model_backend import ModelBackend

    found = {}
    for attention in (True, False):
        settings = LlamaCppSettings(
            model=given["model"],
            kv_tokens=256 * max(SIZES),
            slots=max(SIZES),
            slot_tokens_max=256,
            max_num_batched_tokens=512,
            threads=int(given["threads"]),
            flash_attention=attention,
        )
        backend = ModelBackend(LlamaCppModel(settings))
        found["on" if attention else "off"] = measured(backend)
        backend.close()
    print(json.dumps(found), flush=True)


def run(wheel: Path, folder: Path, given: dict[str, str]) -> dict[str, Figures]:
    """One turn of one wheel."""
    place = folder / wheel.stem
    if not place.exists():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place)
    path = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.libraries", "--child", json.dumps(given)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        timeout=CHILD_S_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{wheel.name}: {done.stderr.decode()[-400:]}")
    found: dict[str, Figures] = json.loads(done.stdout.decode().splitlines()[-1])
    return found


def main() -> None:
    """Take turns, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("wheels", nargs="*", type=Path)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="")
    parser.add_argument("--child")
    asked = parser.parse_args()
    if asked.child:
        child(json.loads(asked.child))
        return
    from jitney.loading import ready_model

    model = asked.model or str(ready_model(Settings(backend="llamacpp")))
    given = {"model": model, "threads": asked.threads}
    rows: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(asked.rounds):
            for wheel in asked.wheels:
                for attention, figures in run(wheel, Path(folder), given).items():
                    row = rows.setdefault(f"{wheel.stem.split('-')[1]}, attention {attention}", {})
                    for name, figure in figures.items():
                        row.setdefault(name, []).append(round(figure, 1))
    first = {name: median(each) for name, each in next(iter(rows.values())).items()}
    for label, row in rows.items():
        middle = {name: median(each) for name, each in row.items()}
        told = "  ".join(f"{n} {middle[n]:.0f} ({middle[n] / first[n]:.2f})" for n in middle)
        print(f"{label:<64} {told}", flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
