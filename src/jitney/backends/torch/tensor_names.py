"""The names of tensors in published files, and the shape that each of them must have.

Pure; any thread. The keys are ours, and are the same for every kind of file.

Tests: tests/unit/backends/torch/test_load_model.py.
"""

from collections.abc import Mapping
from types import MappingProxyType

from jitney.backends.torch.architecture import Architecture

HUB_OUTER: Mapping[str, str] = MappingProxyType(
    {
        "embedding": "model.embed_tokens.weight",
        "norm": "model.norm.weight",
        "head": "lm_head.weight",
    }
)
_HUB_LAYER = {
    "attention_norm": "input_layernorm.weight",
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "query_bias": "self_attn.q_proj.bias",
    "key_bias": "self_attn.k_proj.bias",
    "value_bias": "self_attn.v_proj.bias",
    "query_norm": "self_attn.q_norm.weight",
    "key_norm": "self_attn.k_norm.weight",
    "output": "self_attn.o_proj.weight",
    "feed_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
_HUB_AFTER_NORMS = {
    "after_attention_norm": "post_attention_layernorm.weight",
    "feed_norm": "pre_feedforward_layernorm.weight",
    "after_feed_norm": "post_feedforward_layernorm.weight",
}
GGUF_OUTER: Mapping[str, str] = MappingProxyType(
    {
        "embedding": "token_embd.weight",
        "norm": "output_norm.weight",
        "head": "output.weight",
    }
)
GGUF_FACTORS = "rope_freqs.weight"
_GGUF_LAYER = {
    "attention_norm": "attn_norm.weight",
    "query": "attn_q.weight",
    "key": "attn_k.weight",
    "value": "attn_v.weight",
    "query_bias": "attn_q.bias",
    "key_bias": "attn_k.bias",
    "value_bias": "attn_v.bias",
    "query_norm": "attn_q_norm.weight",
    "key_norm": "attn_k_norm.weight",
    "output": "attn_output.weight",
    "after_attention_norm": "post_attention_norm.weight",
    "feed_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "after_feed_norm": "post_ffw_norm.weight",
}


def hub_names(shape: Architecture) -> dict[str, str]:
    """All tensors of a model as the hub publishes it: our keys, such as `3.query`, and names."""
    own = _HUB_LAYER | (_HUB_AFTER_NORMS if shape.has_after_norms else {})
    return _names(shape, HUB_OUTER, own, "model.layers.")


def gguf_names(shape: Architecture) -> dict[str, str]:
    """The same for a GGUF."""
    return _names(shape, GGUF_OUTER, _GGUF_LAYER, "blk.")


def _names(
    shape: Architecture, outer: Mapping[str, str], own: Mapping[str, str], prefix: str
) -> dict[str, str]:
    wanted = tensor_shapes(shape)
    return {key: outer[key] for key in outer if key in wanted} | {
        f"{layer}.{key}": f"{prefix}{layer}.{name}"
        for layer in range(shape.layers)
        for key, name in own.items()
        if f"{layer}.{key}" in wanted
    }


def tensor_shapes(shape: Architecture) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor that the model has, by our keys."""
    width, inner = shape.width, shape.inner
    queries, keys = shape.heads * shape.head, shape.heads_kv * shape.head
    layer: dict[str, tuple[int, ...]] = {
        "attention_norm": (width,),
        "query": (queries, width),
        "key": (keys, width),
        "value": (keys, width),
        "output": (width, queries),
        "feed_norm": (width,),
        "gate": (inner, width),
        "up": (inner, width),
        "down": (width, inner),
    }
    if shape.has_biases:
        layer |= {"query_bias": (queries,), "key_bias": (keys,), "value_bias": (keys,)}
    if shape.has_head_norms:
        layer |= {"query_norm": (shape.head,), "key_norm": (shape.head,)}
    if shape.has_after_norms:
        layer |= {"after_attention_norm": (width,), "after_feed_norm": (width,)}
    outer: dict[str, tuple[int, ...]] = {
        "embedding": (shape.vocabulary, width),
        "norm": (width,),
    }
    if not shape.is_tied:
        outer["head"] = (shape.vocabulary, width)
    return outer | {
        f"{at}.{key}": size for at in range(shape.layers) for key, size in layer.items()
    }
