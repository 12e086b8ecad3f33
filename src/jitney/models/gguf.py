"""A strict reader of GGUF headers: what is in the file, and whether the file is all there.

Pure file reading, any thread, no native code. Every count, length and offset is checked against
the size of the file before it is used, so that a damaged or hostile file costs a ModelError of one
sentence and nothing else. Values are read, never believed: the weights are not looked at.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from jitney.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
KEY_BYTES_MAX = 65_535
KEYS_MAX = 65_536
TENSORS_MAX = 1_000_000
TEXT_KEPT_MAX = 1_048_576
"""A longer text value is skipped: nothing that is kept is that long."""
ARRAY_KEPT_MAX = 4_096
"""Longer arrays are skipped: those are the vocabulary."""
DIMENSIONS_MAX = 4
WEIGHTS_MAX = 2**50
ALIGNMENT_DEFAULT = 32

_STRING, _ARRAY = 8, 9
_SCALARS: Mapping[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_UNSIGNED32, _UNSIGNED64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class _Packing:
    """How a type of weights is stored: so many in a block of so many bytes."""

    weights: int
    size: int


_PACKINGS: Mapping[int, _Packing] = {
    0: _Packing(1, 4),  # F32
    1: _Packing(1, 2),  # F16
    2: _Packing(32, 18),  # Q4_0
    3: _Packing(32, 20),  # Q4_1
    6: _Packing(32, 22),  # Q5_0
    7: _Packing(32, 24),  # Q5_1
    8: _Packing(32, 34),  # Q8_0
    10: _Packing(256, 84),  # Q2_K
    11: _Packing(256, 110),  # Q3_K
    12: _Packing(256, 144),  # Q4_K
    13: _Packing(256, 176),  # Q5_K
    14: _Packing(256, 210),  # Q6_K
    15: _Packing(256, 292),  # Q8_K
    16: _Packing(256, 66),  # IQ2_XXS
    17: _Packing(256, 74),  # IQ2_XS
    18: _Packing(256, 98),  # IQ3_XXS
    19: _Packing(256, 50),  # IQ1_S
    20: _Packing(32, 18),  # IQ4_NL
    21: _Packing(256, 110),  # IQ3_S
    22: _Packing(256, 82),  # IQ2_S
    23: _Packing(256, 136),  # IQ4_XS
    24: _Packing(1, 1),  # I8
    25: _Packing(1, 2),  # I16
    26: _Packing(1, 4),  # I32
    27: _Packing(1, 8),  # I64
    28: _Packing(1, 8),  # F64
    29: _Packing(256, 56),  # IQ1_M
    30: _Packing(1, 2),  # BF16
    34: _Packing(256, 54),  # TQ1_0
    35: _Packing(256, 66),  # TQ2_0
    39: _Packing(32, 17),  # MXFP4
}

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """What a GGUF says about itself. `metadata` leaves out the vocabulary and long texts."""

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
    metadata: Mapping[str, Value]


def read_header(path: Path) -> GgufHeader:
    """The header of a whole GGUF. Raises ModelError when it is missing, damaged or cut short."""
    try:
        if path.is_dir():
            raise ModelError(f"{path} is a folder; name the GGUF file in it.")
        if path.exists() and not path.is_file():
            raise ModelError(f"{path} is not a regular file; name a GGUF file.")
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            return _Reader(path, file, size).read()
    except FileNotFoundError:
        raise ModelError(
            f"{path} does not exist; a model is the path of a GGUF file on this machine."
        ) from None
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ModelError(f"{path} cannot be read: {reason}.") from None


class _Reader:
    """One pass over the header of one file."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self._path = path
        self._file = file
        self._size = size
        self._at = 0

    def read(self) -> GgufHeader:
        self._check_magic()
        tensor_count = self._number(_UNSIGNED64)
        key_count = self._number(_UNSIGNED64)
        # A key takes at least 13 bytes and a tensor 24, so these counts would not fit the file.
        if key_count > min(KEYS_MAX, self._size // 13):
            raise self._damaged(f"it claims {key_count} keys")
        if tensor_count > min(TENSORS_MAX, self._size // 24):
            raise self._damaged(f"it claims {tensor_count} tensors")
        metadata: dict[str, Value] = {}
        for _ in range(key_count):
            key = self._text(KEY_BYTES_MAX, "a key")
            if key in metadata:
                raise self._damaged(f"the key {key!r} stands twice")
            value = self._value(self._number(_UNSIGNED32))
            if value is not None:
                metadata[key] = value
        parameters = self._tensors(tensor_count, metadata)
        return self._header(metadata, tensor_count, parameters)

    def _check_magic(self) -> None:
        start = self._file.read(min(64, self._size))
        if not start:
            raise ModelError(f"{self._path} is empty.")
        if start[:4] != MAGIC:
            raise ModelError(f"{self._path} is not a GGUF: it looks like {_looks_like(start)}.")
        if len(start) < 24:
            raise self._cut_short(24)
        version = _UNSIGNED32.unpack_from(start, 4)[0]
        if version not in VERSIONS:
            if version & 0xFFFF == 0:
                raise ModelError(f"{self._path} was made for big-endian machines.")
            raise ModelError(
                f"{self._path} is a GGUF of version {version}; versions 2 and 3 can be read: "
                "convert the model again."
            )
        self._file.seek(8)
        self._at = 8

    def _bytes(self, count: int) -> bytes:
        if count > self._size - self._at:
            raise self._cut_short(self._at + count)
        data = self._file.read(count)
        if len(data) != count:
            raise ModelError(f"{self._path} became shorter while it was read.")
        self._at += count
        return data

    def _skip(self, count: int) -> None:
        if count > self._size - self._at:
            raise self._cut_short(self._at + count)
        self._at += count
        self._file.seek(count, 1)

    def _number(self, form: struct.Struct) -> int:
        return int(form.unpack(self._bytes(form.size))[0])

    def _length(self) -> int:
        length = self._number(_UNSIGNED64)
        if length > self._size:
            raise self._damaged(f"it claims a text or array of {length} bytes or more")
        return length

    def _text(self, bytes_max: int, what: str) -> str:
        length = self._length()
        if length > bytes_max:
            raise self._damaged(f"{what} has {length} bytes")
        try:
            return self._bytes(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged(f"{what} is not text") from None

    def _value(self, kind: int) -> Value | None:
        """A value of the header; None for one that is skipped."""
        if kind == _ARRAY:
            return self._array()
        if kind == _STRING:
            length = self._length()
            if length > TEXT_KEPT_MAX:
                self._skip(length)
                return None
            return self._bytes(length).decode("utf-8", "replace")
        return self._scalar(kind)

    def _scalar(self, kind: int) -> Scalar:
        form = _SCALARS.get(kind)
        if form is None:
            raise self._damaged(f"a value has the unknown type {kind}")
        value: Scalar = form.unpack(self._bytes(form.size))[0]
        return value

    def _array(self) -> tuple[Scalar, ...] | None:
        kind = self._number(_UNSIGNED32)
        count = self._length()
        if kind == _STRING:
            # Each text takes at least the 8 bytes of its length.
            if count > (self._size - self._at) // 8:
                raise self._cut_short(self._at + count * 8)
            for _ in range(count):
                self._skip(self._length())
            return None
        form = _SCALARS.get(kind)
        if form is None:
            raise self._damaged(f"an array has elements of the type {kind}")
        if count > ARRAY_KEPT_MAX:
            self._skip(count * form.size)
            return None
        data = self._bytes(count * form.size)
        return tuple(value for (value,) in form.iter_unpack(data))

    def _tensors(self, count: int, metadata: Mapping[str, Value]) -> int:
        """Check that every tensor lies inside the file; the number of weights in all of them."""
        end = 0
        parameters = 0
        alignment = metadata.get("general.alignment", ALIGNMENT_DEFAULT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._damaged(f"its alignment is {alignment!r}")
        for _ in range(count):
            name = self._text(KEY_BYTES_MAX, "the name of a tensor")
            weights = self._weights(name)
            packing = _PACKINGS.get(self._number(_UNSIGNED32))
            offset = self._number(_UNSIGNED64)
            if offset % alignment or offset > self._size * 64:
                raise self._damaged(f"the tensor {name!r} begins at {offset}")
            size = 0 if packing is None else -(-weights // packing.weights) * packing.size
            end = max(end, offset + size)
            parameters += weights
        data = -(-self._at // alignment) * alignment
        if count and data + end > self._size:
            raise self._cut_short(data + end)
        return parameters

    def _weights(self, name: str) -> int:
        dimensions = self._number(_UNSIGNED32)
        if not 1 <= dimensions <= DIMENSIONS_MAX:
            raise self._damaged(f"the tensor {name!r} has {dimensions} dimensions")
        weights = 1
        for _ in range(dimensions):
            weights *= self._number(_UNSIGNED64)
        if not 1 <= weights <= WEIGHTS_MAX:
            raise self._damaged(f"the tensor {name!r} has {weights} weights")
        return weights

    def _header(
        self, metadata: Mapping[str, Value], tensor_count: int, parameters: int
    ) -> GgufHeader:
        family = metadata.get("general.architecture")
        if not isinstance(family, str) or not family:
            raise self._damaged("it does not say which architecture the model has")
        sizes = _Sizes(metadata, family)
        name = metadata.get("general.name")
        return GgufHeader(
            architecture=family,
            name=name if isinstance(name, str) else None,
            file_type=_whole(metadata.get("general.file_type")),
            context_length=_whole(metadata.get(f"{family}.context_length")),
            layer_count=sizes.layers,
            embedding_length=sizes.width,
            head_count=sizes.heads,
            tensor_count=tensor_count,
            parameter_count=parameters,
            kv_bytes_per_token=sizes.kv_bytes_per_token(),
            file_bytes=self._size,
            metadata=metadata,
        )

    def _damaged(self, reason: str) -> ModelError:
        return ModelError(f"{self._path} has a damaged header: {reason}.")

    def _cut_short(self, expected: int) -> ModelError:
        return ModelError(
            f"{self._path} is cut short: it should have at least {expected} bytes and has "
            f"{self._size}; fetch it again."
        )


class _Sizes:
    """The numbers that the memory of a token follows from; 0 where the header does not say."""

    def __init__(self, metadata: Mapping[str, Value], family: str) -> None:
        self._metadata = metadata
        self._family = family
        self.layers = self._size("block_count")
        self.width = self._size("embedding_length")
        self.heads = self._largest("attention.head_count")

    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token over all layers, as 16-bit floats."""
        head = self.width // self.heads if self.heads else 0
        key = self._size("attention.key_length") or head
        value = self._size("attention.value_length") or head
        heads = self._metadata.get(f"{self._family}.attention.head_count_kv", self.heads)
        if isinstance(heads, tuple):
            total = sum(max(0, _whole(each) or 0) for each in heads)
        else:
            total = self.layers * max(0, _whole(heads) or 0)
        return total * (key + value) * 2

    def _size(self, key: str) -> int:
        return max(0, _whole(self._metadata.get(f"{self._family}.{key}")) or 0)

    def _largest(self, key: str) -> int:
        value = self._metadata.get(f"{self._family}.{key}", 0)
        values = value if isinstance(value, tuple) else (value,)
        return max((max(0, _whole(each) or 0) for each in values), default=0)


def _whole(value: Value | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _looks_like(start: bytes) -> str:
    """What a file that is no GGUF probably is, from its first bytes."""
    known = (
        (b"version https://git-lfs", "a Git LFS pointer, which stands for a file not fetched yet"),
        (b"PK\x03\x04", "a zip archive or a PyTorch checkpoint"),
        (b"\x1f\x8b", "a gzip archive"),
        (b"tjgg", "a model in llama.cpp's format of before 2023-08; convert it again"),
        (b"lmgg", "a model in llama.cpp's first format; convert it again"),
        (b"fmgg", "a model in llama.cpp's first format; convert it again"),
        (b"\x80\x02", "a Python pickle"),
        (b"\x89HDF", "an HDF5 file"),
    )
    for prefix, name in known:
        if start.startswith(prefix):
            return name
    if start[8:9] == b"{" and len(start) > 8:
        return "a safetensors file; convert it to GGUF"
    text = start.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html")):
        return "a web page, perhaps an error that was saved in its place"
    if text.startswith((b"{", b"[")):
        return "JSON"
    if not any(start):
        return "zeros, perhaps a download that was not finished"
    return "text" if all(32 <= byte < 127 or byte in b"\r\n\t" for byte in start) else "other data"
