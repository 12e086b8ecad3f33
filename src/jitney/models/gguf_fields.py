"""The fields of a GGUF, read in order: numbers, texts, arrays, and the keys of its metadata.

Pure file reading, any thread, no native code. Every count and length is bounded by the size of the
file or by a `ReadBudget` for all of them together, so a damaged or hostile file only causes a
ModelError. The reader of the package `gguf` has no such checks, and takes about 40 times as long
for a vocabulary. The modules `gguf` and `gguf_vocabulary` know what the values mean.

Tests: tests/unit/models/test_gguf.py.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from jitney.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
KEY_BYTES_MAX = 65_535
KEYS_MAX = 65_536
TENSORS_MAX = 65_536
"""Models have some thousands at most."""
TEXT_BYTES_MAX = 1_048_576
"""A longer text is skipped: no needed text is that long."""
ARRAY_LENGTH_MAX = 4_096
"""A longer array is skipped, unless the caller wants it whole."""
ELEMENTS_MAX = 4_194_304
"""For all arrays of a model together, without those of numbers that are skipped: tokens, types,
scores and merges of the largest vocabulary that is taken. gpt-oss has 0.85 million: 201,088 tokens,
their types, and 446,189 merges."""
READ_BYTES_MAX = 67_108_864
"""For all that is read of a model, without what is skipped. The 0.65 million texts of gpt-oss, at
20 bytes each with their lengths, take 13 MB."""

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
UNSIGNED32, UNSIGNED64 = struct.Struct("<I"), struct.Struct("<Q")

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]
ReadT = TypeVar("ReadT")


@dataclass(slots=True)
class ReadBudget:
    """How much may still be read of one model, in all its parts."""

    bytes_left: int = READ_BYTES_MAX
    elements_left: int = ELEMENTS_MAX


def read_fields(
    path: Path, read: Callable[["GgufFields"], ReadT], budget: ReadBudget | None = None
) -> ReadT:
    """Call `read` with the fields of a file. Raises ModelError when it cannot be read."""
    try:
        if path.is_dir():
            raise ModelError(
                f"{path} is a folder; name a GGUF file (a folder is taken only where its model was "
                "exported for a backend)."
            )
        if path.exists() and not path.is_file():
            raise ModelError(f"{path} is not a regular file; name a GGUF file.")
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            return read(GgufFields(path, file, size, budget or ReadBudget()))
    except FileNotFoundError:
        raise ModelError(
            f"{path} does not exist; a model is the path of a GGUF file on this machine, or a name "
            "on the hub, such as owner/name:quant."
        ) from None
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ModelError(f"{path} cannot be read: {reason}.") from None


def damaged(path: Path, reason: str) -> ModelError:
    """The error for a file with an impossible header."""
    return ModelError(f"{path} has a damaged header: {reason}.")


class GgufFields:
    """One pass over the header of one file: each call reads what comes next."""

    def __init__(self, path: Path, file: BinaryIO, size: int, budget: ReadBudget) -> None:
        """Check the file's type, and that its counts of tensors and keys fit into it."""
        self.path = path
        self.size = size
        self.at = 0
        self._file = file
        self._budget = budget
        self._check_magic()
        self.tensor_count = self.number(UNSIGNED64)
        self._key_count = self.number(UNSIGNED64)
        if self._key_count > KEYS_MAX:
            raise self.damaged(f"it claims {self._key_count} keys")
        if self.tensor_count > TENSORS_MAX:
            raise self.damaged(f"it claims {self.tensor_count} tensors")
        # A key takes at least 13 bytes and a tensor 24.
        end = self.at + self._key_count * 13 + self.tensor_count * 24
        if end > self.size:
            raise self.cut_short(end)

    def metadata(self, *, whole: frozenset[str] = frozenset()) -> dict[str, Value]:
        """The values by their keys. Long values are left out, but for keys in `whole`."""
        metadata: dict[str, Value] = {}
        for _ in range(self._key_count):
            key = self.text(KEY_BYTES_MAX, "a key")
            if key in metadata:
                raise self.damaged(f"the key {key!r} stands twice")
            value = self._value(key, is_whole=key in whole)
            if value is not None:
                metadata[key] = value
        return metadata

    def number(self, form: struct.Struct) -> int:
        """A whole number."""
        return int(form.unpack(self._bytes(form.size))[0])

    def text(self, bytes_max: int, what: str) -> str:
        """A text of at most `bytes_max` bytes, which must be UTF-8."""
        length = self._length()
        if length > bytes_max:
            raise self.damaged(f"{what} has {length} bytes")
        try:
            return self._bytes(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"{what} is not text") from None

    def damaged(self, reason: str) -> ModelError:
        """The error for this file where its header is impossible."""
        return damaged(self.path, reason)

    def cut_short(self, expected: int) -> ModelError:
        """The error for a file that is shorter than it says."""
        return ModelError(
            f"{self.path} is cut short: it should have at least {expected} bytes and has "
            f"{self.size}; fetch it again."
        )

    def _check_magic(self) -> None:
        start = self._file.read(min(64, self.size))
        if not start:
            raise ModelError(f"{self.path} is empty.")
        if start[:4] != MAGIC:
            raise ModelError(f"{self.path} is not a GGUF: it looks like {_looks_like(start)}.")
        if len(start) < 24:
            raise self.cut_short(24)
        version = UNSIGNED32.unpack_from(start, 4)[0]
        if version not in VERSIONS:
            if version & 0xFFFF == 0:
                raise ModelError(f"{self.path} was made for big-endian machines.")
            raise ModelError(
                f"{self.path} is a GGUF of version {version}; versions 2 and 3 can be read: "
                "convert the model again."
            )
        self._file.seek(8)
        self.at = 8

    def _bytes(self, count: int) -> bytes:
        self._spend(count)
        data = self._file.read(count)
        self.at += count
        if len(data) != count:
            raise self.cut_short(self.at)
        return data

    def _spend(self, count: int) -> None:
        self._budget.bytes_left -= count
        if self._budget.bytes_left < 0:
            raise self._too_long()

    def _too_long(self) -> ModelError:
        return self.damaged(f"its keys, values and names take more than {READ_BYTES_MAX} bytes")

    def _skip(self, count: int) -> None:
        if count > self.size - self.at:
            raise self.cut_short(self.at + count)
        self.at += count
        self._file.seek(count, 1)

    def _length(self) -> int:
        length = self.number(UNSIGNED64)
        if length > self.size:
            raise self._overrun(self.at + length, length)
        return length

    def _overrun(self, end: int, length: int) -> ModelError:
        # In a file that was cut short early, a normal length can be larger than the rest.
        if length > max(self.size, ELEMENTS_MAX):
            return self.damaged(f"it claims a text or array of {length} bytes or more")
        return self.cut_short(end)

    def _value(self, key: str, *, is_whole: bool) -> Value | None:
        """A value of the metadata; None for one that is skipped."""
        kind = self.number(UNSIGNED32)
        if kind == _ARRAY:
            return self._array(key, is_whole=is_whole)
        if kind == _STRING:
            length = self._length()
            if length > TEXT_BYTES_MAX:
                if is_whole:
                    raise self.damaged(f"{key} has {length} bytes")
                self._skip(length)
                return None
            return self._bytes(length).decode("utf-8", "replace")
        form = self._form(kind)
        value: Scalar = form.unpack(self._bytes(form.size))[0]
        return value

    def _form(self, kind: int) -> struct.Struct:
        if kind not in _SCALARS:
            raise self.damaged(f"a value has the unknown type {kind}")
        return _SCALARS[kind]

    def _array(self, key: str, *, is_whole: bool) -> tuple[Scalar, ...] | None:
        kind = self.number(UNSIGNED32)
        count = self._length()
        if kind == _STRING:
            self._count_elements(key, count)
            return self._texts(key, count, is_whole=is_whole)
        form = self._form(kind)
        if count > ARRAY_LENGTH_MAX and not is_whole:
            self._skip(count * form.size)
            return None
        self._count_elements(key, count)
        data = self._bytes(count * form.size)
        return tuple(value for (value,) in form.iter_unpack(data))

    def _count_elements(self, key: str, count: int) -> None:
        self._budget.elements_left -= count
        if self._budget.elements_left < 0:
            raise self.damaged(
                f"with the {count} of {key!r} its arrays have more than {ELEMENTS_MAX} elements"
            )

    def _texts(self, key: str, count: int, *, is_whole: bool) -> tuple[str, ...] | None:
        """`count` texts; if they are wanted, they must be UTF-8. The loop runs 100,000 times, so it
        calls little."""
        read, skip, size = self._file.read, self._file.seek, self.size
        texts: list[str] = []
        at = self.at
        end_max = at + self._budget.bytes_left
        try:
            for _ in range(count):
                length = int.from_bytes(read(8), "little")
                at += 8 + length
                if at > size:
                    raise self._overrun(at, length)
                if not is_whole:
                    skip(length, 1)
                    continue
                if at > end_max:
                    raise self._too_long()
                texts.append(read(length).decode("utf-8"))
        except UnicodeDecodeError:
            raise self.damaged(f"element {len(texts)} of {key} is not text") from None
        if is_whole:
            self._spend(at - self.at)
        self.at = at
        return tuple(texts) if is_whole else None


def _looks_like(start: bytes) -> str:
    """What a file that is not a GGUF probably is, from its first bytes."""
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
