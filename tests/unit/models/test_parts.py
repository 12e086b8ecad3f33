"""Tests of GGUF in parts: which files belong together, and the header of all of them."""

from pathlib import Path

import pytest

from jitney.backends.openvino.families import refusal
from jitney.errors import ModelError
from jitney.models.gguf import read_header
from jitney.models.parts import part_name, parts_of, size_of
from tests.models_for_tests import TinyShape, write_tiny_gguf

SHAPE = TinyShape(layers=1, width=32, heads=2, heads_kv=1, inner=32)


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    write_tiny_gguf(tmp_path / "m.gguf", shape=SHAPE, part_tensors=5)
    found = sorted(tmp_path.glob("m-*.gguf"))
    assert len(found) == 3
    return found


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_header(path)
    return str(caught.value)


def test_the_header_of_parts_is_that_of_the_whole(tmp_path: Path, parts: list[Path]) -> None:
    """Guards memory budgets and the check of weights, which must count every part."""
    whole_path = tmp_path / "whole.gguf"
    write_tiny_gguf(whole_path, shape=SHAPE)
    header, whole = read_header(parts[0]), read_header(whole_path)
    assert header.part_count == 3
    assert whole.part_count == 1
    assert header.parameter_count == whole.parameter_count
    assert header.weight_types == whole.weight_types
    assert header.file_bytes == sum(each.stat().st_size for each in parts) == size_of(parts[0])


def test_the_converter_is_not_given_parts(parts: list[Path]) -> None:
    """Guards against a model of which only the first part is converted."""
    sentence = refusal(read_header(parts[0]))
    assert sentence == "it comes in 3 parts, and the converter reads single files"


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    """Guards against a load that fails deep in native code."""
    parts[1].unlink()
    assert refused(parts[0]) == (
        f"{parts[0]} is the first of 3 parts, and m-00002-of-00003.gguf is not beside it; fetch "
        "all of them."
    )


def test_a_later_part_leads_to_the_first(parts: list[Path]) -> None:
    """Guards a mistake that is easily made."""
    assert refused(parts[1]) == f"{parts[1]} is part 2 of 3; name the first, m-00001-of-00003.gguf."


def test_other_names_are_refused(parts: list[Path]) -> None:
    """Guards against names by which the other parts cannot be found."""
    renamed = parts[0].rename(parts[0].with_name("first.gguf"))
    assert refused(renamed) == (
        f"{renamed} is one of 3 parts, and its name does not say so; give all of them the names "
        "they were published under, which end in -00001-of-00003.gguf."
    )


@pytest.mark.parametrize("damage", ["cut", "exchanged"])
def test_every_part_is_looked_at(parts: list[Path], damage: str) -> None:
    """Guards against a part that was cut short, or belongs to another place."""
    if damage == "cut":
        parts[2].write_bytes(parts[2].read_bytes()[:-100])
        assert "is cut short" in refused(parts[0])
    else:
        parts[2].write_bytes(parts[1].read_bytes())
        assert "it does not say that it is part 3 of 3" in refused(parts[0])


def test_names_that_only_look_like_parts(tmp_path: Path) -> None:
    """Guards whole files with strange names."""
    for name in ("m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-1-of-3.gguf", "m.gguf"):
        assert part_name(name) is None
        assert parts_of(tmp_path / name) == (tmp_path / name,)
    lone = tmp_path / "m-00001-of-00002.gguf"
    write_tiny_gguf(lone, shape=SHAPE)
    assert read_header(lone).part_count == 1
    assert size_of(lone) == lone.stat().st_size
