"""How many tokens fit on a GPU."""

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch

from jitney.backends.torch import gpu_loading
from jitney.backends.torch.architecture import Architecture
from jitney.backends.torch.gpu_loading import GpuSizes
from jitney.backends.torch.kernels.span_attention import SPAN_SPLIT
from jitney.errors import NoRoom

LLAMA_8B = Architecture(
    family="llama", layers=32, width=4096, heads=32, heads_kv=8, head=128, inner=14_336,
    vocabulary=128_256, length_max=131_072, epsilon=1e-5, attention_scale=128**-0.5,
)  # fmt: skip


def _tokens(monkeypatch: pytest.MonkeyPatch, gibibytes: int, sizes: GpuSizes) -> int:
    memory = (gibibytes << 30, gibibytes << 30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: memory)
    token_bytes = 2 * LLAMA_8B.kv_values_per_token
    return gpu_loading._free_tokens(LLAMA_8B, sizes, token_bytes, torch.device("cpu"))


@pytest.mark.parametrize("batched", [2048, 8192, 32_768])
def test_attention_of_long_texts_takes_no_more_than_the_texts_that_fit(
    monkeypatch: pytest.MonkeyPatch, batched: int
) -> None:
    """Guards small GPUs: splits for texts that no memory is left for left no memory."""
    sizes = GpuSizes(slots=80, kv_tokens=0, max_num_batched_tokens=batched, max_num_seqs=16)
    split_bytes = batched * LLAMA_8B.heads * (LLAMA_8B.head + 1) * 4
    token_bytes = 2 * LLAMA_8B.kv_values_per_token
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
        assert found * token_bytes + taken <= without * token_bytes + token_bytes, gibibytes
        # What is not used is less than two splits.
        assert (found + 1) * token_bytes + taken + 2 * split_bytes > without * token_bytes, (
            gibibytes
        )


def test_a_model_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights alone take 16 GB."""
    sizes = GpuSizes(slots=80, kv_tokens=0, max_num_batched_tokens=2048)
    with pytest.raises(NoRoom, match="what is left holds 0 tokens"):
        _tokens(monkeypatch, 16, sizes)
