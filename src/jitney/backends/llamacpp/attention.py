"""Which attention kernel llama.cpp is to use, and in which shape of pass: tried, and remembered.

Fused attention computes a single token as it computes one of a prompt, as long as few are computed
together; the other kernels are faster for long prompts, and compute a single token otherwise. For
each of the two a trial finds the shape in which all is alike, and its speed. Called at start-up,
from any thread; one process tries at a time.

Tests: tests/unit/backends/trials/test_shape_trial.py.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any  # Any: settings are plain values until a backend has checked them

from jitney.backends.llamacpp.shape import Shape
from jitney.backends.trials import invariance
from jitney.backends.trials.shape_trial import ShapeMemory, ShapeTrial, try_shapes

Shapes = Mapping[str, tuple[Shape, ...]]
"""By kernel, `on` and `off`: the shapes to try, the cheapest first."""

LONE_TOKENS_MAX = 255
"""The fused kernel cuts a sequence that is alone and has 512 cells among its threads; cells are
counted in steps of 256. It has another way for 64 rows and more of one sequence."""

SHAPES: Shapes = {
    "on": (
        Shape(span_rows_max=60, lone_tokens_max=LONE_TOKENS_MAX),
        Shape(rows_group=4, span_rows_min=4, span_rows_max=60),
    ),
    "off": (
        Shape(),
        Shape(span_rows_min=2, decodes_differ=True),
        Shape(span_rows_min=8, decodes_differ=True),
        Shape(rows_group=4, span_rows_min=8, decodes_differ=True),
    ),
}
"""What is tried, by whether attention is fused; the cheapest first."""
SHAPE_UNTRIED = Shape(rows_group=4, span_rows_min=8, decodes_differ=True)
"""For models that are too small to be worth a trial, with attention that is not fused."""
SEQUENCES = 4
"""So many take part in a measurement of the speed."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Whether attention is fused, and the shape in which all is computed alike, if there is one."""

    is_fused: bool
    shape: Shape | None


def choose(values: Mapping[str, Any], shapes: Shapes, memory: ShapeMemory) -> Attention:
    """The faster kernel, of those that compute alike if there is one; `shapes` are tried."""
    trials = {
        kernel: ShapeTrial(
            backend="llamacpp",
            settings={
                **values,
                "slot_tokens_max": invariance.SLOT_TOKENS,
                "flash_attention": kernel == "on",
            },
            shapes=[asdict(shape) for shape in each],
            sequences=SEQUENCES,
        )
        for kernel, each in shapes.items()
    }
    found = {name: answer.found for name, answer in try_shapes(trials, memory).items()}
    alike = [name for name in found if found[name].get("shape") is not None]
    best = max(alike or found, key=lambda name: float(found[name].get("tokens_per_s", 0.0)))
    shape = found[best].get("shape")
    return Attention(best == "on", None if shape is None else Shape(**shape))
