"""Grows a small random checkpoint of an architecture until llama.cpp loads it.

The library says which key or tensor it misses, and what size a tensor should have. So a checkpoint
needs no recipe: it begins with a vocabulary and gets what is asked for. A key has the value of
`KEYS`, or that of `OWN_KEYS` where an architecture wants another one.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from jitney.backends.llamacpp.bindings import Model
from jitney.errors import ModelError
from tests.models_for_tests import add_vocabulary, finish

KeyValue = bool | int | float | list[int] | list[float]
Size = tuple[int, ...]
"""Of a tensor, the fastest dimension first, as the library has it."""

WIDTH, HEADS, HEADS_KV, HEAD, INNER, LAYERS, EXPERT = 128, 4, 2, 32, 256, 4, 64
VOCABULARY = 268
WINDOW = 64
GROWTH_MAX = 800
"""Complaints of the library."""

FIRST: Mapping[str, KeyValue] = {
    "context_length": 1024,
    "embedding_length": WIDTH,
    "block_count": LAYERS,
    "feed_forward_length": INNER,
    "attention.head_count": HEADS,
    "attention.head_count_kv": HEADS_KV,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
}
"""Keys that every checkpoint has."""

_RANKS = tuple(
    f"attention.{each}_lora_rank" for each in ("decay", "iclr", "value_residual_mix", "gate")
)
KEYS: Mapping[str, KeyValue] = {
    **dict.fromkeys(("expert_feed_forward_length", "expert_shared_feed_forward_length"), EXPERT),
    **dict.fromkeys(("expert_chunk_feed_forward_length", "moe_latent_size"), EXPERT),
    "expert_count": 8,
    "expert_used_count": 2,
    "expert_shared_count": 1,
    "expert_group_count": 1,
    "expert_group_used_count": 1,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.0,
    "expert_group_scale": 1.0,
    "experts_per_group": 2,
    "leading_dense_block_count": 1,
    "interleave_moe_layer_step": 2,
    "moe_every_n_layers": 2,
    "hash_layer_count": 1,
    **dict.fromkeys(("logit_scale", "residual_scale", "embedding_scale"), 1.0),
    "attention.scale": HEAD**-0.5,
    "attention.clamp_kqv": 8.0,
    "attention.sliding_window": WINDOW,
    "attention.sliding_window_pattern": [1, 1, 1, 0],
    "attention.shared_kv_layers": 0,
    **dict.fromkeys(("attention.key_length", "attention.value_length"), HEAD),
    **dict.fromkeys(("attention.key_length_swa", "attention.value_length_swa"), HEAD),
    **dict.fromkeys(("attention.key_length_mla", "attention.key_length_mla_swa"), 48),
    **dict.fromkeys(("attention.value_length_mla", "attention.value_length_mla_swa"), HEAD),
    "attention.q_lora_rank": 64,
    **dict.fromkeys(("attention.kv_lora_rank", "attention.kv_lora_rank_swa"), 32),
    **dict.fromkeys(_RANKS, 32),
    **dict.fromkeys(("attention.output_lora_rank", "hyper_connection.low_rank"), 32),
    "attention.output_group_count": 2,
    "attention.compress_ratios": [0, 4, 0, 4],
    "attention.compress_rope_freq_base": 1e4,
    "attention.group_norm_epsilon": 1e-5,
    "attention.indexer.head_count": 2,
    "attention.indexer.key_length": 32,
    "attention.indexer.top_k": 64,
    "attention.indexer.block_size": 16,
    "attention.indexer.local_blocks": 1,
    "rope.dimension_count": 16,
    "rope.dimension_count_swa": HEAD,
    "rope.dimension_sections": [8, 4, 4, 0],
    "rope.freq_base_swa": 1e4,
    "rope.scaling.yarn_log_multiplier": 0.1,
    "use_parallel_residual": True,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 2 * WIDTH,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 8,
    "ssm.group_count": 1,
    "shortconv.l_cache": 3,
    "kda.head_dim": 32,
    "kda.gate_lower_bound": -5.0,
    "wkv.head_size": 64,
    **dict.fromkeys(("time_mix_extra_dim", "time_decay_extra_dim"), 32),
    "rescale_every_n_layers": 0,
    **dict.fromkeys(("swiglu_clamp_exp", "swiglu_clamp_shexp"), [7.0] * LAYERS),
    **dict.fromkeys(("xielu.alpha_n", "xielu.alpha_p"), [1.0] * LAYERS),
    "xielu.beta": [0.5] * LAYERS,
    "xielu.eps": [1e-6] * LAYERS,
    **dict.fromkeys(("activation.situ_beta", "activation.situ_linear_beta"), 1.0),
    "attn_res.block_size": 2,
    "embedding_length_per_layer_input": 32,
    "hyper_connection.count": 2,
    "hyper_connection.rate": 2,
    "hyper_connection.magnitude": 1.0,
    "hyper_connection.epsilon": 1e-5,
    "hyper_connection.sinkhorn_iterations": 3,
    "adapters.count": 1,
    "adapters.lora_rank": 8,
}
"""What a checkpoint gets when the library asks for it."""

_EXPERTS: dict[str, KeyValue] = {"expert_count": 8, "expert_used_count": 2}
_GATED: dict[str, KeyValue] = _EXPERTS | {"expert_gating_func": 2}
_LATENT: dict[str, KeyValue] = {
    "attention.head_count_kv": 1,
    "attention.q_lora_rank": 64,
    "attention.kv_lora_rank": 32,
    # As the files have it: the key is the compressed one and the part that is rotated.
    "attention.key_length": 48,
    "attention.value_length": 32,
    "attention.key_length_mla": 48,
    "attention.value_length_mla": 32,
    "rope.dimension_count": 16,
}
_SOME_ATTENTION: dict[str, KeyValue] = {"attention.head_count_kv": [0, HEADS_KV, 0, HEADS_KV]}
_DELTA: dict[str, KeyValue] = {
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "full_attention_interval": 2,
    "rope.dimension_count": HEAD,
    "ssm.inner_size": 64,
    "ssm.state_size": 32,
    "ssm.time_step_rank": 2,
    "ssm.group_count": 2,
}
_EXPERTS_OF = (
    *("arctic", "dbrx", "deepseek", "deepseek4", "dots3note"),
    *("gpt-oss", "grok", "hy_v3", "laguna", "llama4", "maple", "mellum", "mimo2", "minimax-01"),
    *("minimax-m3", "spark2_5", "step35"),
)
_LATENT_OF = ("deepseek2", "deepseek32", "glm-dsa", "mistral4", "bailingmoe3", "kimi-k3")

OWN_KEYS: Mapping[str, Mapping[str, KeyValue]] = {
    **dict.fromkeys(_EXPERTS_OF, _EXPERTS),
    **dict.fromkeys(_LATENT_OF, _EXPERTS | _LATENT),
    **dict.fromkeys(("plm", "minicpm3"), _LATENT | {"attention.head_count_kv": HEADS}),
    **dict.fromkeys(("qwen3next", "qwen35moe", "qwen4exp"), _EXPERTS | _DELTA),
    **dict.fromkeys(("jamba", "lfm2moe"), _EXPERTS | _SOME_ATTENTION),
    "plamo2": {
        **_SOME_ATTENTION,
        "ssm.group_count": 0,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
    },
    "bailingmoe3": _EXPERTS | _LATENT | {"attention.head_count_kv": [0, 1, 0, 1]},
    "kimi-k3": _EXPERTS | _LATENT | {"attention.head_count_kv": [0, 1, 0, 1]},
    "kimi-linear": _EXPERTS | _LATENT | {"attention.head_count_kv": [0, 1, 0, 1]},
    "deepseek2-ocr": _EXPERTS | {"attention.head_count_kv": HEADS},
    "dots1": _GATED | {"attention.head_count_kv": HEADS},
    "afmoe": {**_EXPERTS, "expert_shared_count": 1, "leading_dense_block_count": 1},
    "deepseek4": _EXPERTS | {"expert_gating_func": 4},
    "hrm_text": {"hrm.layers_per_stack": 1, "hrm.h_cycles": 1, "hrm.l_cycles": 1},
    "nemotron_h_moe": {
        **_EXPERTS,
        "attention.head_count_kv": [0, HEADS_KV, 0, 0],
        "feed_forward_length": [0, 0, EXPERT, INNER],
        "expert_feed_forward_length": EXPERT,
        "expert_shared_feed_forward_length": EXPERT,
    },
    "rwkv7": dict.fromkeys(_RANKS, 32),
    "smallthinker": {**_GATED, "expert_feed_forward_length": EXPERT},
    "minimax-m2": _GATED,
    "hy_v4": _GATED | _LATENT,
    "olmoe": _EXPERTS | {"attention.head_count_kv": HEADS},
    "paddleocr": {"rope.dimension_sections": [8, 4, 4, 0]},
}
_DELTA_SIZES: dict[str, Size] = {
    # The layers with a delta net, which are every second one.
    **dict.fromkeys(("blk.0.attn_qkv.weight", "blk.2.attn_qkv.weight"), (WIDTH, 192)),
    **dict.fromkeys(("blk.0.attn_gate.weight", "blk.2.attn_gate.weight"), (WIDTH, 64)),
}
SIZES: Mapping[str, Mapping[str, Size]] = {
    "laguna": {"blk.*.attn_gate.weight": (WIDTH, HEADS)},
    "qwen3next": _DELTA_SIZES,
    "qwen35moe": _DELTA_SIZES,
    "rwkv6": {"blk.*.time_mix_lerp_fused.weight": (WIDTH, 1, 1, 5)},
}
"""Tensors of each layer that it does not ask for, or whose size tells it something."""

_KEY = re.compile(r"key not found in model: ([\w.-]*\w)")
_TENSOR = re.compile(r"tensor '([^']+)' not found")
_SIZE = re.compile(r"tensor '([^']+)' has wrong shape; expected ([\d, ]+), got")


def grow(path: Path, architecture: str) -> None:
    """Write a checkpoint that the library loads. Raises ModelError with the library's reason."""
    known = _EXPERTS if "moe" in architecture else {}
    keys = {**FIRST, **OWN_KEYS.get(architecture, known)}
    given = {"token_embd.weight": (WIDTH, VOCABULARY), **SIZES.get(architecture, {})}
    names = [name.replace("*", str(layer)) for name in given for layer in range(LAYERS)]
    names = list(dict.fromkeys(names))
    sizes = {_of_any_layer(name): size for name, size in given.items()}
    for _ in range(GROWTH_MAX):
        tensors = {name: sizes.get(name, sizes.get(_of_any_layer(name), (1,))) for name in names}
        _write(path, architecture, keys, tensors)
        try:
            Model(path, gpu_layers=0, extra_kernels=False)
        except ModelError as error:
            complaint = str(error)
        else:
            return
        if found := _KEY.search(complaint):
            key = found[1].removeprefix(f"{architecture}.")
            if key in keys or key not in KEYS:
                raise ModelError(f"nobody knows a value for {key}")
            keys[key] = KEYS[key]
        elif found := _TENSOR.search(complaint):
            names.append(found[1])
        elif found := _SIZE.search(complaint):
            every = _of_any_layer(found[1])
            # Layers of another kind have the same name, and another size.
            sizes[found[1] if every in sizes else every] = _size(found[2])
        else:
            raise ModelError(complaint.partition("by llama.cpp: ")[2].rstrip("."))
    raise ModelError("the library wants more and more")


