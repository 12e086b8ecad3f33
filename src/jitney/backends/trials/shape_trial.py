"""Finds a shape of passes that computes every token alike here, in a child; remembers it.

The child is this module run as a program. It tries the given shapes. It answers with the first one
where `invariance` finds no difference, and with its speed. Called at start-up, from any thread.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol  # Any: settings are plain values until a backend has checked them

from jitney.backends.kinds import load
from jitney.backends.trials import invariance, measure
from jitney.backends.trials.remembered import Trial, TrialResults
from jitney.backends.trials.trial_process import TrialResult, answer, ask
from jitney.core.backend import Backend
from jitney.errors import ConfigError

_log = logging.getLogger("jitney")

START_S_MAX = 300.0
BYTES_PER_S_MIN = 10e6
"""The slowest disk and processor that the time limit allows for."""
METHOD = 1
"""Part of the key of a remembered trial. Another way to try needs another number."""
MAY_DIFFER = "What else is in the batch can change a text here (batch_invariant)"
"""A warning, where no shape was found."""

Shape = Mapping[str, Any]
"""Settings of a backend about the rows of a pass."""


def report_none(title: str, batch_invariant: str) -> None:
    """Warn that no shape was found. Raises ConfigError where `batch_invariant` is on."""
    if batch_invariant == "auto":
        _log.warning(MAY_DIFFER)
    if batch_invariant == "on":
        raise ConfigError(
            f"batch_invariant is on, and no trial found that {title} computes this model alike in "
            "every batch on this machine; leave it out, or give off."
        )


class ShapedBackend(Backend, Protocol):
    """A backend whose passes can have several shapes."""

    def use_shape(self, shape: Shape) -> None:
        """Use this shape of passes from now on. Every slot is empty."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeTrial:
    """The task of one child."""

    backend: str
    settings: Mapping[str, Any]
    shapes: Sequence[Shape]
    sequences: int = 0
    """How many sequences the measurement of the speed has; 0 means no measurement."""

    def run(self) -> TrialResult:
        """Try the shapes in their order, with only as much memory as the trial needs."""
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
    """What the answers depend on besides the shapes, and where they are kept."""

    cache: Path
    facts: object
    distributions: tuple[str, ...]
    notice: str
    """A log line before the trial."""


def try_shapes(trials: Mapping[str, ShapeTrial], memory: ShapeMemory) -> TrialResults:
    """The answers of all trials, remembered or from children.

    A failure is not remembered: loading the model reports what is wrong with it.
    """
    shapes = [[name, [dict(shape) for shape in each.shapes]] for name, each in trials.items()]
    trial = Trial(
        cache=memory.cache,
        names=tuple(trials),
        facts=["shapes", METHOD, memory.facts, shapes],
        distributions=memory.distributions,
        keeps=is_sound,
        measures=True,
    )

    def attempt() -> TrialResults:
        _log.warning("%s", memory.notice)
        return {name: each.run() for name, each in trials.items()}

    return trial.results(attempt)


def is_sound(answers: TrialResults) -> bool:
    """Whether every answer has a speed, and a shape or None."""
    return all(
        isinstance(each.found.get("tokens_per_s"), float)
        and isinstance(each.found.get("shape", ""), dict | None)
        for each in answers.values()
    )


def run_trial(
    backend: ShapedBackend, shapes: Sequence[Shape], sequences: int
) -> dict[str, float | Shape | None]:
    """The work of the child with a loaded backend."""
    found = None
    for shape in shapes:
        backend.use_shape(shape)
        if invariance.is_invariant(backend, decodes_differ=bool(shape.get("decodes_differ"))):
            found = shape
            break
    backend.use_shape(found or {})
    speed = measure.SpeedMeasurement(backend, sequences).speed() if sequences else 0.0
    return {"tokens_per_s": speed, "shape": found}


def find(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The work of the child."""
    loaded: Any = load(given["backend"], given["settings"])
    with closing(loaded) as backend:
        return run_trial(backend, given["shapes"], given["sequences"])


if __name__ == "__main__":
    answer(find)
