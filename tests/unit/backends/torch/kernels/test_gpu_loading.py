"""How many tokens fit on a GPU."""

from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch

from jitney.backends.torch import gpu_loading
from jitney.backends.torch.architecture import Architecture
from jitney.backends.torch.backend import TorchSettings
from jitney.backends.torch.graphs import LOGIT_ROWS_MIN
from jitney.backends.torch.kernels.span_attention import SPAN_SPLIT
from jitney.errors import ConfigError, NoRoom

LLAMA_8B = Architecture(
    family="llama", layers=32, width=4096, heads=32, heads_kv=8, head=128, inner=14_336,
    vocabulary=128_256, length_max=131_072, epsilon=1e-5, attention_scale=128**-0.5,
)  # fmt: skip
SIZES = TorchSettings(
    model="", slots=80, kv_tokens=0, max_num_batched_tokens=2048, threads=1, dtype="bfloat16",
    kv_dtype="bfloat16", device="cuda",
)  # fmt: skip
TOKEN_BYTES = 2 * LLAMA_8B.kv_values_per_token


def _tokens(
    monkeypatch: pytest.MonkeyPatch,
    gibibytes: int,
    sizes: TorchSettings,
    shape: Architecture = LLAMA_8B,
) -> int:
    memory = (gibibytes << 30, gibibytes << 30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: memory)
    return gpu_loading._checked_tokens(shape, sizes, TOKEN_BYTES, torch.device("cuda"))


@pytest.mark.parametrize("batched", [2048, 8192, 32_768])
def test_attention_of_long_texts_takes_no_more_than_the_texts_that_fit(
    monkeypatch: pytest.MonkeyPatch, batched: int
) -> None:
    """Guards small GPUs: splits for texts that no memory is left for left no memory."""
    sizes = replace(SIZES, max_num_batched_tokens=batched, max_num_seqs=16)
    split_bytes = batched * LLAMA_8B.heads * (LLAMA_8B.head + 1) * 4
    for gibibytes in (24, 40, 80, 141):
        if batched > 8192 and gibibytes == 24:
            continue
        found = _tokens(monkeypatch, gibibytes, sizes)
        with monkeypatch.context() as patch:
            patch.setattr(gpu_loading, "SPAN_SPLIT", LLAMA_8B.length_max)
            without = _tokens(monkeypatch, gibibytes, sizes)
        splits = -(-min(found, LLAMA_8B.length_max) // SPAN_SPLIT)
        taken = (splits > 1) * splits * split_bytes
        assert found >= SPAN_SPLIT, gibibytes
        assert found * TOKEN_BYTES + taken <= without * TOKEN_BYTES + TOKEN_BYTES, gibibytes
        # What is not used is less than two splits.
        assert (found + 1) * TOKEN_BYTES + taken + 2 * split_bytes > without * TOKEN_BYTES, (
            gibibytes
        )


def test_a_model_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights alone take 16 GB."""
    with pytest.raises(NoRoom, match="what is left holds 0 tokens"):
        _tokens(monkeypatch, 16, SIZES)


def test_a_budget_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against an error of the library, when the weights are there."""
    fits = _tokens(monkeypatch, 24, SIZES)
    assert _tokens(monkeypatch, 24, replace(SIZES, kv_tokens=fits)) == fits
    with pytest.raises(NoRoom, match=f"asks for {fits + 1} tokens, and the GPU holds {fits} "):
        _tokens(monkeypatch, 24, replace(SIZES, kv_tokens=fits + 1))
    with pytest.raises(ConfigError, match=r"kv_tokens is 32, .* blocks of 64"):
        replace(SIZES, kv_tokens=32)


def test_a_head_that_is_the_embedding_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards small models, of which it is a third."""
    sizes = replace(SIZES, model_len_max=SPAN_SPLIT)
    tied = replace(LLAMA_8B, is_tied=True)
    more = _tokens(monkeypatch, 24, sizes, tied) - _tokens(monkeypatch, 24, sizes)
    assert more == 2 * LLAMA_8B.vocabulary * LLAMA_8B.width // TOKEN_BYTES


def test_logits_of_a_scored_prompt_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the first scored prompt: one slot has graphs of few rows."""
    sizes = replace(SIZES, model_len_max=SPAN_SPLIT, max_num_seqs=1)
    wide = replace(LLAMA_8B, vocabulary=2 * LLAMA_8B.vocabulary)
    less = _tokens(monkeypatch, 24, sizes) - _tokens(monkeypatch, 24, sizes, wide)
    weights, logits = 4 * LLAMA_8B.width, 8 * LOGIT_ROWS_MIN
    assert less >= LLAMA_8B.vocabulary * (weights + logits) // TOKEN_BYTES
