"""Chooses the attention kernel of llama.cpp and the shape of its passes, by a remembered trial.

Fused attention computes a single token like one of a prompt, as long as few are computed together.
The other kernels are faster for long prompts, and compute a single token in another way. For each
of the two, a trial finds the shape in which all tokens are computed alike, and its speed. Called at
start-up, from any thread. One process tries at a time.

Tests: tests/unit/backends/trials/test_trial.py.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from jitney.backends.kind import Values
from jitney.backends.trials.trial import payload_of, try_shapes
from jitney.config import Settings
from jitney.models.gguf import GgufHeader


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


PARAMETERS_MIN = 20_000_000
"""A model with fewer weights gets no trial of its attention."""

LONE_TOKENS_MAX = 255
"""The fused kernel divides a sequence among its threads where it is alone and has 512 cells; cells
are counted in steps of 256. It computes 64 or more rows of one sequence in another way."""

SHAPES: Mapping[str, tuple[PassShape, ...]] = {
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
"""The shapes to try for each kernel, `on` (fused) and `off`; the cheapest first."""
SHAPE_UNTRIED = asdict(PassShape(rows_group=4, span_rows_min=8, decodes_differ=True))
"""For models that are too small for a trial, with attention that is not fused."""
SEQUENCES = 4
"""How many sequences a measurement of the speed has."""


def choose(
    values: Values, settings: Settings, header: GgufHeader, distributions: tuple[str, ...]
) -> Values:
    """The kernel and the shape of its passes; tried once for this model, and remembered.

    It is the faster kernel, of those with a shape that computes alike if any has one.
    """
    is_alike = settings.batch_invariant != "off"
    is_fused = settings.flash_attention == "on"
    if header.parameter_count < PARAMETERS_MIN:
        return _values(is_fused, SHAPE_UNTRIED if is_alike and not is_fused else None)
    kernels = ["off", "on"] if settings.flash_attention == "auto" else [settings.flash_attention]
    if len(kernels) == 1 and not is_alike:
        return _values(is_fused, None)
    payloads = {
        kernel: payload_of(
            "llamacpp",
            {**values, "flash_attention": kernel == "on"},
            sequences=SEQUENCES,
            shapes=map(asdict, SHAPES[kernel] if is_alike else ()),
        )
        for kernel in kernels
    }
    facts = [
        [header.architecture, header.parameter_count, header.kv_bytes_per_token],
        [sorted(header.weight_types), values["threads"], values["kv_type"]],
    ]
    notice = "Trying which attention kernels are best for this model here, once"
    found = try_shapes(payloads, facts, distributions, settings.cache_dir, notice)
    alike = [name for name in found if found[name].found.get("shape") is not None]
    best = max(alike or found, key=lambda name: found[name].speed)
    return _values(best == "on", found[best].found.get("shape"))


def _values(is_fused: bool, shape: Values | None) -> Values:
    """The values for a kernel, and for the shape in which it computes all tokens alike, if any."""
    return {"flash_attention": is_fused, "batch_invariant": shape is not None, **(shape or {})}
