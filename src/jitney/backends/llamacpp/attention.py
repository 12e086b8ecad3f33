"""Chooses the attention kernel of llama.cpp and the shape of its passes, by a remembered trial.

Fused attention computes a single token like one of a prompt, as long as few are computed together.
The other kernels are faster for long prompts, and compute a single token in another way. For each
of the two, a trial finds the shape in which all tokens are computed alike, and its speed. Called at
start-up, from any thread. One process tries at a time.

Tests: tests/unit/backends/trials/test_trial.py.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any  # Any: settings are plain values until a backend has checked them

from jitney.backends.llamacpp.passes import PassShape
from jitney.backends.trials.trial import Trial, have_shapes, payload_of

Shapes = Mapping[str, tuple[PassShape, ...]]
"""The shapes to try for each kernel, `on` (fused) and `off`; the cheapest first."""

LONE_TOKENS_MAX = 255
"""The fused kernel divides a sequence among its threads where it is alone and has 512 cells; cells
are counted in steps of 256. It computes 64 or more rows of one sequence in another way."""

SHAPES: Shapes = {
    "on": (
        PassShape(span_rows_max=60, lone_tokens_max=LONE_TOKENS_MAX),
        PassShape(rows_group=4, span_rows_min=4, span_rows_max=60),
    ),
    "off": (
        PassShape(),
        PassShape(span_rows_min=2, decodes_differ=True),
        PassShape(span_rows_min=8, decodes_differ=True),
        PassShape(rows_group=4, span_rows_min=8, decodes_differ=True),
    ),
}
SHAPE_UNTRIED = PassShape(rows_group=4, span_rows_min=8, decodes_differ=True)
"""For models that are too small for a trial, with attention that is not fused."""
SEQUENCES = 4
"""How many sequences a measurement of the speed has."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Whether attention is fused, and the shape in which all tokens are computed alike, if any."""

    is_fused: bool
    shape: PassShape | None


def choose(
    values: Mapping[str, Any],
    shapes: Shapes,
    facts: object,
    distributions: tuple[str, ...],
    cache: Path,
) -> Attention:
    """Try `shapes`. The faster kernel, of those with a shape that computes alike if any has one."""
    listed = {kernel: [asdict(shape) for shape in each] for kernel, each in shapes.items()}
    trial = Trial(
        cache=cache,
        names=tuple(listed),
        facts=["shapes", facts, listed],
        distributions=distributions,
        keeps=have_shapes,
        measures=True,
        notice="Trying which attention kernels are best for this model here, once",
    )
    payloads = {
        kernel: payload_of(
            "llamacpp",
            {**values, "flash_attention": kernel == "on"},
            sequences=SEQUENCES,
            shapes=each,
        )
        for kernel, each in listed.items()
    }
    found = trial.results(payloads)
    alike = [name for name in found if found[name].found.get("shape") is not None]
    best = max(alike or found, key=lambda name: found[name].speed)
    shape = found[best].found.get("shape")
    return Attention(best == "on", None if shape is None else PassShape(**shape))
