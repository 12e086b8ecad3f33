"""Small random checkpoints of models that keep a recurrent state, one for each kind of layer.

A layer is a list of parts: attention, a Mamba-2 mixer (`ssm`), a gated delta net (`delta`), a short
convolution (`conv`), an inner network (`inner`). Their tensors are those that llama.cpp loads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tests.models_for_tests import add_vocabulary, finish

Floats = npt.NDArray[np.float32]

WIDTH, HEADS, HEADS_KV, HEAD, INNER = 128, 4, 2, 32, 256
CONV, STATE, GROUPS = 4, 16, 1
MIXED = 2 * WIDTH
"""What a mixer works on: the library wants twice the width for one family."""
MIX_HEADS = 8
DELTA_HEADS, DELTA_STATE = 2, 32
CONTEXT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    """The layers of a checkpoint, and what only its family has."""

    architecture: str
    layers: tuple[str, ...]
    """The parts of each layer."""
    metadata: Mapping[str, int | float | list[int]] = field(default_factory=dict)
    output_norm: str = "output_norm"
    inner_norm: str = "ffn_norm.weight"


_SSM = {
    "ssm.conv_kernel": CONV,
    "ssm.inner_size": MIXED,
    "ssm.state_size": STATE,
    "ssm.time_step_rank": MIX_HEADS,
    "ssm.group_count": GROUPS,
}

HYBRIDS: Mapping[str, Hybrid] = {
    "lfm2": Hybrid(
        architecture="lfm2",
        layers=("conv inner", "attention head-norms inner", "conv inner"),
        metadata={"shortconv.l_cache": 3},
        output_norm="token_embd_norm",
    ),
    "granitehybrid": Hybrid(
        architecture="granitehybrid",
        layers=("ssm inner", "attention inner", "ssm inner"),
        metadata=_SSM,
    ),
    "nemotron_h": Hybrid(
        architecture="nemotron_h",
        layers=("ssm", "attention", "mlp", "ssm", "mlp"),
        metadata={**_SSM, "attention.layer_norm_epsilon": 1e-5},
    ),
    "falcon-h1": Hybrid(
        architecture="falcon-h1",
        layers=("attention ssm inner", "attention ssm inner"),
        metadata=_SSM,
        inner_norm="ffn_norm",
    ),
    "qwen35": Hybrid(
        architecture="qwen35",
        layers=("delta gated", "attention head-norms gated"),
        metadata={
            "ssm.conv_kernel": CONV,
            "ssm.inner_size": DELTA_HEADS * DELTA_STATE,
            "ssm.state_size": DELTA_STATE,
            "ssm.time_step_rank": DELTA_HEADS,
            "ssm.group_count": DELTA_HEADS,
            "full_attention_interval": 2,
            "rope.dimension_sections": [8, 4, 4, 0],
        },
    ),
    "mamba2": Hybrid(architecture="mamba2", layers=("ssm", "ssm"), metadata=_SSM),
}


def write_hybrid(path: Path, hybrid: Hybrid, *, seed: int = 1, context: int = CONTEXT) -> None:
    """Write a checkpoint of random weights."""
    writer = gguf.GGUFWriter(path, hybrid.architecture)
    writer.add_name("tiny")
    writer.add_file_type(0)
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(len(hybrid.layers))
    parts = [layer.split() for layer in hybrid.layers]
    # As the files of these families have it: no heads where there is no attention.
    attends = ["attention" in each for each in parts]
    if hybrid.architecture != "mamba2":
        writer.add_head_count(HEADS)
        by_layer = [HEADS_KV * each for each in attends]
        writer.add_head_count_kv(HEADS_KV if hybrid.architecture == "qwen35" else by_layer)
        writer.add_key_length(HEAD)
        writer.add_value_length(HEAD)
        writer.add_rope_dimension_count(HEAD)
        writer.add_rope_freq_base(10_000.0)
    inner = [INNER * bool({"inner", "mlp", "gated"}.intersection(each)) for each in parts]
    writer.add_feed_forward_length(inner if 0 in inner else INNER)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in hybrid.metadata.items():
        name = f"{hybrid.architecture}.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)
    drawn = _Drawn(seed)
    vocabulary = add_vocabulary(writer)
    weights = {
        "token_embd.weight": drawn.matrix(vocabulary, WIDTH, 2.0),
        f"{hybrid.output_norm}.weight": drawn.near(1.0, WIDTH),
        "output.weight": drawn.matrix(vocabulary, WIDTH, 2.0),
    }
    for layer, names in enumerate(parts):
        own = {"attn_norm.weight": drawn.near(1.0, WIDTH)}
        for name in names:
            own |= _tensors(name, hybrid, drawn)
        weights |= {f"blk.{layer}.{name}": each for name, each in own.items()}
    for name, each in weights.items():
        writer.add_tensor(name, each)
    finish(writer)


class _Drawn:
    """Random weights."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def matrix(self, rows: int, columns: int, gain: float = 1.5) -> Floats:
        drawn = self._random.standard_normal((rows, columns)) * (gain / columns**0.5)
        return np.asarray(drawn, np.float32)

    def near(self, middle: float, *shape: int) -> Floats:
        return np.asarray(middle + self._random.standard_normal(shape) / 4, np.float32)

    def decays(self, *shape: int) -> Floats:
        # Slow, so that tokens far back are still seen.
        return np.asarray(-self._random.uniform(0.001, 0.02, shape), np.float32)


