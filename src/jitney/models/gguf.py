"""A strict reader of GGUF headers: what is in the file, and whether the file is complete.

For a model in several parts, the path is that of the first part, and the header is the sum of all.
Pure file reading, any thread, no native code. Every count, length and offset is checked against the
size of the file before it is used, so a damaged or hostile file only causes a ModelError. The
weights are not read.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jitney.errors import ModelError
from jitney.models.gguf_fields import (
    KEY_BYTES_MAX,
    UNSIGNED32,
    UNSIGNED64,
    Fields,
    Value,
    damaged,
    read_fields,
)
from jitney.models.parts import part_name, parts_of

DIMENSIONS_MAX = 4
WEIGHTS_MAX = 2**50
ALIGNMENT_DEFAULT = 32
_LAYER = re.compile(r"^blk\.\d+\.")


@dataclass(frozen=True, slots=True)
class _Packing:
    """How a type of weights is stored: `weights` of them in a block of `size` bytes."""

    name: str
    weights: int
    size: int


_PACKINGS: Mapping[int, _Packing] = {
    0: _Packing("F32", 1, 4),
    1: _Packing("F16", 1, 2),
    2: _Packing("Q4_0", 32, 18),
    3: _Packing("Q4_1", 32, 20),
    6: _Packing("Q5_0", 32, 22),
    7: _Packing("Q5_1", 32, 24),
    8: _Packing("Q8_0", 32, 34),
    10: _Packing("Q2_K", 256, 84),
    11: _Packing("Q3_K", 256, 110),
    12: _Packing("Q4_K", 256, 144),
    13: _Packing("Q5_K", 256, 176),
    14: _Packing("Q6_K", 256, 210),
    15: _Packing("Q8_K", 256, 292),
    16: _Packing("IQ2_XXS", 256, 66),
    17: _Packing("IQ2_XS", 256, 74),
    18: _Packing("IQ3_XXS", 256, 98),
    19: _Packing("IQ1_S", 256, 50),
    20: _Packing("IQ4_NL", 32, 18),
    21: _Packing("IQ3_S", 256, 110),
    22: _Packing("IQ2_S", 256, 82),
    23: _Packing("IQ4_XS", 256, 136),
    24: _Packing("I8", 1, 1),
    25: _Packing("I16", 1, 2),
    26: _Packing("I32", 1, 4),
    27: _Packing("I64", 1, 8),
    28: _Packing("F64", 1, 8),
    29: _Packing("IQ1_M", 256, 56),
    30: _Packing("BF16", 1, 2),
    34: _Packing("TQ1_0", 256, 54),
    35: _Packing("TQ2_0", 256, 66),
    39: _Packing("MXFP4", 32, 17),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """The header of a GGUF. `metadata` is without the vocabulary and long texts."""

    architecture: str
    name: str | None
    file_type: int | None
    context_length: int | None
    layer_count: int
    embedding_length: int
    head_count: int
    tensor_count: int
    parameter_count: int
    kv_bytes_per_token: int
    file_bytes: int
    """Of all parts together."""
    weight_types: frozenset[str]
    """How its weights are stored, by llama.cpp's names."""
    tensor_kinds: frozenset[str]
    """Names of its tensors without the number of the layer, such as "attn_q.weight"."""
    metadata: Mapping[str, Value]
    part_count: int = 1


def read_header(path: Path) -> GgufHeader:
    """The header of a whole GGUF. Raises ModelError when it is missing, damaged or cut short."""
    tensors = _Tensors()
    metadata = read_fields(path, tensors.add)
    count = _part_count(path, metadata)
    for number, part in enumerate(parts_of(path)[1:count], start=2):
        if not part.exists():
            raise ModelError(
                f"{path} is the first of {count} parts, and {part.name} is not beside it; fetch "
                "all of them."
            )
        # A later part has no metadata but its number.
        if _split(read_fields(part, tensors.add)) != (count, number - 1):
            raise damaged(part, f"it does not say that it is part {number} of {count}")
    family = metadata.get("general.architecture")
    if not isinstance(family, str) or not family:
        raise damaged(path, "it does not say which architecture the model has")
    sizes = _sizes(metadata, family)
    name = metadata.get("general.name")
    return GgufHeader(
        architecture=family,
        name=name if isinstance(name, str) else None,
        file_type=_whole(metadata.get("general.file_type")),
        context_length=_whole(metadata.get(f"{family}.context_length")),
        layer_count=sizes.layers,
        embedding_length=sizes.width,
        head_count=sizes.heads,
        tensor_count=tensors.count,
        parameter_count=tensors.parameters,
        kv_bytes_per_token=sizes.kv_bytes_per_token,
        file_bytes=tensors.file_bytes,
        weight_types=frozenset(tensors.types),
        tensor_kinds=frozenset(tensors.kinds),
        metadata=metadata,
        part_count=count,
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

    count: int = 0
    file_bytes: int = 0
    parameters: int = 0
    types: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)

    def add(self, fields: Fields) -> Mapping[str, Value]:
        """Add a file, and check that its tensors lie inside it. Returns the file's metadata."""
        counts = fields.counts()
        metadata = fields.metadata(counts.keys)
        end = 0
        alignment = metadata.get("general.alignment", ALIGNMENT_DEFAULT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise fields.damaged(f"its alignment is {alignment!r}")
        for _ in range(counts.tensors):
            name = fields.text(KEY_BYTES_MAX, "the name of a tensor")
            weights = _read_weights(fields, name)
            kind = fields.number(UNSIGNED32)
            packing = _PACKINGS.get(kind)
            offset = fields.number(UNSIGNED64)
            if offset % alignment or offset > fields.size * 64:
                raise fields.damaged(f"the tensor {name!r} begins at {offset}")
            size = 0 if packing is None else -(-weights // packing.weights) * packing.size
            end = max(end, offset + size)
            self.parameters += weights
            self.types.add(f"number {kind}" if packing is None else packing.name)
            self.kinds.add(_LAYER.sub("", name))
        data = -(-fields.at // alignment) * alignment
        if counts.tensors and data + end > fields.size:
            raise fields.cut_short(data + end)
        self.count += counts.tensors
        self.file_bytes += fields.size
        return metadata


def _read_weights(fields: Fields, name: str) -> int:
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


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The numbers that decide the memory of a token; 0 where the header does not say."""

    layers: int
    width: int
    heads: int
    kv_bytes_per_token: int
    """Keys and values over all layers, as 16-bit floats."""


def _sizes(metadata: Mapping[str, Value], family: str) -> _Sizes:
    def numbers(key: str) -> list[int]:
        """One for the model, or one for each layer."""
        value = metadata.get(f"{family}.{key}", ())
        values = value if isinstance(value, tuple) else (value,)
        return [max(0, _whole(each) or 0) for each in values]

    def size(key: str) -> int:
        return max(numbers(key), default=0)

    layers, width = size("block_count"), size("embedding_length")
    heads = size("attention.head_count")
    head = width // heads if heads else 0
    key_value = (size("attention.key_length") or head) + (size("attention.value_length") or head)
    heads_kv = numbers("attention.head_count_kv") or [heads]
    total = sum(heads_kv) if len(heads_kv) > 1 else layers * heads_kv[0]
    return _Sizes(layers, width, heads, total * key_value * 2)


def _whole(value: Value | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
