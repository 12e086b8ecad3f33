"""GGUF in parts: which files belong together, by the names that llama.cpp's splitter gives them.

`name-00001-of-00003.gguf` is the first of three. Names and sizes only, nothing is read. Any thread.
"""

import re
from dataclasses import dataclass
from pathlib import Path

PARTS_MAX = 1000
_PART = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PartName:
    """What the name of a part says: `stem` is the same for all of them, numbers begin at 1."""

    stem: str
    number: int
    count: int


def part_name(name: str) -> PartName | None:
    """What the name of a file says of its part; None when it is whole by its name."""
    matched = _PART.fullmatch(name)
    if matched is None:
        return None
    number, count = int(matched[2]), int(matched[3])
    return PartName(matched[1], number, count) if 1 <= number <= count <= PARTS_MAX else None


def parts_of(model: Path) -> tuple[Path, ...]:
    """All files of a model, the first one first; the file itself where it is whole."""
    part = part_name(model.name)
    if part is None:
        return (model,)
    names = (
        f"{part.stem}-{number:05}-of-{part.count:05}{model.suffix}"
        for number in range(1, part.count + 1)
    )
    return tuple(model.with_name(name) for name in names)


def size_of(model: Path) -> int:
    """Bytes of all files of a model that are there. Raises OSError when it is not there itself."""
    others = [each for each in parts_of(model) if each != model and each.exists()]
    return model.stat().st_size + sum(each.stat().st_size for each in others)
