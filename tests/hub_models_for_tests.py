"""Small checkpoints as the hub publishes them, one for each thing that a family has of its own.

`write_hub_model` writes the folder with transformers, and `transformers_logits` is what it says of
a text. Weights are random, and float16 holds them as they are.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers

from jitney.models.gguf_vocabulary import read_vocabulary
from jitney.models.tiny import write_tiny_gguf
from tests.folders_for_tests import tokenizer_of

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_GEMMA_ROTARY = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
}

HUB_MODELS: Mapping[str, tuple[str, dict[str, Any]]] = MappingProxyType(
    {
        "llama-3.1": ("llama", {"rope_parameters": _LLAMA3}),
        "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
        "smollm2": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
        "mistral": ("mistral", {"sliding_window": 48}),
        "qwen2": ("qwen2", {"head_dim": 16}),
        "qwen2.5-yarn": (
            "qwen2",
            {"head_dim": 16, "rope_parameters": _YARN, "tie_word_embeddings": True},
        ),
        "qwen3": ("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
        "gemma3": (
            "gemma3_text",
            {
                "num_hidden_layers": 7,
                "sliding_window": 48,
                "query_pre_attn_scalar": 24,
                "rope_parameters": _GEMMA_ROTARY,
            },
        ),
        "smollm3": ("smollm3", {"num_hidden_layers": 5}),
    }
)
"""By name: the model's type, and what its configuration says beside the sizes."""


def write_hub_model(folder: Path, name: str, *, seed: int = 1, part_size: str = "5GB") -> Any:
    """Write a checkpoint with its tokenizer; transformers' model of it."""
    kind, own = HUB_MODELS[name]
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "tokenizer.gguf"
    write_tiny_gguf(source)
    stored = read_vocabulary(source)
    source.unlink()
    tokens = {"vocab_size": len(stored.tokens), "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.AutoConfig.for_model(
        kind, **{**_SIZES, **tokens, "pad_token_id": 0, **own}
    )
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for each in model.parameters():
            if each.ndim == 1:
                # Norms and biases that do nothing would not be missed.
                each += torch.randn_like(each) / 4
            each.copy_(each.half().float())
    model.eval().save_pretrained(folder, max_shard_size=part_size)
    (folder / "tokenizer.json").write_text(tokenizer_of(stored, digits_apart=False).to_str())
    named = {"bos_token": "<s>", "eos_token": stored.tokens[2]}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return model


def transformers_logits(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """The logits after each token."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([list(tokens)])).logits[0].float()
    return logits
