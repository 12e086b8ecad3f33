"""Which shape of pass computes every token alike here, and how fast: tried in a child, remembered.

The child is this module run as a program: of the shapes that it is given, it answers with the first
under which `invariance` finds no difference, and with its speed. Called at start-up, from any
thread.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol  # Any: settings are plain values until a backend has checked them

from jitney.backends.kinds import load
from jitney.backends.trials import invariance, measure
from jitney.backends.trials.remembered import Trial, TrialResults
from jitney.backends.trials.trial_process import TrialResult, answer, ask
from jitney.core.backend import Backend

_log = logging.getLogger("jitney")

START_S_MAX = 300.0
BYTES_PER_S_MIN = 10e6
"""The slowest disk and processor on which a trial is waited for."""
METHOD = 1
"""Part of what a trial is remembered by; another way to try needs another number."""
MAY_DIFFER = "what else is in the batch can change a text here (batch_invariant)"
"""Said where no shape was found, and nobody asked for one."""

Shape = Mapping[str, Any]
"""What a backend's settings say of the rows of a pass."""


class ShapedBackend(Backend, Protocol):
    """A backend whose passes can have several shapes."""

    def use_shape(self, shape: Shape) -> None:
        """Compute in passes of this shape from here on; every slot is empty."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeTrial:
    """What one child is to try."""

    backend: str
    settings: Mapping[str, Any]
    shapes: Sequence[Shape]
    sequences: int = 0
    """With so many the speed is measured; 0 where it does not matter."""

    def run(self) -> TrialResult:
        """Try the shapes in their order, with as much memory as that needs."""
        slots, slot_tokens = invariance.SLOTS, invariance.SLOT_TOKENS
        batch = int(self.settings["max_num_batched_tokens"])
        sizes = {
            "slots": slots,
            "kv_tokens": slots * slot_tokens,
            "max_num_batched_tokens": max(batch, slot_tokens),
        }
        given = {
            "backend": self.backend,
            "settings": {**self.settings, **sizes},
            "shapes": [dict(shape) for shape in self.shapes],
            "sequences": self.sequences,
        }
        model = Path(str(self.settings["model"]))
        limit_s = START_S_MAX + measure.model_bytes(model) / BYTES_PER_S_MIN
        return ask(__spec__.name, given, limit_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeMemory:
    """What the answers depend on besides the shapes, and where they are remembered."""

    cache: Path
    facts: object
    distributions: tuple[str, ...]
    notice: str
    """Said before anything is tried."""


def try_shapes(trials: Mapping[str, ShapeTrial], memory: ShapeMemory) -> TrialResults:
    """The answers of all trials, from memory or by children.

    One that failed is not remembered: loading the model will say what is wrong with it.
    """
    shapes = [[name, [dict(shape) for shape in each.shapes]] for name, each in trials.items()]
    trial = Trial(
        cache=memory.cache,
        names=tuple(trials),
        facts=["shapes", METHOD, memory.facts, shapes],
        distributions=memory.distributions,
        keeps=is_sound,
    )

    def attempt() -> TrialResults:
        _log.warning("%s", memory.notice)
        return {name: each.run() for name, each in trials.items()}

    return trial.results(attempt)


def is_sound(answers: TrialResults) -> bool:
    """Whether all of them have a speed and a shape, or none on purpose."""
    return all(
        isinstance(each.found.get("tokens_per_s"), float)
        and isinstance(each.found.get("shape", ""), dict | None)
        for each in answers.values()
    )


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


def find(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the child does."""
    backend: Any = load(given["backend"], given["settings"])
    try:
        return run_trial(backend, given["shapes"], given["sequences"])
    finally:
        backend.close()


if __name__ == "__main__":
    answer(find)
