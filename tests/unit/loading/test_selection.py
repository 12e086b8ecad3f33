"""Which backend a model gets where nobody named one, and why."""

import signal
from dataclasses import replace
from typing import Any

import pytest

from jitney.backends.kind import Library
from jitney.backends.kinds import all_kinds
from jitney.backends.trials.trial_process import EXIT_REFUSED, TrialResult
from jitney.config import Settings
from jitney.errors import ConfigError, MissingDependency
from jitney.loading.selection import (
    FEW_SEQUENCES,
    BackendState,
    fastest,
    is_given,
    is_settled,
    select,
    trial_sequences,
)

BOTH: dict[str, str | None] = {"openvino": None, "llamacpp": None}
OPENVINO: dict[str, str | None] = {"openvino": None}
LLAMACPP: dict[str, str | None] = {"llamacpp": None}
NO_ATTENTION = "it has no attention"
CRASHED = "it crashed (SIGSEGV)"
REFUSAL = "its architecture is gemma2."
FOLDER = "it reads GGUF files, and the model is a folder"
Facts = list[BackendState]


def facts(
    failures: dict[str, str | None] = BOTH, *, refusal: str | None = None, is_folder: bool = False
) -> Facts:
    refusals = {"openvino": refusal, "llamacpp": FOLDER if is_folder else None}
    return [
        BackendState(
            kind,
            Library() if kind.name in failures else None,
            failures.get(kind.name),
            refusals[kind.name],
        )
        for kind in all_kinds()
        if kind.is_automatic()
    ]


def trial(speed: float | None, failure: str | None = None) -> TrialResult:
    return TrialResult(found={} if speed is None else {"tokens_per_s": speed}, failure=failure)


def failing(**reasons: str) -> dict[str, str | None]:
    """Both are installed, and these do not work."""
    return BOTH | reasons


@pytest.mark.parametrize(
    ("given", "known", "name", "sentence"),
    [
        ({}, facts(is_folder=True), "openvino", "folder"),
        ({"gpu_layers": 3}, facts(), "llamacpp", "gpu_layers"),
        ({"gpu_layers": 3}, facts(OPENVINO), "llamacpp", "gpu_layers"),
        ({"gpu_layers": 3}, facts(is_folder=True), "openvino", "folder"),
        ({"gpu_layers": -1}, facts(OPENVINO), "openvino", "llama.cpp is not installed"),
        ({"gpu_layers": -1}, facts(failing(llamacpp=CRASHED)), "openvino", CRASHED),
        ({}, facts(refusal=REFUSAL), "llamacpp", "gemma2"),
        ({}, facts(failing(openvino=CRASHED), refusal=REFUSAL), "llamacpp", "gemma2"),
        ({}, facts(LLAMACPP), "llamacpp", "OpenVINO is not installed"),
        ({}, facts(OPENVINO), "openvino", "llama.cpp is not installed"),
        ({"max_num_seqs": 1}, facts(OPENVINO), "openvino", "not installed"),
        ({}, facts(failing(openvino=NO_ATTENTION)), "llamacpp", f"not work here: {NO_ATTENTION}"),
        ({}, facts(failing(llamacpp=CRASHED)), "openvino", f"not work here: {CRASHED}"),
        ({"max_num_seqs": 1}, facts(failing(openvino=NO_ATTENTION)), "llamacpp", NO_ATTENTION),
        ({"max_num_seqs": 1}, facts(failing(llamacpp=CRASHED)), "openvino", CRASHED),
        ({}, facts(failing(llamacpp=CRASHED), is_folder=True), "openvino", "folder"),
        ({}, facts(), "openvino", "faster"),
        ({"max_num_seqs": FEW_SEQUENCES + 1}, facts(), "openvino", "faster"),
        ({"flash_attention": "on"}, facts(), "llamacpp", "flash_attention"),
        ({"dtype": "float32", "max_num_seqs": 2}, facts(), "openvino", "dtype"),
        ({"kv_cache_dtype": "uint8", "max_num_seqs": 2}, facts(), "openvino", "kv_cache_dtype"),
    ],
)
def test_settings_the_model_and_what_works_decide(
    given: dict[str, Any], known: Facts, name: str, sentence: str
) -> None:
    """Guards the order of the rules: each of them must be able to decide, and say so."""
    selection = select(Settings(**given), known)
    assert selection is not None
    assert selection.name == name
    assert sentence in selection.reason


def test_one_without_room_is_passed_over_where_another_has_room() -> None:
    """Guards models that are larger than a GPU, and the sentence where nobody has room."""
    openvino, llamacpp = facts()
    full = replace(openvino, no_room="the GPU has 8 GB")
    selection = select(Settings(max_num_seqs=1), [full, llamacpp])
    assert selection is not None, "nothing has to be measured"
    assert selection.name == "llamacpp"
    assert "OpenVINO has no room for this model: the GPU has 8 GB" in selection.reason
    selection = select(Settings(), [full, replace(llamacpp, no_room="too")])
    assert selection is not None
    assert selection.name == "openvino"


