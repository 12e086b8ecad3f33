"""Damaged GGUF files from a seed: which fields a file has, and how one of them is changed. Pure."""

import random
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of each type of value that is one number."""
TEXT, ARRAY = 8, 9
EXTREMES = (0, 1, 2, 3, 7, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)


@dataclass(frozen=True, slots=True)
class Field:
    """Some bytes of a header, and what they are."""

    kind: str
    name: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Mutant:
    """A damaged file, the kind of damage, and the damage in words."""

    content: bytes
    kind: str
    what: str


class _Walk:
    """Goes through the header of a good file, field by field."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 4

    def number(self, kind: str, name: str, size: int) -> tuple[int, Field]:
        raw = self._content[self.at : self.at + size]
        field = Field(kind, name, self.at, size)
        self.at += size
        return int.from_bytes(raw, "little"), field

    def text(self, name: str) -> Iterator[Field]:
        length, field = self.number("length", name, 8)
        yield field
        if length:
            yield Field("text", name, self.at, length)
        self.at += length

    def last_text(self, start: int, size: int) -> str:
        return self._content[start : start + size].decode("utf-8", "replace")


def fields_of(content: bytes) -> list[Field]:
    """All fields of a header, in order; of long arrays of texts only the first sixteen."""
    walk = _Walk(content)
    found: list[Field] = []
    found.append(walk.number("count", "version", 4)[1])
    tensors, field = walk.number("count", "tensors", 8)
    found.append(field)
    values, field = walk.number("count", "values", 8)
    found.append(field)
    for _ in range(values):
        found += _value_fields(walk)
    for _ in range(tensors):
        found += _tensor_fields(walk)
    return found


def _named(walk: _Walk, what: str) -> tuple[str, list[Field]]:
    """A name that comes first in an entry."""
    made = list(walk.text(what))
    name = walk.last_text(made[1].start, made[1].size) if len(made) > 1 else what
    return name, made


def _value_fields(walk: _Walk) -> list[Field]:
    name, found = _named(walk, "key")
    kind, field = walk.number("type", name, 4)
    found.append(field)
    if kind == TEXT:
        found += walk.text(name)
    elif kind == ARRAY:
        kind, field = walk.number("type", f"{name}[]", 4)
        found.append(field)
        count, field = walk.number("count", name, 8)
        found.append(field)
        if kind == TEXT:
            for number in range(count):
                texts = walk.text(f"{name}[{number}]")
                found += texts if number < 16 else _passed(texts)
        else:
            found.append(Field("value", name, walk.at, count * SIZES[kind]))
            walk.at += count * SIZES[kind]
    else:
        found.append(walk.number("value", name, SIZES[kind])[1])
    return found


def _passed(fields: Iterator[Field]) -> list[Field]:
    for _ in fields:
        pass
    return []


def _tensor_fields(walk: _Walk) -> list[Field]:
    name, found = _named(walk, "tensor")
    dimensions, field = walk.number("count", f"dimensions of {name}", 4)
    found.append(field)
    found += [walk.number("size", name, 8)[1] for _ in range(dimensions)]
    found.append(walk.number("type", name, 4)[1])
    found.append(walk.number("offset", name, 8)[1])
    return found


Change = Callable[[bytes, list[Field], random.Random], tuple[bytes, str]]


def _flip(content: bytes, start: int, end: int, draw: random.Random) -> tuple[bytes, str]:
    made, bits = bytearray(content), []
    for _ in range(draw.randint(1, 8)):
        at, bit = draw.randrange(start, end), draw.randrange(8)
        made[at] ^= 1 << bit
        bits.append(f"{at}.{bit}")
    return bytes(made), f"bits {' '.join(bits)}"


def _header_bits(content: bytes, fields: list[Field], draw: random.Random) -> tuple[bytes, str]:
    return _flip(content, 0, fields[-1].start + fields[-1].size, draw)


def _data_bits(content: bytes, fields: list[Field], draw: random.Random) -> tuple[bytes, str]:
    return _flip(content, fields[-1].start + fields[-1].size, len(content), draw)


def _cut(content: bytes, fields: list[Field], draw: random.Random) -> tuple[bytes, str]:
    header = fields[-1].start + fields[-1].size
    at = draw.randrange(0, header) if draw.random() < 0.5 else draw.randrange(header, len(content))
    return content[:at], f"cut at {at} of {len(content)}"


def _block(content: bytes, fields: list[Field], draw: random.Random) -> tuple[bytes, str]:
    """A piece of the data as a broken disk or download leaves it."""
    start = draw.randrange(fields[-1].start, len(content))
    size = min(draw.choice((512, 4096, 65_536)), len(content) - start)
    byte = draw.choice((b"\0", b"\xff"))
    return content[:start] + byte * size + content[start + size :], f"{size} of {byte!r} at {start}"


def _change_of(kind: str) -> Change:
    """Change one field of this kind: a number to another one, or a text to other bytes."""

    def change(content: bytes, fields: list[Field], draw: random.Random) -> tuple[bytes, str]:
        field = draw.choice([each for each in fields if each.kind == kind])
        old = content[field.start : field.start + field.size]
        new = draw.randbytes(field.size) if field.size > 8 or kind == "text" else _other(old, draw)
        made = content[: field.start] + new + content[field.start + field.size :]
        return made, f"{kind} of {field.name}: {old[:16].hex()} to {new[:16].hex()}"

    return change


def _other(old: bytes, draw: random.Random) -> bytes:
    """Another number of as many bytes: an extreme one, a neighbour, or any."""
    size = len(old)
    number = int.from_bytes(old, "little")
    drawn = draw.choice(
        (draw.choice(EXTREMES), number + draw.choice((-1, 1)), draw.getrandbits(8 * size))
    )
    made = drawn % (1 << 8 * size)
    if size == 4 and draw.random() < 0.1:
        return struct.pack("<f", draw.choice((float("nan"), float("inf"), -1.0, 1e30)))
    return (made if made != number else (made + 1) % (1 << 8 * size)).to_bytes(size, "little")


KINDS: Mapping[str, Change] = {
    "header bits": _header_bits,
    "data bits": _data_bits,
    "cut": _cut,
    "block": _block,
    **{
        kind: _change_of(kind)
        for kind in ("count", "length", "text", "type", "value", "size", "offset")
    },
}


def make_mutant(content: bytes, seed: int) -> Mutant:
    """The mutant of this seed; never equal to what it was made of."""
    draw = random.Random(seed)
    kind = draw.choice(list(KINDS))
    fields = fields_of(content)
    made, what = KINDS[kind](content, fields, draw)
    return Mutant(made, kind, what) if made != content else make_mutant(content, seed + 1_000_003)
