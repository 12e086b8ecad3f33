"""OpenVINO GenAI's `ContinuousBatchingPipeline` on the same GGUF, in this process.

It gets what makes it fastest on this work: prompts in spans that share a pass with decodes, no
cache of prefixes, and the engine's threads and number formats. Requests are handed in as tokens,
and every step is a call into the library, as it is within its own `generate`.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from benchmarks.compare.libraries import text_tokens
from jitney.backends.machine.cores import usable_cores
from jitney.backends.openvino import families
from jitney.backends.openvino.convert import write_model
from jitney.models.gguf_vocabulary import read_vocabulary
from jitney_lab.bench.workload import Job, Workload

CACHE_GB = 2

Handle = Any  # the library does not export the class


class GenAi:
    """The pipeline with room for so many sequences, and so many tokens in a pass."""

    def __init__(self, model: Path, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        dtypes = families.dtypes("auto", "auto", usable_cores())
        limits = genai.SchedulerConfig()
        limits.cache_size = CACHE_GB
        limits.max_num_seqs = max_num_seqs
        limits.max_num_batched_tokens = max_num_batched_tokens
        limits.dynamic_split_fuse = True
        limits.enable_prefix_caching = False
        properties = {
            "INFERENCE_NUM_THREADS": usable_cores(),
            "INFERENCE_PRECISION_HINT": dtypes.inference,
            "KV_CACHE_PRECISION": dtypes.kv,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": dtypes.activation_group,
        }
        with tempfile.TemporaryDirectory() as name:
            # Its tokenizer is written beside the model, and it does not start without one.
            write_model(model, Path(name))
            self._pipeline = genai.ContinuousBatchingPipeline(name, limits, "CPU", properties)
        # Another token would be read from beyond the weights.
        self._vocabulary = text_tokens(len(read_vocabulary(model).tokens))
        self._number = 0

    def rate(self, workload: Workload) -> float:
        """Completion tokens per second of a closed loop."""
        waiting = list(workload.jobs)[::-1]
        running: list[tuple[Job, Handle]] = []
        started_at = time.perf_counter()
        while waiting or running:
            while waiting and len(running) < (workload.clients or 1):
                job = waiting.pop()
                running.append((job, self._add(job, workload.seed)))
            self._pipeline.step()
            running = [each for each in running if not self._is_answered(*each)]
        seconds = time.perf_counter() - started_at
        return sum(job.completion_count for job in workload.jobs) / seconds

    def _add(self, job: Job, seed: int) -> Handle:
        config = genai.GenerationConfig()
        config.max_new_tokens = job.completion_count
        config.do_sample = False
        config.ignore_eos = True
        self._number += 1
        tokens = ov.Tensor(np.array([job.tokens(seed, self._vocabulary)], np.int64))
        return self._pipeline.add_request(self._number, tokens, config)

    def _is_answered(self, job: Job, handle: Handle) -> bool:
        status = handle.get_status()
        if status == genai.GenerationStatus.RUNNING:
            return False
        count = sum(len(output.generated_ids) for output in handle.read_all())
        if status != genai.GenerationStatus.FINISHED or count != job.completion_count:
            raise RuntimeError(f"OpenVINO GenAI made {count} tokens and ended with {status}")
        return True
