"""What OpenVINO computes with here: the best kind of numbers that was seen to work."""

from pathlib import Path
from typing import Any

import pytest

from jitney.backends.openvino.kind import DtypeChoice, chosen_dtypes
from jitney.config import Settings
from tests.children_for_tests import WORKS, Children, install, refuses, stand_in

HALF = """*'"inference_precision": "bf16"'*"""
UNWELL = "it is unwell"


@pytest.fixture(autouse=True)
def computes_with_bfloat16(cpuinfo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """OpenVINO is installed, and the processor has bfloat16; the file that says so."""
    install(monkeypatch)
    cpuinfo.write_text("model name : Fast\nflags : avx2 avx512_bf16\n")
    return cpuinfo


def chosen(folder: Path, dtype: Any, threads: int) -> DtypeChoice:
    """What is computed with, in a cache folder of the test."""
    return chosen_dtypes(Settings(cache_dir=folder / "cache", dtype=dtype, threads=threads))


def two(half: str, plain: str) -> str:
    """A script for trials with bfloat16, and one for all others."""
    return f"""case "$given" in {HALF}) {half};; *) {plain};; esac"""


def precisions(children: Children) -> list[str]:
    return [each["numbers"]["inference_precision"] for each in children.given]


@pytest.mark.parametrize(
    ("dtype", "script", "expected", "trials"),
    [
        ("auto", two(WORKS, WORKS), ("bf16", None), ["bf16"]),
        ("auto", two("kill -SEGV $$", WORKS), ("f32", None), ["bf16", "f32"]),
        ("auto", two(refuses("half"), refuses("plain")), ("bf16", "half"), ["bf16", "f32"]),
        ("bfloat16", two(refuses("half"), WORKS), ("bf16", "half"), ["bf16"]),
        ("float32", two(WORKS, refuses("plain")), ("f32", "plain"), ["f32"]),
        ("float32", two(refuses("half"), WORKS), ("f32", None), ["f32"]),
    ],
)
def test_only_where_the_choice_is_ours_another_one_is_tried(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    script: str,
    expected: tuple[str, str | None],
    trials: list[str],
) -> None:
    """Guards both ways: `auto` finds what works, and what was asked for is never replaced."""
    children = stand_in(tmp_path, monkeypatch, openvino=script)
    for _ in range(2):
        found = chosen(tmp_path, dtype, 2)
        assert (found.dtypes.inference, found.failure) == expected
    assert precisions(children) == trials


def test_plain_numbers_of_a_fallback_are_those_of_a_processor_without_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computes_with_bfloat16: Path
) -> None:
    """Guards speed: float32 comes with rounded activations wherever `auto` amounts to it."""
    stand_in(tmp_path, monkeypatch, openvino=two("kill -SEGV $$", "exit 0"))
    fallen = chosen(tmp_path, "auto", 2)
    computes_with_bfloat16.write_text("model name : Old\nflags : avx2\n")
    assert chosen(tmp_path, "auto", 2) == fallen
    assert fallen.dtypes.activation_group > 0


def test_without_bfloat16_there_is_one_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computes_with_bfloat16: Path
) -> None:
    """Guards against a second trial of the same numbers."""
    computes_with_bfloat16.write_text("model name : Old\nflags : avx2\n")
    children = stand_in(tmp_path, monkeypatch, openvino=refuses(UNWELL))
    assert chosen(tmp_path, "auto", 2).failure == UNWELL
    assert precisions(children) == ["f32"]


def test_a_missing_attention_is_told_in_our_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards readers against the library's: what the real one says on ARM is in the script."""
    message = (
        "OpenVINO cannot compile the model: [CPU] PagedAttentionExtension node with name "
        "PagedAttentionExtension_3796 AttentionExecutor creation fails with precision f32"
    )
    stand_in(tmp_path, monkeypatch, openvino=refuses(message))
    found = chosen(tmp_path, "float32", 2)
    assert found.failure == "its paged attention does not exist for this processor"


def test_threads_beyond_two_make_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards quick starts with another number of threads; one is another matter."""
    children = stand_in(tmp_path, monkeypatch)
    for threads in (2, 3, 64, 1, 1):
        assert chosen(tmp_path, "float32", threads).failure is None
    assert [each["numbers"]["threads"] for each in children.given] == [2, 1]


def test_what_is_not_installed_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the sentence: an import error of the child would be blamed on the processor."""
    children = stand_in(tmp_path, monkeypatch)
    install(monkeypatch, missing=("tokenizers",))
    found = chosen(tmp_path, "auto", 2)
    assert found.failure == "it is not installed"
    assert children.given == []
