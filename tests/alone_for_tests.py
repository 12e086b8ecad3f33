"""A model served by jitney on llama.cpp, and the library's own word on each sequence beside it.

Called alone, the library has a context of its own for one sequence, one thread, and only the cells
that a sliding window needs; all tokens are computed by one call. It has the attention kernel that
jitney would take: fused, it rounds otherwise, and near ties between experts fall otherwise.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: settings of every kind

import numpy as np
import numpy.typing as npt

from jitney.backends.kinds import load, load_process
from jitney.backends.llamacpp import asked
from jitney.backends.llamacpp.attention import SHAPE_UNTRIED
from jitney.backends.llamacpp.bindings import Model, llama_cpp
from jitney.backends.llamacpp.kind import KIND
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.answer import Answer
from jitney.engine.engine import Engine
from jitney.engine.handle import Handle

Prompts = Sequence[tuple[int, ...]]

LIKELY = -4.0
"""Only tokens with a chance of two in a hundred or more are compared."""
TOKENS_MAX = 256
"""Of a sequence."""
SLOTS_SPARE = 8
LISTED = 20
WAIT_S = 240.0


@dataclass(frozen=True, slots=True)
class Said:
    """An answer: its tokens, and the likely ones at each position with their logprobs."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    likely: tuple[dict[int, float], ...]
    cached_count: int

    @property
    def content(self) -> tuple[object, ...]:
        """What is equal where equal texts are promised."""
        return self.tokens, self.likely


def keeps_state(model: Path) -> bool:
    """Whether its layers keep a recurrent state. All slots then share one pool."""
    return asked.full_header(model, KIND.distributions(), model.parent).state_bytes > 0


@contextmanager
def served(
    model: Path, slots: int = 16, *, is_apart: bool = False, kv_tokens: int = 0, **limits: Any
) -> Iterator[Engine]:
    """An engine with the memory that jitney gives such a model: a pool where it keeps a state."""
    is_pool = keeps_state(model)
    cells = (slots + SLOTS_SPARE) * TOKENS_MAX
    values = {
        **({} if is_pool else {**SHAPE_UNTRIED, "batch_invariant": True}),
        "model": str(model),
        "kv_tokens": kv_tokens or cells,
        "slots": slots + SLOTS_SPARE,
        "slot_tokens_max": 0 if is_pool else TOKENS_MAX,
        "flash_attention": is_pool,
        "max_num_batched_tokens": 2048,
        # More would spin for each other on a busy machine, and the model is tiny.
        "threads": 1,
    }
    backend = (load_process if is_apart else load)("llamacpp", values)
    settings = {"model_len_max": TOKENS_MAX, "max_num_seqs": slots, **limits}
    engine = Engine(backend, SchedulerSettings(**settings))
    engine.start()
    try:
        yield engine
    finally:
        engine.close(drain_s=0)


def ask(engine: Engine, prompts: Prompts, count: int) -> list[Said]:
    """The greedy answers to these prompts, asked together."""
    params = SamplingParams(temperature=0, max_tokens=count, logprobs=LISTED, ignore_eos=True)
    handles: list[Handle[Answer]] = [
        engine.send(
            Request(id=RequestId(f"{number}"), prompt=prompt, params=params, seed=0), streams=False
        )
        for number, prompt in enumerate(prompts)
    ]
    said = []
    for prompt, handle in zip(prompts, handles, strict=True):
        (completion,) = handle.result(WAIT_S).completions
        assert completion.logprobs, completion.message
        listed = tuple(dict(each.top) for each in completion.logprobs)
        said.append(Said(prompt, completion.tokens, listed, completion.usage.cached_count))
    return said


def logprobs_alone(
    model: Path, tokens: Sequence[int], first: int, *, is_fused: bool, at_once: int = TOKENS_MAX
) -> npt.NDArray[np.float64]:
    """The logprobs of every token after each of these from position `first` on."""
    loaded, count = Model(model, gpu_layers=0, extra_kernels=False), len(tokens)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 2 * TOKENS_MAX
    params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type = (
        llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        if is_fused
        else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    params.swa_full = False
    context = llama_cpp.llama_init_from_model(loaded.pointer, params)
    assert context, "there is no room for it"
    rows = np.empty((count, loaded.vocabulary_count))
    try:
        for start in range(0, count, at_once):
            end = min(start + at_once, count)
            batch = llama_cpp.llama_batch()
            batch.n_tokens = end - start
            batch.token = (ctypes.c_int32 * (end - start))(*tokens[start:end])
            wanted = [position >= first for position in range(start, end)]
            batch.logits = (ctypes.c_int8 * (end - start))(*wanted)
            assert llama_cpp.llama_decode(context, batch) == 0, "it failed"
            if any(wanted):
                shape = (sum(wanted), loaded.vocabulary_count)
                found = llama_cpp.llama_get_logits(context)
                rows[end - sum(wanted) : end] = np.ctypeslib.as_array(found, shape=shape)
    finally:
        llama_cpp.llama_free(context)
    rows = rows[first:]
    rows -= rows.max(axis=-1, keepdims=True)
    return np.asarray(rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True)))


def gap_to_alone(model: Path, said: Said) -> float:
    """The largest difference of a likely token's logprob, over the whole answer.

    Both stand on the same tokens at each position, whatever each would have gone on with.
    """
    rows = _rows_alone(model, said, keeps_state(model))
    gaps = [
        abs(listed[token] - row[token])
        if token in listed
        # One that is not listed is at most as likely as the last that is.
        else max(0.0, row[token] - min(listed.values()))
        for listed, row in zip(said.likely, rows, strict=True)
        for token in map(int, np.flatnonzero(row >= LIKELY))
    ]
    return float(max(gaps))


def rounding_alone(model: Path, said: Said) -> float:
    """The same between the library's own ways: its two kernels of attention, and token by token."""
    is_fused = keeps_state(model)
    rows = _rows_alone(model, said, is_fused)
    others = [_rows_alone(model, said, not is_fused), _rows_alone(model, said, is_fused, 1)]
    return max(float(np.abs(rows - other)[rows >= LIKELY].max()) for other in others)


def _rows_alone(
    model: Path, said: Said, is_fused: bool, at_once: int = TOKENS_MAX
) -> npt.NDArray[np.float64]:
    tokens, first = (*said.prompt, *said.tokens[:-1]), len(said.prompt) - 1
    return logprobs_alone(model, tokens, first, is_fused=is_fused, at_once=at_once)
