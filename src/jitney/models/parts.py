"""GGUF models in several files: which files belong together, by the names of llama.cpp's splitter.

`name-00001-of-00003.gguf` is the first of three. Uses names and sizes only. Any thread.
"""

import re
from dataclasses import dataclass
from pathlib import Path

PARTS_MAX = 1000
_PART = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PartName:
    """The name of a part. All parts have the same `stem`; numbers begin at 1."""

    stem: str
    number: int
    count: int


def part_name(name: str) -> PartName | None:
    """The part that a file name describes; None if it is not the name of a part."""
    matched = _PART.fullmatch(name)
    if matched is None:
        return None
    number, count = int(matched[2]), int(matched[3])
    return PartName(matched[1], number, count) if 1 <= number <= count <= PARTS_MAX else None


def parts_of(model: Path) -> tuple[Path, ...]:
    """All files of a model in order; only the file itself if it is not in parts."""
    part = part_name(model.name)
    if part is None:
        return (model,)
    names = (
        f"{part.stem}-{number:05}-of-{part.count:05}{model.suffix}"
        for number in range(1, part.count + 1)
    )
    return tuple(model.with_name(name) for name in names)


def size_of(model: Path) -> int:
    """The bytes of all existing files of a model. Raises OSError if `model` is missing."""
    others = [each for each in parts_of(model) if each != model and each.exists()]
    return model.stat().st_size + sum(each.stat().st_size for each in others)
