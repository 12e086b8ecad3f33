"""A small model with the kernels of a GPU, against the same with plain ones."""

from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch

from jitney.backends.torch.architecture import Activation, Architecture
from jitney.backends.torch.device_rows import DeviceRows
from jitney.backends.torch.kernels.span_attention import tile_queries
from jitney.backends.torch.kernels.triton_ops import TritonOps
from jitney.backends.torch.model import Decoder, Layer
from jitney.backends.torch.pass_rows import PassRows
from jitney.backends.torch.plain_ops import PlainOps
from jitney.backends.torch.scaled_weight import FP8, Weight, scaled

SHAPE = Architecture(
    family="llama", layers=2, width=64, heads=6, heads_kv=2, head=16, inner=96, vocabulary=50,
    length_max=256, epsilon=1e-5, attention_scale=0.25,
)  # fmt: skip
BLOCK, BLOCKS = 64, 8
START, SPAN = 58, 8
FLOAT16_MAX = 0.01
"""How far float16 may be off, in numbers about as large as 1. 0.0024 was seen."""
TABLES = [[3, 0], [5, 6], [1, 7]]


def _matrix(*sizes: int, is_rich: bool) -> Weight:
    return scaled(_random(*sizes), FP8) if is_rich else _random(*sizes)


def _random(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes) * 0.1


