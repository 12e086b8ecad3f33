"""Tests of `benchmarks.mutations`: every kind of damage happens, and a seed gives the same file."""

from collections import Counter

import pytest

from benchmarks.mutants import source_of, table
from benchmarks.mutations import KINDS, fields_of, make_mutant
from tests.models_for_tests import write_tiny_gguf


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("mutants") / "good.gguf"
    write_tiny_gguf(path)
    return path.read_bytes()


def test_fields_cover_the_header_without_overlap(good: bytes) -> None:
    """Guards the kinds: a field at a wrong place would be a flipped bit and nothing more."""
    fields = fields_of(good)
    assert {each.kind for each in fields} == {
        *("count", "length", "text", "type", "value", "size", "offset")
    }
    ends = [each.start + each.size for each in fields]
    assert all(end <= each.start for end, each in zip(ends, fields[1:], strict=False))
    name = next(each for each in fields if each.name == "general.name" and each.kind == "text")
    assert good[name.start : name.start + name.size] == b"tiny"


def test_a_seed_makes_the_same_file_again(good: bytes) -> None:
    """Guards the report: a seed is all that it says of a miss."""
    for seed in range(20):
        mutant = make_mutant(good, seed)
        assert mutant == make_mutant(good, seed)
        assert mutant.content != good


def test_two_hundred_seeds_have_every_kind(good: bytes) -> None:
    """Guards the run by hand: no kind of damage is left out by chance."""
    kinds = Counter(make_mutant(good, seed).kind for seed in range(200))
    assert set(kinds) == set(KINDS)


def test_every_eighth_is_made_of_the_real_model() -> None:
    """Guards the mix: where the model is not there, the small ones take its place."""
    small, real = [("a", b""), ("b", b"")], ("real", b"")
    names = [source_of(seed, [*small, real])[0] for seed in range(16)]
    assert names.count("real") == 2
    assert "real" not in {source_of(seed, small)[0] for seed in range(16)}


def test_the_table_shows_what_must_not_be() -> None:
    """Guards the reader: a miss has a column of its own."""
    lines = list(table(Counter({("cut", "refused"): 3, ("size", "traceback"): 1})))
    assert lines[0].endswith("traceback")
    assert len(lines) == 3
