"""OpenVINO GenAI's `ContinuousBatchingPipeline` on the same GGUF, in this process.

It is given what makes it fastest on this work: prompts in spans that share a pass with decodes, no
cache of prefixes (the prompts share none), and the engine's threads and kinds of numbers (keys and
values of 8 bits, its default, were no faster). How many tokens a pass should take is not clear, so
it is measured with its default and with the engine's. Pinning is left to it. Requests are handed
in as tokens, so many open at a time, and every step is a call into the library, as it is within
its own `generate`.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from benchmarks.load import Job
from jitney.backends.machine.cores import usable_cores
from jitney.backends.openvino import families
from jitney.backends.openvino.convert import write_model

CACHE_GB = 1
BATCH_TOKENS_MAX = (256, 2048)
"""Its default, and the engine's."""

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
        self._number = 0

    def serve(self, jobs: Sequence[Job], at_once: int) -> float:
        """Seconds until all are answered, with so many open at a time."""
        waiting = list(jobs)[::-1]
        running: list[tuple[Job, Handle]] = []
        started = time.perf_counter()
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop()
                running.append((job, self._add(job)))
            self._pipeline.step()
            running = [each for each in running if not _is_answered(*each)]
        return time.perf_counter() - started

    def _add(self, job: Job) -> Handle:
        config = genai.GenerationConfig()
        config.max_new_tokens = job.completion_count
        config.do_sample = False
        config.ignore_eos = True
        self._number += 1
        tokens = ov.Tensor(np.array([job.prompt], np.int64))
        return self._pipeline.add_request(self._number, tokens, config)


def _is_answered(job: Job, handle: Handle) -> bool:
    status = handle.get_status()
    if status == genai.GenerationStatus.RUNNING:
        return False
    count = sum(len(output.generated_ids) for output in handle.read_all())
    if status != genai.GenerationStatus.FINISHED or count != job.completion_count:
        raise RuntimeError(f"OpenVINO GenAI made {count} tokens and ended with {status}")
    return True
