"""The names of tokens: how vocabularies in model files write bytes as text.

Pure functions, any thread. A byte-level vocabulary, as of GPT-2, has a character for each byte. A
vocabulary with scores has a mark in place of a space, and tokens for bytes with names like
`<0x0A>`.
"""

import re
from functools import cache

SPACE_MARK = "\u2581"
_BYTE_NAME = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def byte_characters() -> tuple[str, ...]:
    """The character for each byte: the same one if it is visible, else one above 255."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in visible else next(others)) for byte in range(256))


_BYTE_OF = {character: bytes([byte]) for byte, character in enumerate(byte_characters())}


def bytes_of_characters(name: str) -> bytes:
    """The bytes of a byte-level token; a character without a byte becomes `[UNK_BYTE_...]`."""
    return b"".join(
        _BYTE_OF.get(each) or f"[UNK_BYTE_0x{each.encode().hex()}{name}]".encode() for each in name
    )


def bytes_without_marks(name: str) -> bytes:
    """The bytes of a token whose name has marks in place of spaces."""
    return name.replace(SPACE_MARK, " ").encode()


def byte_name(byte: int) -> str:
    """The name of the token of one byte."""
    return f"<0x{byte:02X}>"


def named_byte(name: str) -> bytes | None:
    """The byte that a name like `<0x0A>` stands for; None for any other name."""
    found = _BYTE_NAME.fullmatch(name)
    return None if found is None else bytes.fromhex(found[1])
