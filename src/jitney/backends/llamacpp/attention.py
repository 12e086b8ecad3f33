"""Chooses the attention kernel of llama.cpp and the shape of its passes, by a remembered trial.

Fused attention computes a single token like one of a prompt, as long as few are computed together.
The other kernels are faster for long prompts, and compute a single token in another way. For each
of the two, a trial finds the shape in which all tokens are computed alike, and its speed. Called at
start-up, from any thread. One process tries at a time.

Tests: tests/unit/backends/trials/test_trial.py.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from jitney.backends.kind import Values
from jitney.backends.llamacpp.passes import PassShape
from jitney.backends.trials.trial import payload_of, try_shapes

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
        # A trial may not see it, but one token in hundreds differs from the same in a span.
        PassShape(span_rows_min=2, decodes_differ=True),
        PassShape(span_rows_min=8, decodes_differ=True),
        PassShape(rows_group=4, span_rows_min=8, decodes_differ=True),
    ),
}
SHAPE_UNTRIED = asdict(PassShape(rows_group=4, span_rows_min=8, decodes_differ=True))
"""For models that are too small for a trial, with attention that is not fused."""
SEQUENCES = 4
"""How many sequences a measurement of the speed has."""


def choose(
    values: Values, shapes: Shapes, facts: object, distributions: tuple[str, ...], cache: Path
) -> Values:
    """Try `shapes`. The faster kernel, of those with a shape that computes alike if any has one."""
    payloads = {
        kernel: payload_of(
            "llamacpp",
            {**values, "flash_attention": kernel == "on"},
            sequences=SEQUENCES,
            shapes=map(asdict, each),
        )
        for kernel, each in shapes.items()
    }
    notice = "Trying which attention kernels are best for this model here, once"
    found = try_shapes(payloads, facts, distributions, cache, notice)
    alike = [name for name in found if found[name].found.get("shape") is not None]
    best = max(alike or found, key=lambda name: found[name].speed)
    return attention_values(best == "on", found[best].found.get("shape"))


def attention_values(is_fused: bool, shape: Values | None) -> Values:
    """The values for a kernel, and for the shape in which it computes all tokens alike, if any."""
    return {"flash_attention": is_fused, "batch_invariant": shape is not None, **(shape or {})}
