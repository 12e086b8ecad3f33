"""Which rows are sampled on the GPU, and with which numbers; the meaning is `sampling/sampler`.

The GPU takes the best token, or draws with temperature, top_k, top_p and min_p. Rows with anything
else are copied to the host, and its sampler chooses. Called by `device_passes` on the thread that
runs batches.

Tests: tests/unit/backends/torch/kernels/test_gpu_backend.py.
"""

from jitney.backends.shared.slots import EntryRows
from jitney.backends.torch.device_rows import Number
from jitney.core.batch import Sampling
from jitney.sampling.draw import uniform
from jitney.sampling.sampler import TEMPERATURE_MIN

GREEDY: Number = (0.0, 1.0, 0.0, 0.0)


def is_on_device(each: EntryRows) -> bool:
    """Whether the GPU samples this entry, or nobody does."""
    if each.scored:
        return False
    sampling = each.contents.sampling
    return not each.entry.wants_token or sampling is None or _is_plain(sampling)


def draw_of(sampling: Sampling | None, position: int) -> tuple[Number, int]:
    """The numbers of a draw for a position, and top_k. None stands for the best token."""
    if sampling is None or sampling.temperature < TEMPERATURE_MIN:
        return GREEDY, 0
    drawn = uniform(sampling.seed, position)
    return (sampling.temperature, sampling.top_p, sampling.min_p, drawn), max(sampling.top_k, 0)


def _is_plain(sampling: Sampling) -> bool:
    return not (
        sampling.logit_bias
        or (sampling.min_tokens and sampling.end_tokens)
        or sampling.logprobs is not None
        or sampling.constraint is not None
        or sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty
        or sampling.presence_penalty
    )
