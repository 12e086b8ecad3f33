"""A strict reader of GGUF headers: what is in the file, and whether the file is complete.

For a model in several parts, the path is that of the first part, and the header is the sum of all.
Pure file reading, any thread, no native code. Every count, length and offset is checked against the
size of the file before it is used, so a damaged or hostile file only causes a ModelError. The
weights are not read.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from jitney.errors import ModelError
from jitney.models.files import Stamp
from jitney.models.gguf_fields import (
    KEY_BYTES_MAX,
    UNSIGNED32,
    UNSIGNED64,
    GgufFields,
    ReadBudget,
    Value,
    damaged,
    read_fields,
)
from jitney.models.parts import part_name, parts_of

DIMENSIONS_MAX = 4
WEIGHTS_MAX = 2**50
ALIGNMENT_DEFAULT = 32
FAMILY_CHARACTERS_MAX = 80
"""For the name of an architecture, which stands in sentences."""
_LAYER = re.compile(r"^blk\.\d+\.")
_RECURRENT = (
    ".ssm_conv1d.weight",
    ".ssm_conv1d_q.weight",
    ".shortconv.conv.weight",
    ".time_mix_w1.weight",
)
"""One tensor of each layer that keeps a state: Mamba and gated delta nets, Kimi's, LFM2's, RWKV."""


# Also in the package `gguf`, which loads numpy: too much for `jitney backends`.
_PACKINGS: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
"""How weights are stored: the name of the type, the weights of a block and its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """The header of a GGUF. `metadata` is without the vocabulary and long texts."""

    architecture: str
    context_length: int | None
    layer_count: int
    embedding_length: int
    head_count: int
    parameter_count: int
    kv_bytes_per_token: int
    """Keys and values over all layers, as 16-bit floats; 0 where the header does not say."""
    state_bytes: int
    """The recurrent state of a sequence, as 32-bit floats; 0 where no layer keeps one."""
    file_bytes: int
    """Of all parts together."""
    weight_types: frozenset[str]
    """How its weights are stored, by llama.cpp's names."""
    tensor_kinds: frozenset[str]
    """Names of its tensors without the number of the layer, such as "attn_q.weight"."""
    metadata: Mapping[str, Value]
    part_count: int = 1
    head_lengths: tuple[int, ...] = ()
    """The numbers of a key and of a value, of one head."""


def read_header(path: Path) -> GgufHeader:
    """The header of a whole GGUF. Raises ModelError when it is missing, damaged or cut short.

    A start needs it several times, so the latest ones are remembered until a file changes.
    """
    return _read_header(path, tuple(map(_stamp, parts_of(path))))


def head_bytes(path: Path) -> int:
    """Where the weights of a GGUF of one part begin. Raises ModelError as `read_header` does."""
    tensors = _Tensors()
    read_fields(path, tensors.add, tensors.budget)
    return tensors.head_bytes


def _stamp(path: Path) -> Stamp | None:
    try:
        return Stamp.of(path)
    except (OSError, ValueError):
        return None  # Reading it says what is wrong.


@lru_cache(maxsize=4)
def _read_header(path: Path, _stamps: tuple[Stamp | None, ...]) -> GgufHeader:
    tensors = _Tensors()
    metadata = read_fields(path, tensors.add, tensors.budget)
    count = _part_count(path, metadata)
    for number, part in enumerate(parts_of(path)[1:count], start=2):
        if not part.exists():
            raise ModelError(
                f"{path} is the first of {count} parts, and {part.name} is not beside it; fetch "
                "all of them."
            )
        # A later part has no metadata but its number.
        if _split(read_fields(part, tensors.add, tensors.budget)) != (count, number - 1):
            raise damaged(part, f"it does not say that it is part {number} of {count}")
    family = metadata.get("general.architecture")
    if not isinstance(family, str) or not 1 <= len(family) <= FAMILY_CHARACTERS_MAX:
        raise damaged(path, "it does not say which architecture the model has")
    prefix = f"{family}."
    own = {
        key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)
    }
    return GgufHeader(
        architecture=family,
        context_length=_whole(own.get("context_length")),
        layer_count=_largest(own, "block_count"),
        embedding_length=_largest(own, "embedding_length"),
        head_count=_largest(own, "attention.head_count"),
        parameter_count=tensors.parameters,
        kv_bytes_per_token=_kv_bytes_per_token(own, tensors),
        state_bytes=_state_bytes(own, tensors.recurrent_count),
        file_bytes=tensors.file_bytes,
        weight_types=frozenset(tensors.types),
        tensor_kinds=frozenset(tensors.kinds),
        metadata=metadata,
        part_count=count,
        head_lengths=_head_lengths(own),
    )


def _part_count(path: Path, metadata: Mapping[str, Value]) -> int:
    """The number of parts. Raises ModelError when this file is not the first part."""
    count, number = _split(metadata)
    if count <= 1:
        return 1
    named = part_name(path.name)
    if named is None or named.count != count:
        raise ModelError(
            f"{path} is one of {count} parts, and its name does not say so; give all of them the "
            f"names they were published under, which end in -00001-of-{count:05}.gguf."
        )
    if number != 0 or named.number != 1:
        raise ModelError(
            f"{path} is part {number + 1} of {count}; name the first, {parts_of(path)[0].name}."
        )
    return count