def test_none_in_place_of_a_default_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards a setting that can be none: only -1 layers suit every backend."""
    defaults = {"threads": 4, "gpu_layers": 0, "seed": None}
    monkeypatch.setattr("jitney.loading.selection._DEFAULTS", defaults)
    given = [name for name in defaults if is_given(Settings(gpu_layers=-1), name)]
    assert given == ["threads"]


@pytest.mark.parametrize("sequences", [1, FEW_SEQUENCES])
def test_speed_is_asked_only_where_both_would_do_for_a_few_sequences(sequences: int) -> None:
    """Guards a quick start: a measurement takes seconds."""
    assert select(Settings(max_num_seqs=sequences), facts()) is None


def test_speed_is_asked_where_layers_may_be_on_a_gpu() -> None:
    """Guards -1, as many layers as there can be: it is the faster one with a GPU, and else not."""
    assert select(Settings(gpu_layers=-1, max_num_seqs=FEW_SEQUENCES + 1), facts()) is None


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        (facts({}), "OpenVINO is not installed, and llama.cpp is not installed; `jitney backends"),
        (
            facts({"openvino": NO_ATTENTION}),
            f"OpenVINO does not work here: {NO_ATTENTION}, and llama.cpp is not installed; "
            "`jitney backends --add llamacpp`",
        ),
        (
            facts(failing(openvino=NO_ATTENTION, llamacpp=CRASHED)),
            f"OpenVINO does not work here: {NO_ATTENTION}, and "
            f"llama.cpp does not work here: {CRASHED}",
        ),
        (
            facts(OPENVINO, refusal=REFUSAL),
            "gemma2, and llama.cpp is not installed; `jitney backends --add llamacpp`",
        ),
        (
            facts(failing(llamacpp=CRASHED), refusal=REFUSAL),
            f"gemma2, and llama.cpp does not work here: {CRASHED}",
        ),
        (facts(LLAMACPP, is_folder=True), f"{FOLDER}, and OpenVINO is not installed; take a GGUF"),
        (
            facts(failing(openvino=NO_ATTENTION), is_folder=True),
            f"{FOLDER}, and OpenVINO does not work here: {NO_ATTENTION}; take a GGUF file",
        ),
    ],
)
def test_nothing_that_could_run_the_model_is_a_sentence(known: Facts, sentence: str) -> None:
    """Guards a bare install and a broken one: why nothing will do, and what to add."""
    with pytest.raises(MissingDependency) as caught:
        select(Settings(), known)
    assert sentence in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_setting_that_only_a_failing_backend_has_is_not_passed_over() -> None:
    """Guards `gpu_layers`: the model must not run without them and nobody told."""
    with pytest.raises(ConfigError, match=NO_ATTENTION):
        select(Settings(gpu_layers=2), facts(failing(llamacpp=NO_ATTENTION)))


def test_a_trial_stands_for_all_counts_up_to_its_own() -> None:
    """Guards the memory of trials against one entry for every number."""
    counts = [trial_sequences(count) for count in range(1, FEW_SEQUENCES + 1)]
    assert counts == [1, 2, 4, 4, 8, 8, 8, 8]


@pytest.mark.parametrize(
    ("openvino", "llamacpp", "sequences", "name", "reason"),
    [
        (
            *(trial(160.4), trial(182.1), 4, "llamacpp"),
            "4 sequences: llamacpp 182 tokens/s, openvino 160; measured on this machine",
        ),
        (
            *(trial(9.96), trial(0.31), 1, "openvino"),
            "1 sequence: openvino 10.0 tokens/s, llamacpp 0.3; measured on this machine",
        ),
        (
            *(trial(50.0), trial(50.0), 2, "openvino"),
            "2 sequences: openvino 50 tokens/s, llamacpp 50; measured on this machine",
        ),
        (
            *(trial(None, "it crashed (SIGSEGV)"), trial(0.5), 8, "llamacpp"),
            "8 sequences: llamacpp 0.5 tokens/s, openvino failed (it crashed (SIGSEGV)); "
            "measured on this machine",
        ),
        (
            *(trial(None, "one"), trial(None, "two"), 8, "openvino"),
            "8 sequences: openvino failed (one), llamacpp failed (two); measured on this machine",
        ),
    ],
)
def test_the_faster_one_wins_and_the_reason_has_the_figures(
    openvino: TrialResult, llamacpp: TrialResult, sequences: int, name: str, reason: str
) -> None:
    """Guards the choice: a failure loses, and between equals OpenVINO wins."""
    selection = fastest({"openvino": openvino, "llamacpp": llamacpp}, sequences)
    assert selection.name == name
    assert selection.reason == reason


@pytest.mark.parametrize(
    ("other", "is_final"),
    [
        (TrialResult(found={"tokens_per_s": 2.0}), True),
        (TrialResult(failure="it crashed (SIGSEGV)", status=-signal.SIGSEGV), True),
        (TrialResult(failure="it was killed", status=-signal.SIGKILL), False),
        (TrialResult(failure="it is unwell", status=EXIT_REFUSED), False),
        (TrialResult(failure="it ended with status 1", status=1), False),
        (TrialResult(failure="it ended without a figure"), True),
        (TrialResult(), False),
    ],
)
def test_a_failure_that_may_pass_is_measured_again(other: TrialResult, is_final: bool) -> None:
    """Guards both ways: a crash at every start, and a backend given up for a passing lack."""
    fast = TrialResult(found={"tokens_per_s": 1.0})
    assert is_settled({"openvino": other, "llamacpp": fast}) == is_final
    assert not is_settled({"openvino": TrialResult(failure="x"), "llamacpp": TrialResult()})
