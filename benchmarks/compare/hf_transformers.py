"""Hugging Face transformers on the same GGUF, in this process: `generate` with padded batches.

It has no queue of its own, so it gets as many prompts at once as there are clients, and the next
ones when all of these are answered. The weights are unpacked to a number type while it loads.
"""

import importlib
import time
from pathlib import Path
from typing import Any  # Any: torch and transformers may not be installed

from benchmarks.compare.libraries import text_tokens
from jitney.backends.machine.cores import usable_cores
from jitney_lab.bench.workload import Job, Workload

PADDING = 0


class HfTransformers:
    """The model in this number type."""

    def __init__(self, model: Path, dtype: str) -> None:
        self._torch: Any = importlib.import_module("torch")
        transformers: Any = importlib.import_module("transformers")
        self._torch.set_num_threads(usable_cores())
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            str(model.parent), gguf_file=model.name
        )
        self._model = loaded.to(getattr(self._torch, dtype)).eval()
        self._vocabulary = text_tokens(int(self._model.config.vocab_size))

    def rate(self, workload: Workload) -> float:
        """Completion tokens per second, in batches of as many jobs as there are clients."""
        size = workload.clients or 1
        jobs = workload.jobs
        started_at = time.perf_counter()
        with self._torch.inference_mode():
            for first in range(0, len(jobs), size):
                self._answer(jobs[first : first + size], workload.seed)
        return sum(job.completion_count for job in jobs) / (time.perf_counter() - started_at)

    def _answer(self, jobs: tuple[Job, ...], seed: int) -> None:
        """One padded batch, to the longest of its answers. Raises RuntimeError."""
        prompts = [list(job.tokens(seed, self._vocabulary)) for job in jobs]
        longest = max(map(len, prompts))
        length = max(job.completion_count for job in jobs)
        gaps = [longest - len(prompt) for prompt in prompts]
        rows = [[PADDING] * gap + prompt for gap, prompt in zip(gaps, prompts, strict=True)]
        mask = [[0] * gap + [1] * (longest - gap) for gap in gaps]
        # With the smallest length equal to the largest, no answer ends early.
        output = self._model.generate(
            self._torch.tensor(rows),
            attention_mask=self._torch.tensor(mask),
            max_new_tokens=length,
            min_new_tokens=length,
            do_sample=False,
            pad_token_id=PADDING,
        )
        if tuple(output.shape) != (len(jobs), longest + length):
            raise RuntimeError(f"transformers made a batch of {tuple(output.shape)}")
