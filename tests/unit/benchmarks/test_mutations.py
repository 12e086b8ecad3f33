"""Tests of `benchmarks.mutations`: every kind of damage happens, and a seed gives the same file."""

from collections import Counter

import pytest

from benchmarks.mutations import KINDS, make_mutant
from tests.models_for_tests import write_tiny_gguf


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("mutants") / "good.gguf"
    write_tiny_gguf(path)
    return path.read_bytes()


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
