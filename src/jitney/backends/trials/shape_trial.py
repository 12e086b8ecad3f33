"""Which shape of pass computes every token alike here, and how fast: tried in a child, remembered.

`python -m jitney.backends.trials.shape_trial` takes a backend, its settings and the shapes to try
as JSON on standard input, and prints the first shape under which `invariance` finds no difference,
with its speed. `try_shapes` runs that child. Called at start-up, from any thread.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol  # Any: settings are plain values until a backend has checked them

from jitney.backends import load
from jitney.backends.trials import invariance, measure, probes
from jitney.core.backend import Backend
from jitney.sandbox.die_with_parent import die_with_parent

START_S_MAX = 300.0
BYTES_PER_S_MIN = 10e6
"""The slowest disk and processor on which a trial is waited for."""
METHOD = 1
"""Part of what a trial is remembered by; another way to try needs another number."""

Shape = Mapping[str, Any]
"""What a backend's settings say of the rows of a pass."""


class ShapedBackend(Backend, Protocol):
    """A backend whose passes can have several shapes."""

    def use_shape(self, shape: Shape) -> None:
        """Compute in passes of this shape from here on; every slot is empty."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """What a trial saw: the speed, and the shape in which all is alike, if there is one."""

    tokens_per_s: float
    shape: dict[str, Any] | None
    is_lasting: bool = True
    """Whether it would surely end the same way again; lack of memory, for one, may pass."""


def try_shapes(
    name: str, settings: Mapping[str, Any], shapes: Sequence[Shape], sequences: int
) -> Found:
    """Try the shapes in this order, with as much memory as that needs."""
    given = {
        "backend": name,
        "settings": dict(settings) | {"slots": invariance.SLOTS},
        "shapes": [dict(shape) for shape in shapes],
        "sequences": sequences,
        "parent": os.getpid(),
    }
    model = Path(str(settings["model"]))
    limit_s = START_S_MAX + measure.model_bytes(model) / BYTES_PER_S_MIN
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", __spec__.name],
            input=json.dumps(given).encode(),
            capture_output=True,
            timeout=limit_s,
            check=True,
        )
        # A library may have written before it.
        return _read(json.loads(child.stdout.decode("utf-8", "replace").strip().split("\n")[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        # Loading the model will say what is wrong, if it is not the trial.
        return Found(0.0, None, is_lasting=False)


def memory_path(cache: Path, facts: object) -> Path:
    """Where trials under these facts are remembered; `facts` are what JSON can say."""
    return measure.memory_path(cache, ["shapes", METHOD, facts])


def recall(memory: Path, names: Iterable[str]) -> dict[str, Found] | None:
    """The trials of all these names; None when they are not there or make no sense."""
    try:
        if memory.stat().st_size > measure.MEMORY_BYTES_MAX:
            return None
        kept = json.loads(memory.read_text(encoding="utf-8"))
        return {name: _read(kept[name]) for name in names}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remember(memory: Path, found: Mapping[str, Found], distributions: Iterable[str]) -> None:
    """Keep trials made with these libraries; without that they are only made again."""
    if all(each.is_lasting for each in found.values()):
        probes.keep(
            memory, {name: asdict(each) for name, each in found.items()}, None, distributions
        )


def _read(kept: Mapping[str, Any]) -> Found:
    shape = kept["shape"]
    if shape is not None:
        shape = {str(name): value for name, value in shape.items() if isinstance(value, int)}
    return Found(float(kept["tokens_per_s"]), shape)


def run_trial(
    backend: ShapedBackend, shapes: Sequence[Shape], sequences: int
) -> dict[str, float | Shape | None]:
    """What the child does with a backend that it has loaded."""
    found = None
    for shape in shapes:
        backend.use_shape(shape)
        if invariance.is_invariant(backend, decodes_differ=bool(shape.get("decodes_differ"))):
            found = shape
            break
    backend.use_shape(found or {})
    speed = measure.Course(backend, sequences).speed() if sequences else 0.0
    return {"tokens_per_s": speed, "shape": found}


def main() -> int:
    """The child: 0 and a line of JSON, or a traceback that nobody reads."""
    given = json.load(sys.stdin)
    # A trial that nobody waits for would only slow the next one down.
    if not die_with_parent(given["parent"]):
        return 1
    backend: Any = load(given["backend"], given["settings"])
    try:
        answer = run_trial(backend, given["shapes"], given["sequences"])
    finally:
        backend.close()
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Native libraries may hang in their clean-up, and nothing here needs one.
    os._exit(status)
