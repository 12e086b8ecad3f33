"""Foreign text that may be shown: without what controls a terminal. Pure; any thread."""

import unicodedata

_DROPPED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_JOINERS = frozenset("\u200c\u200d")


def printable(text: str) -> str:
    """The text without characters that control a terminal; tabs become spaces."""
    if text.isascii() and text.isprintable():
        return text
    characters = []
    for character in text.replace("\t", "    "):
        category = unicodedata.category(character)
        if character == "\n" or character in _JOINERS or category not in _DROPPED:
            characters.append(character)
    return "".join(characters)