def _layer(index: int, *, is_rich: bool) -> Layer:
    """One layer with everything that a family may have and weights in FP8, or with neither."""
    shape, d = SHAPE, SHAPE.head
    wide = (shape.heads + 2 * shape.heads_kv) * d
    angles = torch.arange(shape.length_max)[:, None] * torch.rand(1, d // 2)
    is_bare = is_rich and index == 1
    return Layer(
        attention_norm=1 + _random(shape.width),
        qkv=_matrix(wide, shape.width, is_rich=is_rich),
        qkv_bias=_random(wide) if is_rich else None,
        query_norm=1 + _random(d) if is_rich else None,
        key_norm=1 + _random(d) if is_rich else None,
        output=_matrix(shape.width, shape.heads * d, is_rich=is_rich),
        after_attention_norm=1 + _random(shape.width) if is_rich else None,
        feed_norm=1 + _random(shape.width),
        gate_up=_matrix(2 * shape.inner, shape.width, is_rich=is_rich),
        down=_matrix(shape.width, shape.inner, is_rich=is_rich),
        after_feed_norm=1 + _random(shape.width) if is_rich else None,
        keys=torch.randn(BLOCKS, BLOCK, shape.heads_kv, d),
        values=torch.randn(BLOCKS, BLOCK, shape.heads_kv, d),
        cosines=None if is_bare else angles.cos(),
        sines=None if is_bare else angles.sin(),
        window=10 if is_bare else 0,
    )


def _model(*, is_rich: bool) -> Decoder:
    torch.manual_seed(0)
    layers = SHAPE.layers if is_rich else 1  # only rich ones differ from each other
    return Decoder(
        embedding=torch.randn(SHAPE.vocabulary, SHAPE.width),
        embedding_scale=2.0 if is_rich else 1.0,
        layers=tuple(_layer(index, is_rich=is_rich) for index in range(layers)),
        norm=torch.ones(SHAPE.width),
        head=torch.randn(SHAPE.vocabulary, SHAPE.width),
        epsilon=SHAPE.epsilon,
    )


def _rows() -> tuple[PassRows, DeviceRows]:
    """Two sequences with a new token each, and a span of 8 tokens from position 58 on."""
    spans = [(0, 5, 1), (1, 70, 1), (2, START, SPAN)]
    positions = [at for _, start, count in spans for at in range(start, start + count)]
    cells = [
        TABLES[slot][at // BLOCK] * BLOCK + at % BLOCK
        for slot, start, count in spans
        for at in range(start, start + count)
    ]
    plain = PassRows(
        tokens=torch.randint(0, SHAPE.vocabulary, (2 + SPAN,)),
        positions=torch.tensor(positions),
        cells=torch.tensor(cells),
        blocks=torch.tensor(TABLES),
        starts=torch.tensor([start for _, start, _ in spans]),
        counts=torch.tensor([count for _, _, count in spans]),
        wanted=torch.tensor([0, 1, 1 + SPAN]),
        decodes=2,
    )
    step = tile_queries(SHAPE.heads // SHAPE.heads_kv, SHAPE.head)
    tiles = [(2, 2 + at, START + at, min(step, SPAN - at)) for at in range(0, SPAN, step)]
    fields = {name: getattr(plain, name) for name in PassRows.__dataclass_fields__}
    device = DeviceRows(
        **fields, slots=torch.tensor([0, 1]), tiles=torch.tensor(tiles), length_max=71
    )
    return plain, device


@pytest.mark.parametrize(("is_rich", "is_invariant"), [(False, False), (True, True)])
def test_the_model_computes_the_same_with_kernels(is_rich: bool, is_invariant: bool) -> None:
    """Decodes and a span in one pass, with all that a family may have, and with nothing of it."""
    shape = replace(SHAPE, activation=Activation.GELU) if is_rich else SHAPE
    plain, device = _rows()
    model = _model(is_rich=is_rich)
    want = model.hidden(plain, PlainOps(shape))
    kernels = TritonOps(shape, torch.float32, is_invariant)
    got = _model(is_rich=is_rich).hidden(device, kernels)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    logits = model.logits(want[plain.wanted], PlainOps(shape))
    written = torch.empty_like(logits)
    kernels.write_logits(got[plain.wanted], model.head, written)
    torch.testing.assert_close(written, logits, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("is_invariant", [False, True])
def test_float16_stays_near_float32(is_invariant: bool) -> None:
    """Guards kernels that keep a sum, or a part of one, in the type of their results."""
    plain, device = _rows()
    want = _rounded(torch.float32).hidden(plain, PlainOps(SHAPE))
    kernels = TritonOps(SHAPE, torch.float16, is_invariant)
    model = _rounded(torch.float16)
    got = model.hidden(device, kernels)
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.float(), want, atol=FLOAT16_MAX, rtol=0)
    logits = torch.empty((len(got), SHAPE.vocabulary), dtype=torch.float16)
    kernels.write_logits(got, model.head, logits)
    wanted = got.float() @ model.head.float().T
    torch.testing.assert_close(logits.float(), wanted, atol=FLOAT16_MAX, rtol=1e-3)


def _rounded(dtype: torch.dtype) -> Decoder:
    """A model whose weights are exact in float16, in this type."""
    model = _model(is_rich=False)

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.half().to(dtype)

    names = ("qkv", "output", "gate_up", "down", "keys", "values")
    layers = tuple(
        replace(layer, **{name: cast(getattr(layer, name)) for name in names})
        for layer in model.layers
    )
    return replace(model, layers=layers, embedding=cast(model.embedding), head=cast(model.head))


def test_the_last_layer_computes_wanted_rows_alone() -> None:
    """Guards parts of prompts, of which no row is wanted, and the keys and values of all rows."""
    _, device = _rows()
    kernels = TritonOps(SHAPE, torch.float32, is_invariant=False)
    whole = _model(is_rich=True)
    hidden = whole.hidden(device, kernels)
    for wanted in ([0, 1, 1 + SPAN], []):
        some = replace(device, wanted=torch.tensor(wanted, dtype=torch.int32))
        short = _model(is_rich=True)
        got = short.hidden(some, kernels, wanted_only=True)
        torch.testing.assert_close(got, hidden[some.wanted], atol=1e-4, rtol=1e-4)
        for each, other in zip(short.layers, whole.layers, strict=True):
            torch.testing.assert_close(each.keys, other.keys)
