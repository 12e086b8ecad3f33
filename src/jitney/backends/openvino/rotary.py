"""Rotary embeddings by llama.cpp's rules: how fast each pair of a head turns, and in which layers.

Pure numpy on plain values, any thread. OpenVINO's reader knows only the base. It keeps frequencies
as 16-bit floats where weights are such, and is wrong by a radian after some thousand positions.
`rotary_graph` puts the numbers from here into the graph.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jitney.backends.openvino.families import FACTORS_ANY, FACTORS_SHORT, head_lengths
from jitney.models.gguf import GgufHeader

Floats = npt.NDArray[np.float32]

_BASE = 10_000.0
_TURNS_FAST, _TURNS_SLOW = 32.0, 1.0
"""Turns of a pair over the original length. Yarn does not stretch pairs that turn more often than
the first number, and fully stretches pairs that turn less often than the second."""
_SMOLLM3_PERIOD = 4
"""Every fourth layer of SmolLM3 has no rotary embedding."""


@dataclass(frozen=True, slots=True)
class Rotary:
    """The rotary embedding of one model."""

    frequencies: Floats
    """Radians per position for each pair; 0 for a pair that does not turn."""
    gains: Floats
    """The factor for each pair, in queries and in keys."""
    bare_layers: frozenset[int]
    """Layers without a rotary embedding."""


def read_rotary(header: GgufHeader, factors: Mapping[str, Floats]) -> Rotary:
    """The rotary embedding of a model; `factors` are the tensors that stretch it, by name.

    Where a model has factors for short and for long sequences, this takes the short ones:
    `families` allows no longer sequence for such a model.
    """

    def number(name: str, default: float) -> float:
        value = header.metadata.get(f"{header.architecture}.rope.{name}")
        return float(value) if isinstance(value, int | float) else default

    head, rotated = head_lengths(header)
    pairs = np.arange(rotated // 2)
    base = number("freq_base", _BASE)
    plain = base ** (-2.0 * pairs / rotated)
    kind = header.metadata.get(f"{header.architecture}.rope.scaling.type", "linear")
    chosen = (
        factors.get(FACTORS_SHORT)
        if kind == "longrope"
        else factors.get(FACTORS_ANY, factors.get(FACTORS_SHORT))
    )
    if chosen is not None:
        if chosen.shape != plain.shape:
            raise ValueError(f"it has {chosen.size} rotary factors for {len(plain)} pairs")
        plain = plain / chosen
    # How much longer sequences are than the original; old files have another name for it.
    stretch = number("scaling.factor", number("scale_linear", 0.0)) or 1.0
    factor = 1.0 if kind == "none" else stretch
    frequencies = plain / factor
    gain = number("scaling.attn_factor", 1.0)
    if kind == "yarn":
        original = number("scaling.original_context_length", float(header.context_length or 0))
        kept = _kept(pairs, rotated, base, original)
        frequencies = frequencies * (1.0 - kept) + plain * kept
        gain *= 1.0 + 0.1 * math.log(max(factor, 1.0))
    idle = head // 2 - len(pairs)
    return Rotary(
        frequencies=np.pad(frequencies, (0, idle)).astype(np.float32),
        gains=np.pad(np.full(len(pairs), gain), (0, idle), constant_values=1.0).astype(np.float32),
        bare_layers=_bare_layers(header),
    )


def row_order(header: GgufHeader) -> npt.NDArray[np.int64]:
    """The order of a head's rows in which the first half and the second half form the pairs.

    A head that is rotated as a whole has this order already. Where only its beginning is rotated,
    each half gets one half of the beginning and one half of the rest. The products of queries and
    keys do not change.
    """
    head, rotated = head_lengths(header)
    half, middle = rotated // 2, rotated + (head - rotated) // 2
    parts = ((0, half), (rotated, middle), (half, rotated), (middle, head))
    return np.concatenate([np.arange(*part) for part in parts])


def _kept(
    pairs: npt.NDArray[np.int64], rotated: int, base: float, original: float
) -> npt.NDArray[np.float64]:
    """The share of each pair that Yarn does not stretch: 1 for fast pairs, falling to 0."""

    def place(turns: float) -> float:
        """The pair, as a fraction, that turns this often over the original length."""
        return rotated * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(0.0, math.floor(place(_TURNS_FAST)))
    high = min(rotated - 1.0, math.ceil(place(_TURNS_SLOW)))
    stretched: npt.NDArray[np.float64] = np.clip((pairs - low) / max(0.001, high - low), 0.0, 1.0)
    return 1.0 - stretched


def _bare_layers(header: GgufHeader) -> frozenset[int]:
    if header.architecture != "smollm3":
        return frozenset()
    return frozenset(range(_SMOLLM3_PERIOD - 1, header.layer_count, _SMOLLM3_PERIOD))