def _tensors(part: str, hybrid: Hybrid, drawn: _Drawn) -> dict[str, Floats]:
    """The weights of one part of a layer, by name."""
    match part:
        case "attention":
            # A gate for each head stands beside its query.
            doubled = 2 if hybrid.architecture == "qwen35" else 1
            return {
                "attn_q.weight": drawn.matrix(HEADS * HEAD * doubled, WIDTH),
                "attn_k.weight": drawn.matrix(HEADS_KV * HEAD, WIDTH),
                "attn_v.weight": drawn.matrix(HEADS_KV * HEAD, WIDTH),
                "attn_output.weight": drawn.matrix(WIDTH, HEADS * HEAD),
            }
        case "head-norms":
            return {f"attn_{name}_norm.weight": drawn.near(1.5, HEAD) for name in "qk"}
        case "conv":
            return {
                "shortconv.conv.weight": drawn.matrix(WIDTH, 3, 2.0),
                "shortconv.in_proj.weight": drawn.matrix(3 * WIDTH, WIDTH),
                "shortconv.out_proj.weight": drawn.matrix(WIDTH, WIDTH),
            }
        case "ssm":
            channels = MIXED + 2 * GROUPS * STATE
            return {
                "ssm_in.weight": drawn.matrix(MIXED + channels + MIX_HEADS, WIDTH),
                "ssm_conv1d.weight": drawn.matrix(channels, CONV, 2.0),
                "ssm_conv1d.bias": drawn.near(0.0, channels),
                "ssm_dt.bias": drawn.near(0.0, MIX_HEADS),
                "ssm_a": drawn.decays(MIX_HEADS, 1),
                "ssm_d": drawn.near(1.0, MIX_HEADS, 1),
                "ssm_norm.weight": drawn.near(1.0, GROUPS, MIXED // GROUPS),
                "ssm_out.weight": drawn.matrix(WIDTH, MIXED),
            }
        case "delta":
            size = DELTA_HEADS * DELTA_STATE
            return {
                "attn_qkv.weight": drawn.matrix(3 * size, WIDTH),
                "attn_gate.weight": drawn.matrix(size, WIDTH),
                "ssm_conv1d.weight": drawn.matrix(3 * size, CONV, 2.0),
                "ssm_dt.bias": drawn.near(0.0, DELTA_HEADS),
                "ssm_a": drawn.decays(DELTA_HEADS),
                "ssm_beta.weight": drawn.matrix(DELTA_HEADS, WIDTH),
                "ssm_alpha.weight": drawn.matrix(DELTA_HEADS, WIDTH),
                "ssm_norm.weight": drawn.near(1.0, DELTA_STATE),
                "ssm_out.weight": drawn.matrix(WIDTH, size),
            }
    assert part in ("inner", "mlp", "gated"), part
    weights = {
        "ffn_up.weight": drawn.matrix(INNER, WIDTH),
        "ffn_down.weight": drawn.matrix(WIDTH, INNER),
    }
    if part != "mlp":
        weights["ffn_gate.weight"] = drawn.matrix(INNER, WIDTH)
        norm = hybrid.inner_norm if part == "inner" else "post_attention_norm.weight"
        weights[norm] = drawn.near(1.0, WIDTH)
    return weights