def _split(metadata: Mapping[str, Value]) -> tuple[int, int]:
    """The count of parts and the number of this one, from 0, as the file says."""
    count = _whole(metadata.get("split.count")) or 0
    return count, _whole(metadata.get("split.no")) or 0


@dataclass(slots=True)
class _Tensors:
    """The sums over the tensors of all parts."""

    budget: ReadBudget = field(default_factory=ReadBudget)
    file_bytes: int = 0
    parameters: int = 0
    types: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    recurrent_count: int = 0
    """Layers that keep a state."""
    attention_count: int = 0
    """Layers with attention."""
    head_bytes: int = 0
    """What stands before the weights of the last file."""

    def add(self, fields: GgufFields) -> Mapping[str, Value]:
        """Add a file, and check that its tensors lie inside it. Returns the file's metadata."""
        metadata = fields.metadata()
        end = 0
        alignment = metadata.get("general.alignment", ALIGNMENT_DEFAULT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise fields.damaged(f"its alignment is {alignment!r}")
        for _ in range(fields.tensor_count):
            name = fields.text(KEY_BYTES_MAX, "the name of a tensor")
            weights = _read_weights(fields, name)
            kind = fields.number(UNSIGNED32)
            type_name, block_weights, block_bytes = _PACKINGS.get(kind, (f"number {kind}", 1, 0))
            offset = fields.number(UNSIGNED64)
            if offset % alignment or offset > fields.size * 64:
                raise fields.damaged(f"the tensor {name!r} begins at {offset}")
            end = max(end, offset + -(-weights // block_weights) * block_bytes)
            self.parameters += weights
            self.types.add(type_name)
            self.kinds.add(_LAYER.sub("", name))
            self.recurrent_count += name.endswith(_RECURRENT)
            self.attention_count += name.endswith(".attn_output.weight")
        self.head_bytes = fields.at
        data = -(-fields.at // alignment) * alignment
        if fields.tensor_count and data + end > fields.size:
            raise fields.cut_short(data + end)
        self.file_bytes += fields.size
        return metadata


def _read_weights(fields: GgufFields, name: str) -> int:
    """Read the dimensions of a tensor; the number of its weights."""
    dimensions = fields.number(UNSIGNED32)
    if not 1 <= dimensions <= DIMENSIONS_MAX:
        raise fields.damaged(f"the tensor {name!r} has {dimensions} dimensions")
    weights = 1
    for _ in range(dimensions):
        weights *= fields.number(UNSIGNED64)
    if not 1 <= weights <= WEIGHTS_MAX:
        raise fields.damaged(f"the tensor {name!r} has {weights} weights")
    return weights


def _kv_bytes_per_token(own: Mapping[str, Value], tensors: _Tensors) -> int:
    heads = _largest(own, "attention.head_count")
    heads_kv = _numbers(own, "attention.head_count_kv") or [heads]
    layers = _largest(own, "block_count") if len(heads_kv) == 1 else 1
    if tensors.recurrent_count:
        layers = min(layers, tensors.attention_count)
    return layers * sum(heads_kv) * sum(_head_lengths(own)) * 2


def _head_lengths(own: Mapping[str, Value]) -> tuple[int, ...]:
    heads = _largest(own, "attention.head_count")
    head = _largest(own, "embedding_length") // heads if heads else 0
    return tuple(_largest(own, f"attention.{kind}_length") or head for kind in ("key", "value"))


def _state_bytes(own: Mapping[str, Value], layer_count: int) -> int:
    """At least one where layers keep a state, whatever else the header says."""
    if not layer_count:
        return 0
    width, inner, state = (
        _largest(own, key) for key in ("embedding_length", "ssm.inner_size", "ssm.state_size")
    )
    channels = inner + 2 * _largest(own, "ssm.group_count") * state
    convolved = max(_largest(own, "ssm.conv_kernel") - 1, 0) * channels
    convolved += max(_largest(own, "shortconv.l_cache") - 1, 0) * width
    mixed = inner * state + width * _largest(own, "wkv.head_size")
    # Kimi's, and others with a decay for each number of a head.
    head = _largest(own, "kda.head_dim")
    of_heads = head * _largest(own, "attention.head_count")
    convolved += 3 * max(_largest(own, "ssm.conv_kernel") - 1, 0) * of_heads
    mixed += head * of_heads
    return max(4 * layer_count * (convolved + mixed), 1)


def _largest(own: Mapping[str, Value], key: str) -> int:
    return max(_numbers(own, key), default=0)


def _numbers(own: Mapping[str, Value], key: str) -> list[int]:
    """One number for the model, or one for each layer."""
    value = own.get(key, ())
    values = value if isinstance(value, tuple) else (value,)
    return [max(0, _whole(each) or 0) for each in values]


def _whole(value: Value | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
