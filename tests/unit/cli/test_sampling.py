"""Tests of `jitney.cli.sampling`: options of `run` to sampling parameters."""

from pathlib import Path

import pytest

from jitney.cli.sampling import SCHEMA_BYTES_MAX, choose_temperature, sampling
from jitney.cli.verbs import RunOptions
from jitney.errors import InvalidRequest


def test_options_become_parameters(tmp_path: Path) -> None:
    """Guards the way from the command line to the sampler."""
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "integer"}', encoding="utf-8")
    params = sampling(
        RunOptions(
            max_tokens=5, temperature=0.2, top_p=0.5, top_k=3, stop=("a", "b"), json_schema=schema
        )
    )
    assert (params.top_p, params.top_k) == (0.5, 3)
    assert (params.max_tokens, params.temperature) == (5, 0.2)
    assert params.stop_strings == ("a", "b")
    assert params.constraint is not None
    assert params.constraint.text == '{"type": "integer"}'
    assert sampling(RunOptions(regex="[0-9]+")).constraint is not None


def test_greedy_is_temperature_zero_and_contradicts_another() -> None:
    """Guards against one of two contradicting options being dropped in silence."""
    assert choose_temperature(None, True) == 0.0
    assert choose_temperature(0.0, True) == 0.0
    assert choose_temperature(None, False) == 0.7
    assert choose_temperature(1.5, False) == 1.5
    with pytest.raises(InvalidRequest, match="--greedy"):
        choose_temperature(0.5, True)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[" * 100_000, b" " * 2_000_000])
def test_a_schema_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    """Guards the compiler of constraints against files that are no JSON."""
    schema = tmp_path / "schema.json"
    schema.write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"schema\.json"):
        sampling(RunOptions(json_schema=schema))
    with pytest.raises(InvalidRequest, match="cannot be read"):
        sampling(RunOptions(json_schema=tmp_path / "missing.json"))


def test_a_schema_is_read_up_to_a_limit(tmp_path: Path) -> None:
    """Guards memory against a file without an end; this one is longer than any that is taken."""
    schema = tmp_path / "schema.json"
    schema.write_bytes(b"{}" + b" " * SCHEMA_BYTES_MAX)
    with pytest.raises(InvalidRequest, match=r"schema\.json is larger than 1048576 bytes"):
        sampling(RunOptions(json_schema=schema))
