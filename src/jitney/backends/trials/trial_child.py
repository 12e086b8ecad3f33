"""The child process of a `Trial`: `python -m jitney.backends.trials.trial_child`, payload on stdin.

A payload with `numbers` tries whether the backend works, on a tiny model. Any other names a model
in its settings, and says what to try with it: shapes of passes, the speed, or one answer.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Protocol  # Any: settings are plain values until a backend has checked them

from jitney.backends.kinds import load
from jitney.backends.trials.invariance import is_invariant
from jitney.backends.trials.measure import SpeedMeasurement
from jitney.backends.trials.numpy_check import check_backend
from jitney.backends.trials.trial_process import answer
from jitney.core.backend import Backend
from jitney.errors import ModelError

ShapeTried = Mapping[str, Any]
"""Settings of a backend about the rows of a pass."""


class ShapedBackend(Backend, Protocol):
    """A backend whose passes can have several shapes."""

    def use_shape(self, shape: ShapeTried) -> None:
        """Use this shape of passes from now on. Every slot is empty."""


def find(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The work of the child. Raises a SetupError."""
    if "numbers" in payload:
        check_backend(payload["backend"], payload["numbers"])
        return {}
    loaded: Any = load(payload["backend"], payload["settings"])
    with closing(loaded) as backend:
        try:
            return try_model(backend, payload["sequences"], payload.get("shapes"))
        except ModelError as error:
            raise ModelError(f"{payload['settings']['model']} cannot be used: {error}") from error


def try_model(
    backend: ShapedBackend, sequences: int, shapes: Sequence[ShapeTried] | None = None
) -> Mapping[str, Any]:
    """What was found with a loaded backend: the speed, and the first shape that computes alike."""
    shape = None
    if shapes is not None:
        shape = first_alike(backend, shapes)
        backend.use_shape(shape or {})
    speed = 0.0
    if sequences:
        speed = SpeedMeasurement(backend, sequences).speed()
    elif shapes is None:
        SpeedMeasurement(backend, 1).compute_answer()
    return {"tokens_per_s": speed, "shape": shape}


def first_alike(backend: ShapedBackend, shapes: Sequence[ShapeTried]) -> ShapeTried | None:
    """The first shape in which every way of computing a sequence has the same outcome."""
    for shape in shapes:
        backend.use_shape(shape)
        if is_invariant(backend, decodes_differ=bool(shape.get("decodes_differ"))):
            return shape
    return None


if __name__ == "__main__":
    answer(find)
