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

from jitney.backends.kind import Values
from jitney.backends.trials.trial import payload_of, try_shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class PassShape:
    """The rows of a pass. In some shapes llama.cpp computes all tokens alike."""

    rows_group: int = 1
    """The number of rows of a pass is a multiple of this. So is the number of wanted rows."""
    span_rows_min: int = 1
    """A piece of a prompt has at least this many rows."""
    span_rows_max: int = 512
    """A piece has at most this many rows: larger ones are no faster and need more work space."""
    lone_tokens_max: int = 0
    """A longer sequence is only computed together with a neighbouring slot; 0 means no limit."""
    decodes_differ: bool = False
    """Whether a single token is rounded in another way than one in a piece of a prompt."""


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
