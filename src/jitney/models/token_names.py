"""How the vocabularies of model files write bytes as text: the names of tokens.

Pure functions, any thread. A byte-level vocabulary, of GPT-2's kind, has a character for each byte.
One that is merged by score has a mark in the place of a space, and tokens named `<0x0A>` for bytes.
"""

import re
from functools import cache

SPACE_MARK = "\u2581"
_BYTE_NAME = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def byte_characters() -> tuple[str, ...]:
    """The character that stands for each byte: itself where it can be seen, else one above 255."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in shown else next(others)) for byte in range(256))


_BYTE_OF = {character: bytes([byte]) for byte, character in enumerate(byte_characters())}


def bytes_of_characters(name: str) -> bytes:
    """The bytes of a byte-level token; a character that stands for none is spelled out."""
    return b"".join(
        _BYTE_OF.get(each) or f"[UNK_BYTE_0x{each.encode().hex()}{name}]".encode() for each in name
    )


def bytes_without_marks(name: str) -> bytes:
    """The bytes of a token whose name has marks in the place of spaces."""
    return name.replace(SPACE_MARK, " ").encode()


def byte_name(byte: int) -> str:
    """The name of the token of one byte."""
    return f"<0x{byte:02X}>"


def named_byte(name: str) -> bytes | None:
    """The byte that a token stands for by its name; None for any other name."""
    found = _BYTE_NAME.fullmatch(name)
    return None if found is None else bytes.fromhex(found[1])
