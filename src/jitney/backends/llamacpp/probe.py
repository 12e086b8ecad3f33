"""The child process of `kernels`: loads a model and runs one batch of 64 tokens.

Tests: tests/unit/backends/llamacpp/test_kernels.py.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any  # Any: what JSON can say

from jitney.backends.llamacpp.backend import LlamaCppSettings, make_backend
from jitney.backends.trials.trial_process import answer
from jitney.core.batch import Batch, Entry, Open, Sampling
from jitney.errors import ModelError

TOKENS = 64


def find(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run the batch; the answer is empty. Raises ModelError where the batch fails."""
    settings = LlamaCppSettings(
        model=Path(given["model"]),
        kv_tokens=256,
        slots=1,
        max_num_batched_tokens=TOKENS,
        threads=2,
        extra_kernels=given["extra_kernels"],
    )
    with closing(make_backend(settings)) as backend:
        tokens = tuple(index % len(backend.vocabulary.pieces) for index in range(TOKENS))
        opened = Open(0, Sampling(seed=0, prompt_count=TOKENS))
        batch = Batch(0, (opened,), (Entry(0, 0, tokens, wants_token=True),))
        fault = backend.execute(batch).samples[0].fault
    if fault is not None:
        reason = fault.message.rstrip(".")
        raise ModelError(f"{settings.model} cannot be used: {reason}; its weights are damaged.")
    return {}


if __name__ == "__main__":
    answer(find)