def _of_any_layer(name: str) -> str:
    return re.sub(r"blk\.\d+\.", "blk.*.", name)


def _size(text: str) -> Size:
    size = [int(number) for number in text.split(",")]
    while len(size) > 1 and size[-1] == 1:
        size.pop()
    if 0 in size:
        raise ModelError("it wants a tensor without weights")
    return tuple(size)


def _write(
    path: Path, architecture: str, keys: Mapping[str, KeyValue], tensors: Mapping[str, Size]
) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_file_type(0)
    for name, value in keys.items():
        # The keys of one activation have no architecture in front.
        key = name if name.startswith("xielu.") else f"{architecture}.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    add_vocabulary(writer)
    random = np.random.default_rng(1)
    for name, size in tensors.items():
        writer.add_tensor(name, _drawn(random, name, size[::-1]))
    finish(writer)


def _drawn(random: np.random.Generator, name: str, shape: Size) -> npt.NDArray[np.float32]:
    """Random weights of a usual size for a tensor of this name."""
    noise = random.standard_normal(shape)
    if "norm" in name and name.endswith(".weight"):
        noise = 1 + noise / 4
    elif name.endswith(("ssm_a", "ssm_a.weight")):
        # Slow, so that tokens far back are still seen.
        noise = -random.uniform(0.001, 0.02, shape)
    elif len(shape) > 1:
        # An embedding as large as what the layers add to it.
        noise *= 1.5 / shape[-1] ** 0.5 if name != "token_embd.weight" else 2 / WIDTH**0.5
    else:
        noise /= 4
    return noise.astype(np.float32)
