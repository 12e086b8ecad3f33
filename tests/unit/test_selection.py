"""Which backend a model gets where nobody named one, and why."""

from typing import Any

import pytest

from jitney.backends.measure import Trial
from jitney.config import Settings
from jitney.errors import MissingDependency
from jitney.selection import FEW_SEQUENCES, Facts, fastest, select, trial_sequences

BOTH = frozenset({"openvino", "llamacpp"})
REFUSAL = "its architecture is gemma2."


def facts(
    installed: frozenset[str] = BOTH, *, refusal: str | None = None, is_folder: bool = False
) -> Facts:
    return Facts(installed, refusal, is_folder)


@pytest.mark.parametrize(
    ("given", "known", "name", "told"),
    [
        ({"backend": "fake"}, facts(), "fake", "asked for"),
        ({"backend": "openvino"}, facts(frozenset()), "openvino", "asked for"),
        ({}, facts(is_folder=True), "openvino", "folder"),
        ({"gpu_layers": -1}, facts(), "llamacpp", "gpu_layers"),
        ({}, facts(refusal=REFUSAL), "llamacpp", "gemma2"),
        ({}, facts(frozenset({"llamacpp"})), "llamacpp", "not installed"),
        ({}, facts(frozenset({"openvino"})), "openvino", "not installed"),
        ({"max_num_seqs": 1}, facts(frozenset({"openvino"})), "openvino", "not installed"),
        ({}, facts(), "openvino", "faster"),
        ({"max_num_seqs": FEW_SEQUENCES + 1}, facts(), "openvino", "faster"),
        ({"flash_attention": "on"}, facts(), "llamacpp", "flash_attention"),
        ({"dtype": "float32", "max_num_seqs": 2}, facts(), "openvino", "dtype"),
        ({"kv_cache_dtype": "uint8", "max_num_seqs": 2}, facts(), "openvino", "kv_cache_dtype"),
    ],
)
def test_settings_and_the_model_decide(
    given: dict[str, Any], known: Facts, name: str, told: str
) -> None:
    """Guards the order of the rules: each of them must be able to decide, and say so."""
    selection = select(Settings(**given), known)
    assert selection is not None
    assert selection.name == name
    assert told in selection.reason


@pytest.mark.parametrize("sequences", [1, FEW_SEQUENCES])
def test_speed_is_asked_only_where_both_would_do_for_a_few_sequences(sequences: int) -> None:
    """Guards a quick start: a measurement takes seconds."""
    assert select(Settings(max_num_seqs=sequences), facts()) is None


def test_nothing_that_could_run_the_model_is_a_sentence() -> None:
    """Guards a bare install: it says which extra to add."""
    with pytest.raises(MissingDependency, match="extra `openvino` or `llama`"):
        select(Settings(), facts(frozenset()))
    with pytest.raises(MissingDependency, match=r"gemma2.*extra `llama`"):
        select(Settings(), facts(frozenset({"openvino"}), refusal=REFUSAL))


def test_a_trial_stands_for_all_counts_up_to_its_own() -> None:
    """Guards the memory of trials against one entry for every number."""
    counts = [trial_sequences(count) for count in range(1, FEW_SEQUENCES + 1)]
    assert counts == [1, 2, 4, 4, 8, 8, 8, 8]


@pytest.mark.parametrize(
    ("openvino", "llamacpp", "sequences", "name", "reason"),
    [
        (
            *(Trial(160.4), Trial(182.1), 4, "llamacpp"),
            "4 sequences: llamacpp 182 tokens/s, openvino 160; measured on this machine",
        ),
        (
            *(Trial(9.96), Trial(0.31), 1, "openvino"),
            "1 sequence: openvino 10.0 tokens/s, llamacpp 0.3; measured on this machine",
        ),
        (
            *(Trial(50.0), Trial(50.0), 2, "openvino"),
            "2 sequences: openvino 50 tokens/s, llamacpp 50; measured on this machine",
        ),
        (
            *(Trial(None, "it crashed (SIGSEGV)"), Trial(0.5), 8, "llamacpp"),
            "8 sequences: llamacpp 0.5 tokens/s, openvino failed (it crashed (SIGSEGV)); "
            "measured on this machine",
        ),
        (
            *(Trial(None, "one"), Trial(None, "two"), 8, "openvino"),
            "8 sequences: openvino failed (one), llamacpp failed (two); measured on this machine",
        ),
    ],
)
def test_the_faster_one_wins_and_the_reason_has_the_figures(
    openvino: Trial, llamacpp: Trial, sequences: int, name: str, reason: str
) -> None:
    """Guards the choice: a failure loses, and between equals OpenVINO wins."""
    selection = fastest({"openvino": openvino, "llamacpp": llamacpp}, sequences)
    assert selection.name == name
    assert selection.reason == reason
