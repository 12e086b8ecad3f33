"""A trial run of a model in a child process, so that bad files and bad kernels kill only that.

`python -m jitney.backends.llamacpp.probe MODEL` loads the model, runs one batch of 64 tokens and
ends with status 0. `probe_result` runs it once for each model, library and processor, remembers
the answer in the cache folder, and turns every kind of death into a sentence. Called at start-up,
from any thread.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from jitney.backends.llamacpp import usable
from jitney.backends.llamacpp.backend import LlamaCppBackend, LlamaCppSettings
from jitney.backends.llamacpp.bindings import library_files
from jitney.backends.machine.processor import read_processor
from jitney.backends.trials import probes
from jitney.core.batch import Batch, Entry, Open, Sampling
from jitney.errors import JitneyError, ModelError
from jitney.models.parts import size_of

TOKENS = 64
START_S_MAX = 120.0
BYTES_PER_S_MIN = 20e6
"""The slowest disk from which a model is still waited for."""
EXIT_REFUSED = 3
_PLAIN = "--plain"
REBUILD_ADVICE = (
    "this llama.cpp was compiled in a way that this processor stops with an illegal instruction, "
    'so its fastest kernels stay off; `make llama ARGS="--compile --force"` compiles another one, '
    "best with clang 19."
)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How the model can be run here: with the rearranged kernels or without, and why not."""

    extra_kernels: bool
    warning: str | None = None


def probe_result(model: Path, cache: Path) -> ProbeResult:
    """Whether the model runs here, from memory or by trial. Raises ModelError when it does not."""
    try:
        memory = cache / "probes" / f"{_key(model)}.json"
    except OSError as error:
        raise ModelError(f"{model} cannot be read: {error.strerror}.") from None
    extra_kernels = _recall(memory)
    if extra_kernels is None:
        extra_kernels = _try(model)
        answer = {"extra_kernels": extra_kernels}
        probes.keep(memory, answer, model, usable.distributions())
    return ProbeResult(extra_kernels, None if extra_kernels else REBUILD_ADVICE)


def run_probe(model: Path, *, extra_kernels: bool) -> None:
    """Load the model in this process and run a batch: what the child does. Raises ModelError."""
    settings = LlamaCppSettings(
        model=model,
        kv_tokens=256,
        slots=1,
        max_num_batched_tokens=TOKENS,
        threads=2,
        extra_kernels=extra_kernels,
    )
    backend = LlamaCppBackend(settings)
    try:
        tokens = tuple(index % len(backend.vocabulary.pieces) for index in range(TOKENS))
        opened = Open(0, Sampling(seed=0, prompt_count=TOKENS))
        batch = Batch(0, (opened,), (Entry(0, 0, tokens, wants_token=True),))
        fault = backend.execute(batch).samples[0].fault
    finally:
        backend.close()
    if fault is not None:
        raise ModelError(f"{model} cannot be used: {fault.rstrip('.')}; its weights are damaged.")


def _try(model: Path) -> bool:
    """Whether the model runs with all kernels; false when it runs only without some."""
    status = _run_child(model, [])
    if status == 0:
        return True
    if status == -signal.SIGILL:
        status = _run_child(model, [_PLAIN])
        if status == 0:
            return False
    if status == -signal.SIGKILL:
        raise ModelError(
            f"the trial run of {model} was killed, probably for lack of memory; "
            "take a smaller model or free some memory."
        )
    cause = signal.Signals(-status).name if status < 0 else f"status {status}"
    raise ModelError(
        f"{model} makes llama.cpp crash ({cause}): the file is damaged or its kind of model is "
        "not supported."
    )


def _run_child(model: Path, flags: list[str]) -> int:
    limit = START_S_MAX + size_of(model) / BYTES_PER_S_MIN
    command = [sys.executable, "-P", "-m", __spec__.name, str(model), *flags]
    try:
        child = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        raise ModelError(f"a trial run of {model} did not end within {limit:.0f} s.") from None
    if child.returncode == EXIT_REFUSED:
        raise ModelError(child.stdout.decode("utf-8", "replace").strip())
    return child.returncode


def _key(model: Path) -> str:
    """A name for this model on this library and this processor."""
    status = model.stat()
    library = [(path.name, path.stat()) for path in library_files()]
    facts = [
        str(model.resolve()),
        status.st_size,
        status.st_mtime_ns,
        [(name, each.st_size, each.st_mtime_ns) for name, each in library],
        asdict(read_processor()),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def _recall(memory: Path) -> bool | None:
    try:
        answer = json.loads(memory.read_text(encoding="utf-8"))["extra_kernels"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return answer if isinstance(answer, bool) else None


def main(arguments: list[str]) -> int:
    """The child: 0 when the model ran, EXIT_REFUSED with a sentence when it was refused."""
    try:
        run_probe(Path(arguments[0]), extra_kernels=_PLAIN not in arguments[1:])
    except JitneyError as error:
        sys.stdout.write(f"{error}\n")
        return EXIT_REFUSED
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    # Native libraries may hang in their clean-up, and nothing here needs one.
    os._exit(status)
