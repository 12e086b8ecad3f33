"""The bytes of a stored prefix: what it belongs to, its tokens, the memory of a slot, a digest.

    magic | length of the head | head | tokens | memory | digest of all before it

A damaged memory must never reach a library, which may believe any number in it: so nothing is read
before the digest is seen to be right. What is not whole, or of another version, is None. Pure.

Tests: tests/unit/backends/shared/test_prefix_files.py.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

import msgspec

MAGIC = b"jitney prefix\n"
VERSION = 1
DIGEST_BYTES = 32
HEAD_BYTES_MAX = 1024
START_BYTES = len(MAGIC) + 4 + HEAD_BYTES_MAX
"""At most so many bytes stand before the tokens."""

_LENGTH = struct.Struct("<I")

Piece: TypeAlias = bytes | bytearray | memoryview


class PrefixHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stored prefix belongs to, and how long it is."""

    version: int
    model: str
    shape: str
    scope: str
    token_count: int
    usable_count: int
    """So many tokens at the head may be used by others: they were computed as a prompt."""
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class PrefixRecord:
    """A prefix as it was stored."""

    head: PrefixHead
    tokens: tuple[int, ...]
    memory: memoryview


_DECODER = msgspec.msgpack.Decoder(PrefixHead)


def encoded(head: PrefixHead, tokens: Sequence[int], memory: Iterable[Piece]) -> Iterator[Piece]:
    """The bytes of a record, piece by piece."""
    digest, packed = blake2b(digest_size=DIGEST_BYTES), msgspec.msgpack.encode(head)
    assert len(packed) <= HEAD_BYTES_MAX, len(packed)
    for piece in (MAGIC, _LENGTH.pack(len(packed)), packed, token_bytes(tokens), *memory):
        digest.update(piece)
        yield piece
    yield digest.digest()


def decoded(content: Piece) -> PrefixRecord | None:
    """The record in these bytes, if they are all of it and nothing else."""
    whole = memoryview(content)
    if len(whole) < DIGEST_BYTES:
        return None
    inside, digest = whole[:-DIGEST_BYTES], whole[-DIGEST_BYTES:]
    if blake2b(inside, digest_size=DIGEST_BYTES).digest() != digest:
        return None
    found = head_of(inside)
    if found is None:
        return None
    head, start = found
    end = start + 4 * head.token_count
    if end + head.memory_bytes != len(inside):
        return None
    return PrefixRecord(head, tokens_of(inside[start:end]), inside[end:])


def head_of(content: Piece) -> tuple[PrefixHead, int] | None:
    """The head of a record and where its tokens start, without a look at the digest."""
    fixed = len(MAGIC) + _LENGTH.size
    if len(content) < fixed or content[: len(MAGIC)] != MAGIC:
        return None
    (length,) = _LENGTH.unpack_from(content, len(MAGIC))
    if length > HEAD_BYTES_MAX:
        return None
    try:
        head = _DECODER.decode(content[fixed : fixed + length])
    except ValueError:
        return None
    is_whole = head.version == VERSION and 0 <= head.usable_count <= head.token_count
    return (head, fixed + length) if is_whole and head.memory_bytes >= 0 else None


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Tokens as numbers of 32 bits, the same on every processor."""
    return struct.pack(f"<{len(tokens)}I", *tokens)


def tokens_of(content: Piece) -> tuple[int, ...]:
    """The tokens in these bytes."""
    return struct.unpack(f"<{len(content) // 4}I", content)
