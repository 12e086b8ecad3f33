"""`choose_tokens`: steps 6 to 9 of `jitney.sampling.sampler` on the device, one program a row.

The kept tokens are those above an edge, and of those that equal it the ones with the lowest ids. An
edge is found digit by digit among all floats, so no row is sorted. Masses are sums of float64, as
the reference has them.

Tests: tests/unit/backends/torch/kernels/test_choice.py.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from jitney.backends.torch.kernels.launch import launch_options

CHUNK = 4096

NOT_A_NUMBER = -1
NOTHING_LEFT = -2
"""Reported instead of a token where none can be chosen."""

_ALL = tl.constexpr(-(2**31))
"""The edge below every float."""
_NOT_A_NUMBER = tl.constexpr(NOT_A_NUMBER)
_NOTHING_LEFT = tl.constexpr(NOTHING_LEFT)


@dataclass(frozen=True, slots=True)
class Draws:
    """How the token of each row is chosen."""

    numbers: torch.Tensor
    """[r, 4] in float64: temperature, top_p, min_p, and the number drawn; temperature 0 is greedy,
    and the others are not read."""
    counts: torch.Tensor
    """[r, 2] in int32: top_k, or 0 for all; the slot that the token is for, below 0 for none."""


@triton.jit
def _keys(row, n, N: tl.constexpr):
    """Logits, and integers in the same order."""
    logit = tl.load(row + n, mask=n < N, other=float("-inf")).to(tl.float32)
    logit = tl.where(logit == 0.0, 0.0, logit)
    bits = logit.to(tl.int32, bitcast=True)
    return logit, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def _weights(logit, best, temperature):
    """How likely tokens are, relative to the best one."""
    return tl.exp((logit.to(tl.float64) - best) / temperature)


@triton.jit
def _weight_of(key, best, temperature):
    """The weight of the logit with this key."""
    bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.int32)
    return _weights(bits.to(tl.float32, bitcast=True), best, temperature)


@triton.jit
def _counts_from(row, a, b, c, N: tl.constexpr, CHUNK: tl.constexpr):
    """How many keys are at least a, b and c."""
    first_sum = tl.zeros((CHUNK,), tl.int32)
    second_sum = tl.zeros((CHUNK,), tl.int32)
    third_sum = tl.zeros((CHUNK,), tl.int32)
    for first in range(0, N, CHUNK):
        n = first + tl.arange(0, CHUNK)
        _, key = _keys(row, n, N)
        inside = n < N
        first_sum += (inside & (key >= a)).to(tl.int32)
        second_sum += (inside & (key >= b)).to(tl.int32)
        third_sum += (inside & (key >= c)).to(tl.int32)
    return tl.sum(first_sum, 0), tl.sum(second_sum, 0), tl.sum(third_sum, 0)


@triton.jit
def _masses_from(row, a, b, c, best, temperature, N: tl.constexpr, CHUNK: tl.constexpr):
    """The mass of the keys that are at least a, b and c."""
    first_sum = tl.zeros((CHUNK,), tl.float64)
    second_sum = tl.zeros((CHUNK,), tl.float64)
    third_sum = tl.zeros((CHUNK,), tl.float64)
    for first in range(0, N, CHUNK):
        logit, key = _keys(row, first + tl.arange(0, CHUNK), N)
        weight = _weights(logit, best, temperature)
        first_sum += tl.where(key >= a, weight, 0.0)
        second_sum += tl.where(key >= b, weight, 0.0)
        third_sum += tl.where(key >= c, weight, 0.0)
    return tl.sum(first_sum, 0), tl.sum(second_sum, 0), tl.sum(third_sum, 0)


@triton.jit
def _edge_of_top_k(row, top_k, N: tl.constexpr, CHUNK: tl.constexpr):
    """The key of the last of the k best, and how many that equal it are among them."""
    edge = tl.full((), _ALL, tl.int64)
    step = tl.full((), 1 << 30, tl.int64)
    for _ in range(16):
        a, b, c = _counts_from(row, edge + step, edge + 2 * step, edge + 3 * step, N, CHUNK)
        edge += step * ((a >= top_k).to(tl.int64) + (b >= top_k) + (c >= top_k))
        step = step // 4
    above, _, _ = _counts_from(row, edge + 1, edge + 1, edge + 1, N, CHUNK)
    return edge, top_k - above


@triton.jit
def _edge_of_top_p(
    row, floor, floor_equals, top_p, best, temperature, N: tl.constexpr, CHUNK: tl.constexpr
):
    """The same for the tokens whose mass just reaches top_p, of those that top_k keeps."""
    whole, above, _ = _masses_from(row, floor, floor + 1, floor, best, temperature, N, CHUNK)
    if floor_equals > 0:
        whole = above + floor_equals * _weight_of(floor, best, temperature)
    target = top_p * whole
    edge = tl.full((), _ALL, tl.int64)
    step = tl.full((), 1 << 30, tl.int64)
    for _ in range(16):
        x, y, z = edge + step, edge + 2 * step, edge + 3 * step
        a, b, c = _masses_from(row, x, y, z, best, temperature, N, CHUNK)
        edge += step * (
            ((a >= target) | (x <= floor)).to(tl.int64)
            + ((b >= target) | (y <= floor))
            + ((c >= target) | (z <= floor))
        )
        step = step // 4
    above, _, _ = _masses_from(row, edge + 1, edge + 1, edge + 1, best, temperature, N, CHUNK)
    equals = tl.ceil((target - above) / _weight_of(edge, best, temperature)).to(tl.int32)
    equals = tl.maximum(equals, 1)
    if (floor_equals > 0) & (edge == floor):
        equals = tl.minimum(equals, floor_equals)
    return edge, equals


@triton.jit
def _kept(row, first, edge, equals_left, best, temperature, min_p, N, CHUNK: tl.constexpr):
    """Ids and weights of a chunk, 0 for what is not kept, and how many equals may still come."""
    n = first + tl.arange(0, CHUNK)
    logit, key = _keys(row, n, N)
    weight = _weights(logit, best, temperature)
    weight = tl.where((key >= edge) & (weight >= min_p), weight, 0.0)
    equal = (key == edge).to(tl.int32)
    equal_count = tl.sum(equal, 0)
    if equal_count > equals_left:
        weight = tl.where((equal > 0) & (tl.cumsum(equal, 0) > equals_left), 0.0, weight)
    return n, weight, equals_left - equal_count


@triton.jit
def _draw(row, edge, equals, drawn, best, temperature, min_p, N: tl.constexpr, CHUNK: tl.constexpr):
    """The kept token at the number drawn, in the order of ids."""
    left = equals
    total = tl.zeros((), tl.float64)
    for first in range(0, N, CHUNK):
        _, weight, left = _kept(row, first, edge, left, best, temperature, min_p, N, CHUNK)
        total += tl.sum(weight, 0)
    target = drawn * total
    left = equals
    sum_before = tl.zeros((), tl.float64)
    token = tl.full((), -1, tl.int32)
    last = tl.full((), 0, tl.int32)
    for first in range(0, N, CHUNK):
        n, weight, left = _kept(row, first, edge, left, best, temperature, min_p, N, CHUNK)
        sum_after = sum_before + tl.sum(weight, 0)
        if (token < 0) & (sum_after > target):
            border = sum_before + tl.cumsum(weight, 0)
            token = tl.min(tl.where((border > target) & (weight > 0.0), n, N), 0)
        last = tl.maximum(last, tl.max(tl.where(weight > 0.0, n, 0), 0))
        sum_before = sum_after
    # Rounding may leave the border of a chunk at the target: then it is the last token.
    return tl.where((token < 0) | (token >= N), last, token)


@triton.jit
def _choose(
    logits, best_values, best_columns, numbers, counts, sampled, tokens,
    STRIDE: tl.constexpr, N: tl.constexpr, CHUNK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    r = tl.program_id(0)
    row = logits + r.to(tl.int64) * STRIDE
    best_value = tl.load(best_values + r)
    token = tl.load(best_columns + r)
    temperature = tl.load(numbers + 4 * r)
    if best_value == float("inf"):
        token = tl.full((), _NOT_A_NUMBER, tl.int32)
    elif best_value == float("-inf"):
        token = tl.full((), _NOTHING_LEFT, tl.int32)
    elif temperature > 0.0:
        best = best_value.to(tl.float64)
        top_k = tl.load(counts + 2 * r)
        top_p = tl.load(numbers + 4 * r + 1)
        edge = tl.full((), _ALL, tl.int64)
        equals = tl.full((), 0, tl.int32)
        if (top_k > 0) & (top_k < N):
            edge, equals = _edge_of_top_k(row, top_k, N, CHUNK)
        if top_p < 1.0:
            edge, equals = _edge_of_top_p(row, edge, equals, top_p, best, temperature, N, CHUNK)
        min_p, drawn = tl.load(numbers + 4 * r + 2), tl.load(numbers + 4 * r + 3)
        token = _draw(row, edge, equals, drawn, best, temperature, min_p, N, CHUNK)
    tl.store(tokens + r, token)
    slot = tl.load(counts + 2 * r + 1).to(tl.int64)
    if slot >= 0:
        tl.store(sampled + slot, tl.maximum(token, 0))


def choose_tokens(
    logits: torch.Tensor,
    best: tuple[torch.Tensor, torch.Tensor],
    draws: Draws,
    sampled: torch.Tensor,
    tokens: torch.Tensor,
) -> None:
    """Writes the token of each row of logits [r, n] to `tokens` [r], and to `sampled` [slots].

    `best` is what `best_tokens` returns of the logits.
    """
    rows, count = logits.shape
    values, columns = best
    _choose[(rows,)](
        logits, values, columns, draws.numbers, draws.counts, sampled, tokens,
        logits.stride(0), count, min(CHUNK, triton.next_power_of_2(count)), num_warps=16,
        **launch_options(logits),
    )  # fmt: skip
